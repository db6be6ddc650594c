"""`stoker cluster`: which clusters are known, what is known about one, and what Slurm tells of this one."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from stoker.cluster.load import load_cluster, names
from stoker.commands.arguments import add_set, load_overridden, read_layers
from stoker.commands.files import write_file
from stoker.commands.parser import Parser, add_json
from stoker.report.cluster import cluster_json, render_cluster, render_clusters

DESCRIPTION = """\
List the clusters that Stoker knows, show one with every fact and its source, or write the
profile of the cluster that you are on, from what its Slurm tells.

  stoker cluster list
  stoker cluster show puhti
  stoker cluster detect --save
"""


def run(words: list[str]) -> int:
    """List, show or detect clusters."""
    parser = Parser("cluster", DESCRIPTION)
    parser.add_argument("action", choices=["list", "show", "detect"], help="what to do")
    parser.add_argument("name", nargs="?", help="the cluster to show")
    add_json(parser)
    add_set(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="detect: write the profile to FILE"
    )
    parser.add_argument(
        "--save", action="store_true", help="detect: keep the profile, to be found by its name"
    )
    parser.add_argument("--force", action="store_true", help="detect: overwrite the file")
    args = parser.parse_args(words)
    if args.action != "detect" and (args.output or args.save or args.force):
        parser.error(f"`{args.action}` takes neither -o nor --save nor --force")
    if args.action != "show" and (args.name is not None or args.set):
        parser.error(f"`{args.action}` takes neither a name nor --set")
    if args.action == "list":
        return _list(args)
    if args.action == "detect":
        return _detect(args)
    if args.name is None:
        parser.error("missing: the name of a cluster")
    cluster = load_overridden(args.name, args.set, read_layers())
    print(json.dumps(cluster_json(cluster), indent=2) if args.json else render_cluster(cluster))
    print(f"next: stoker plan --cluster {cluster.name} --gpus 1 train.py", file=sys.stderr)
    return 0


def _list(args: argparse.Namespace) -> int:
    layers = read_layers()
    clusters = [load_cluster(name, layers) for name in names(layers)]
    print(
        json.dumps([cluster_json(each) for each in clusters], indent=2)
        if args.json
        else render_clusters(clusters)
    )
    print("next: stoker cluster show NAME", file=sys.stderr)
    return 0


def _detect(args: argparse.Namespace) -> int:
    from stoker.cluster.detect import detect_cluster, saved_file
    from stoker.engine.slurm import call
    from stoker.report.detected import detected_json, render_detected

    found = detect_cluster(call)
    text = found.toml()
    files = [args.output] if args.output is not None else []
    if args.save:
        files.append(saved_file(found.name))
        with contextlib.suppress(OSError):
            files[-1].parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        write_file(file, text, force=args.force)
    if args.json:
        print(json.dumps(detected_json(found), indent=2))
    elif not files:
        print(text, end="")
    sys.stdout.flush()
    print(render_detected(found), file=sys.stderr)
    for file in files:
        print(f"wrote {file}", file=sys.stderr)
    ready = f"stoker plan --cluster {found.name} --gpus 1 train.py"
    print(f"next: {ready if args.save else 'stoker cluster detect --save'}", file=sys.stderr)
    return 0
