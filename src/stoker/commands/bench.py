"""`stoker bench`: how fast the parts are that a training waits for."""

from __future__ import annotations

import json
import os
import sys

from stoker.cluster.layers import fold
from stoker.cluster.load import names
from stoker.commands.arguments import load_overridden, read_layers
from stoker.commands.parser import Parser, add_json, typed
from stoker.engine.command import find_python
from stoker.report.communication import communication_json, render_communication
from stoker.scale.collectives import SIZES, measure, parse_sizes, with_expected
from stoker.units import parse_positive

DESCRIPTION = """\
Measure all-reduce, broadcast and all-gather between ranks, and what the size of DDP's buckets
does to a step. On this machine it starts the ranks; under srun or mpirun they are there.

  stoker bench comm --procs 4
  stoker bench comm --sizes 4K,1M,64M --backend nccl
  srun stoker bench comm --json
"""


def run(words: list[str]) -> int:
    """Measure the communication between ranks."""
    parser = Parser("bench", DESCRIPTION)
    parser.add_argument("what", choices=["comm"], help="comm: communication between ranks")
    parser.add_argument("--procs", type=typed(parse_positive), metavar="N", help="ranks to start")
    parser.add_argument(
        "--sizes", type=typed(parse_sizes), default=SIZES, metavar="LIST", help="4K,1M,64M"
    )
    parser.add_argument("--backend", metavar="B", help="gloo, nccl, mpi (default: by the device)")
    parser.add_argument(
        "--cluster", metavar="C", help="compare with its network (default: Slurm's)"
    )
    parser.add_argument("--python", metavar="P", help="the interpreter (default: the active one)")
    add_json(parser)
    args = parser.parse_args(words)
    measured = measure(
        find_python(args.python, os.environ),
        procs=args.procs,
        sizes=args.sizes,
        backend=args.backend,
        env=os.environ,
    )
    if measured is None:
        return 0
    name = args.cluster or os.environ.get("SLURM_CLUSTER_NAME", "")
    layers = read_layers()
    if args.cluster or fold(name) in names(layers):
        measured = with_expected(measured, load_overridden(name, (), layers).network)
    if args.json:
        print(json.dumps(communication_json(measured), indent=2))
    else:
        print(render_communication(measured))
    sys.stdout.flush()
    print("next: stoker run --procs N train.py", file=sys.stderr)
    return 0
