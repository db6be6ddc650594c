"""`stoker cluster`: which clusters are known, and what is known about one."""

from __future__ import annotations

import json
import sys

from stoker.cluster.load import load_cluster, names
from stoker.commands.arguments import add_set, load_overridden, read_layers
from stoker.commands.parser import Parser, add_json
from stoker.report.cluster import cluster_json, render_cluster, render_clusters

DESCRIPTION = """\
List the clusters that Stoker knows, or show one with every fact and its source.

  stoker cluster list
  stoker cluster show puhti
"""


def run(words: list[str]) -> int:
    """List or show clusters."""
    parser = Parser("cluster", DESCRIPTION)
    parser.add_argument("action", choices=["list", "show"], help="what to do")
    parser.add_argument("name", nargs="?", help="the cluster to show")
    add_json(parser)
    add_set(parser)
    args = parser.parse_args(words)
    layers = read_layers()
    if args.action == "list":
        if args.name is not None or args.set:
            parser.error("`list` takes neither a name nor --set")
        clusters = [load_cluster(name, layers) for name in names(layers)]
        print(
            json.dumps([cluster_json(each) for each in clusters], indent=2)
            if args.json
            else render_clusters(clusters)
        )
        print("next: stoker cluster show NAME", file=sys.stderr)
        return 0
    if args.name is None:
        parser.error("missing: the name of a cluster")
    cluster = load_overridden(args.name, args.set, layers)
    print(json.dumps(cluster_json(cluster), indent=2) if args.json else render_cluster(cluster))
    print(f"next: stoker plan --cluster {cluster.name} --gpus 1 train.py", file=sys.stderr)
    return 0
