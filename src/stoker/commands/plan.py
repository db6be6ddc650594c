"""`stoker plan`: what to ask for, why, what it costs, and the script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from stoker.commands.arguments import (
    add_spec_arguments,
    read_arguments,
    read_cluster,
    read_layers,
    read_spec,
)
from stoker.commands.files import write_file
from stoker.commands.parser import Parser, add_json
from stoker.plan.make import make_plan
from stoker.plan.notices import ACCOUNT_PLACEHOLDER
from stoker.plan.script import render_script
from stoker.report.plan import plan_json, render_notices, render_plan

DESCRIPTION = """\
Plan a job: partition, nodes, tasks, CPUs, memory, GPUs, local disk, launcher, each with
its reason, and the cost. Nothing is submitted.

  stoker plan --cluster puhti --gpus 8 --time 1h train.py --epochs 3
  stoker plan --cluster lumi --gpus 16 --script train.py > job.sh
"""


def run(words: list[str]) -> int:
    """Plan one job."""
    parser = Parser("plan", DESCRIPTION, "stoker plan [options] script [its own arguments]")
    add_spec_arguments(parser)
    add_json(parser)
    parser.add_argument("--script", action="store_true", help="print the batch script only")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write the batch script to FILE"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    layers = read_layers()
    args = read_arguments(parser, words, layers)
    plan = make_plan(read_spec(args), read_cluster(args, layers))
    script = render_script(plan)
    if args.output is not None:
        write_file(args.output, script, force=args.force)
    if args.json:
        import json

        print(json.dumps(plan_json(plan, script), indent=2))
    elif args.script:
        sys.stdout.buffer.write(script.encode("utf-8", "surrogateescape"))
    elif args.output is None:
        print(render_plan(plan))
    sys.stdout.flush()
    notices = render_notices(plan)
    if notices:
        print(notices, file=sys.stderr)
    if args.output is not None:
        start = "bash" if plan.cluster.scheduler == "none" else "sbatch"
        fill = (
            f"replace {ACCOUNT_PLACEHOLDER} in it, then " if ACCOUNT_PLACEHOLDER in script else ""
        )
        name = shlex.quote(str(args.output))
        print(f"wrote {args.output}\nnext: {fill}{start} {name}", file=sys.stderr)
    elif not args.script:
        print("next: the same with -o job.sh writes the batch script", file=sys.stderr)
    return 0
