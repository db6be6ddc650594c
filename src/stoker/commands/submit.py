"""`stoker submit`: plan, script, sbatch; the run folder is there before the job."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from stoker.cluster.layers import fold
from stoker.cluster.load import names
from stoker.commands.arguments import (
    add_spec_arguments,
    load_overridden,
    read_arguments,
    read_layers,
    read_spec,
    refuse_late_cluster,
)
from stoker.commands.parser import Parser, add_json, typed
from stoker.engine.command import refuse_script
from stoker.engine.submit import cluster_name
from stoker.errors import UsageError
from stoker.plan.combinations import refuse_here
from stoker.plan.make import make_plan
from stoker.plan.notices import ACCOUNT_PLACEHOLDER
from stoker.plan.sweep import parse_sweep
from stoker.report.plan import render_notices
from stoker.units import parse_positive
from stoker.watch.submission import Order, render_order, submit_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stoker.cluster.layers import Layer
    from stoker.cluster.profile import Cluster
    from stoker.plan.plan import Plan
    from stoker.plan.spec import Spec
    from stoker.watch.folder import RunFolder

# Of a large array a few elements are enough.
MAX_TOLD = 5

DESCRIPTION = """\
Submit a job: plan it, write the batch script into a new run folder, and give it to sbatch.
Returns at once.

  stoker submit --cluster puhti --gpus 2 --time 1h train.py --epochs 3
  stoker submit --gpus 1 --sweep lr=0.1,0.01 --sweep seed=1,2,3 train.py
  stoker submit --gpus 8 --preflight --wait train.py
"""


def run(words: list[str]) -> int:
    """Submit one job."""
    layers = read_layers()
    args = read_arguments(_parser(), words, layers)
    cluster = _cluster(args, layers)
    order = _order(args)
    spec = _with_options(read_spec(args), args.after, order.array)
    if not spec.is_module and spec.is_python:
        refuse_script(Path(spec.script))
    plan = make_plan(spec, cluster)
    _refuse_placeholder(plan)
    refuse_here(plan, os.environ)
    if args.dry_run:
        sys.stdout.buffer.write(render_order(plan, order).encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
        print("next: the same without --dry-run submits it", file=sys.stderr)
        return 0
    folder, facts = submit_order(plan, order, os.environ)
    _tell(args, plan, folder, facts)
    return _wait(str(facts["id"])) if args.wait else 0


def _parser() -> Parser:
    parser = Parser("submit", DESCRIPTION, "stoker submit [options] script [its own arguments]")
    group = parser.add_argument_group("submitting")
    group.add_argument("-o", "--output", metavar="DIR", type=Path, help="the run folder")
    group.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    group.add_argument(
        "--wait", action="store_true", help="wait for the end; exit code is the job's"
    )
    group.add_argument("--after", action="append", default=[], metavar="JOB",
                       help="start when that job has ended well")  # fmt: skip
    group.add_argument("--array", metavar="LIST", help="an array of jobs: 0-9, 1,3,5")
    group.add_argument("--sweep", action="append", default=[], metavar="NAME=A,B",
                       help="one job for each value of an option of the script")  # fmt: skip
    group.add_argument(
        "--throttle", type=typed(parse_positive), metavar="N", help="so many elements at a time"
    )
    group.add_argument("--preflight", action="store_true",
                       help="let every node check itself and the network first")  # fmt: skip
    group.add_argument("--no-watch", action="store_true", help="do not record the run")
    add_json(parser)
    add_spec_arguments(parser)
    return parser


def _cluster(args: argparse.Namespace, layers: Sequence[Layer]) -> Cluster:
    """Return the cluster that was named, or the one that this Slurm says it is."""
    if args.cluster is not None:
        cluster = load_overridden(args.cluster, args.set, layers)
        if cluster.scheduler == "none":
            raise UsageError(
                f"`{cluster.name}` has no Slurm",
                why="there is nobody to submit to",
                fix="stoker run train.py runs it on this machine",
            )
        return cluster
    name = cluster_name() or "unknown"
    if fold(name) not in names(layers):
        refuse_late_cluster(args.command)
        raise UsageError(
            "no cluster was named",
            why=f"Slurm calls this one `{name}`, and no profile has that name",
            fix="stoker cluster detect --save, then again; or --cluster NAME (stoker cluster list)",
        )
    return load_overridden(name, args.set, layers)


def _with_options(spec: Spec, after: Sequence[str], array: str | None) -> Spec:
    """Return the spec with what submitting asks of sbatch."""
    options = list(spec.add)
    if after:
        from stoker.watch.submitted import find_submitted

        jobs = [find_submitted(each)[0] for each in after]
        options.append("--dependency=afterok:" + ":".join(jobs))
    if array:
        options.append(f"--array={array}")
    return replace(spec, add=tuple(options))


def _refuse_placeholder(plan: Plan) -> None:
    if any(value == ACCOUNT_PLACEHOLDER for _, value in plan.directives):
        raise UsageError(
            "no account was given",
            why=f"{plan.cluster.title} bills every job to one",
            fix='--account NAME, or account = "NAME" under [defaults] in stoker.toml',
        )


def _order(args: argparse.Namespace) -> Order:
    points = parse_sweep(args.sweep) if args.sweep else []
    if points and args.array:
        raise UsageError(
            "a sweep and an array",
            why="a sweep is an array with one element for each point",
            fix="leave --array out",
        )
    array = f"0-{len(points) - 1}" if points else args.array
    if args.throttle and array:
        array += f"%{args.throttle}"
    return Order(args.output, array, points, not args.no_watch, args.preflight)


def _tell(
    args: argparse.Namespace, plan: Plan, folder: RunFolder, facts: dict[str, object]
) -> None:
    job = str(facts["id"])
    if args.json:
        import json

        print(json.dumps({**facts, "folder": str(folder.path)}, indent=2), flush=True)
    else:
        print(job, flush=True)
    notices = render_notices(plan)
    if notices:
        print(notices, file=sys.stderr)
    where = os.path.relpath(folder.path)
    print(f"submitted {job} to {plan.cluster.title}; run folder {where}", file=sys.stderr)
    print(f"log: {facts['log']}", file=sys.stderr)
    if not args.wait:
        print(f"next: stoker logs -f {shlex.quote(job)}", file=sys.stderr)


def _wait(job: str) -> int:
    # Most people do not wait here: what only this needs is not imported for them.
    from stoker.engine.end import exit_code, wait_for
    from stoker.report.jobs import ending_words

    ended = wait_for(job)
    for each in ended[:MAX_TOLD]:
        print(f"{each.id}: {ending_words(each)}", file=sys.stderr)
    print(f"next: stoker report {shlex.quote(job)}", file=sys.stderr)
    return exit_code(ended)
