"""How much later the ranks of `stoker run --procs 4` begin than those of bare torchrun.

    .venv/bin/python benchmarks/procs.py --python .venv-torch/bin/python
    PYTHONPATH=src python3 benchmarks/procs.py --repeats 15 -o $OUT/procs.json

Each rank writes the time at its first line, and when all have met (`init_process_group`); the last
rank counts. torchrun alone and `stoker run` take turns, and who is first changes; the first round
is not counted. Beside the clock stands processor time, which busy neighbours change less: of all
processes together, and of Stoker alone, with an interpreter that ends at once in place of torchrun.
The bar is 0.3 s more until all have met.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import difference_of, render_table, spread_of, write_results
from machine import (
    Budget,
    describe_machine,
    parse_starts,
    plain_environment,
    render_machine,
    stoker_environment,
    stoker_run,
)

SCRIPT = """\
import time
first = time.time()
import os
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
os.write(1, f"{first} {time.time()}\\n".encode())
dist.destroy_process_group()
"""
WAYS = ("torchrun", "stoker run")
PROCS, REPEATS, BAR_S = 4, 15, 0.3


class Times(NamedTuple):
    """Seconds of one launch: until the last rank's first line, until all have met, and in all."""

    first_line: float
    met: float
    command: float
    processor: float


NAMES = {
    "first_line": "first line",
    "met": "all have met",
    "command": "whole command",
    "processor": "processor time",
}


def children_s() -> float:
    """Return the processor time of all processes that were started and have ended."""
    now = os.times()
    return now.children_user + now.children_system


def time_once(command: Sequence[str], env: Mapping[str, str], folder: str) -> Times:
    before, began = children_s(), time.time()
    done = subprocess.run(
        command, env=dict(env), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, check=True,
    )  # fmt: skip
    ended, after = time.time(), children_s()
    told = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(told) == PROCS
    first, met = (max(column) - began for column in zip(*told, strict=True))
    return Times(first, met, ended - began, after - before)


def own_part(script: str) -> float:
    """Return Stoker's own processor time, with nothing to start."""
    with tempfile.TemporaryDirectory(prefix="procs-") as folder:
        nothing = Path(folder) / "python3"
        nothing.symlink_to("/bin/true")
        command = stoker_run(str(nothing), Path(folder) / "run", "--procs", str(PROCS), script)
        before = children_s()
        subprocess.run(
            command, env=stoker_environment(), cwd=folder, capture_output=True, check=True
        )
        return children_s() - before


def run_round(python: str, script: str, ways: Sequence[str]) -> dict[str, Times]:
    """Launch once in each way, in this order."""
    # The same for both: what is compared is the start, not the number of threads.
    threads = {"OMP_NUM_THREADS": "1"}
    times = {}
    for way in ways:
        with tempfile.TemporaryDirectory(prefix="procs-") as folder:
            if way == "torchrun":
                head = [python, "-m", "torch.distributed.run", "--standalone"]
                command = [*head, f"--nproc_per_node={PROCS}", script]
                env = {**plain_environment(), **threads}
            else:
                words = ("--procs", str(PROCS), script)
                command = stoker_run(python, Path(folder) / "run", *words)
                env = {**stoker_environment(), **threads}
            times[way] = time_once(command, env, folder)
    return times


def measure(
    python: str, repeats: int, budget: Budget
) -> tuple[list[dict[str, Times]], list[float]]:
    rounds: list[dict[str, Times]] = []
    own: list[float] = []
    with tempfile.TemporaryDirectory(prefix="procs-") as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        longest = 0.0
        while len(rounds) <= repeats and budget.has(1.3 * longest):
            began = time.monotonic()
            rounds.append(run_round(python, str(script), WAYS[:: -1 if len(rounds) % 2 else 1]))
            own.append(own_part(str(script)))
            longest = max(longest, time.monotonic() - began)
    return rounds[1:], own[1:]


def summarize(rounds: Sequence[Mapping[str, Times]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for name in NAMES:
        values = {way: [getattr(each[way], name) for each in rounds] for way in WAYS}
        summary[name] = {way: spread_of(values[way])._asdict() for way in WAYS}
        ours, theirs = values["stoker run"], values["torchrun"]
        summary[name]["added"] = difference_of(ours, theirs)._asdict()
    return summary


def render_page(results: Mapping[str, Any]) -> str:
    rows = []
    for name, title in NAMES.items():
        figures = results["times_s"][name]
        bare, ours, added = figures["torchrun"], figures["stoker run"], figures["added"]
        rows.append(
            [
                title,
                f"{bare['median']:.2f} ({bare['low']:.2f} to {bare['high']:.2f})",
                f"{ours['median']:.2f} ({ours['low']:.2f} to {ours['high']:.2f})",
                f"{added['value']:+.2f} ({added['low']:+.2f} to {added['high']:+.2f})",
                f"{ours['median'] / bare['median']:.2f}",
            ]
        )
    met, whole, spent = (
        results["times_s"][name]["added"] for name in ("met", "command", "processor")
    )
    own = results["own_processor_s"]
    verdict = "kept" if met["value"] <= BAR_S else "NOT kept"
    if met["high"] - met["low"] > BAR_S:
        verdict += ", as far as so busy a machine can tell: the interval is wider than the bar"
    head = ["until", "torchrun, s (middle half)", "stoker run, s", "added, s (95 %)", "ratio"]
    return "\n".join(
        [
            f"# What `stoker run --procs {PROCS}` adds to the start of bare torchrun\n",
            f"{render_machine(results['machine'])} {results['repeats']} rounds in turn, after one "
            "that is not counted.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            f"**The bar**, {BAR_S} s more until all ranks have met, is {verdict}: "
            f"{met['value']:+.2f} s.\n",
            f"**The rest.** The whole command, with its report, took {whole['value']:+.2f} s, and "
            f"all processes together {spent['value']:+.2f} s of processor time. Stoker alone takes "
            f"{own['median']:.2f} s of it ({own['low']:.2f} to {own['high']:.2f}), from its start to "
            "its end; what is added in each rank is in `entry.py`.\n",
        ]
    )


def main() -> None:
    args = parse_starts(__doc__, "procs", REPEATS)
    machine = describe_machine(args.python, ("torch",), plain_environment())
    rounds, own = measure(args.python, args.repeats, Budget(args.budget_s))
    results = {
        "command": shlex.join(["benchmarks/procs.py", *sys.argv[1:]]),
        "machine": machine,
        "repeats": len(rounds),
        "times_s": summarize(rounds),
        "own_processor_s": spread_of(own)._asdict(),
    }
    write_results(args.output, results, render_page(results))


if __name__ == "__main__":
    main()
