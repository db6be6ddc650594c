"""How much later the user's first line runs under `stoker run`, and the line after `import torch`.

    .venv/bin/python benchmarks/entry.py --python .venv-torch/bin/python
    PYTHONPATH=src python3 benchmarks/entry.py --repeats 15 -o $OUT/entry.json

Two scripts print the time: one at once, one after `import torch`. The clock starts just before
the command does. Plain Python and `stoker run` take turns, round after round; the first round
is not counted, since it compiles modules and fills the disk cache.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

SCRIPTS = {
    "first line": "import time; print(time.time(), flush=True)\n",
    "line after `import torch`": "import torch\nimport time; print(time.time(), flush=True)\n",
}
WAYS = ("python", "stoker run")
MIN_REPEATS = 15


def time_once(command: list[str], env: Mapping[str, str], folder: str) -> tuple[float, float]:
    """Return the seconds until the script's line, and those of the whole command."""
    began = time.time()
    done = subprocess.run(
        command, env=dict(env), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, check=True,
    )  # fmt: skip
    ended = time.time()
    return float(done.stdout.split()[0]) - began, ended - began


def run_round(python: str, scripts: Mapping[str, Path]) -> dict[tuple[str, str], tuple[float, float]]:  # fmt: skip
    times = {}
    for what, script in scripts.items():
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="entry-") as folder:
                if way == "python":
                    command, env = [python, str(script)], plain_environment()
                else:
                    command = stoker_run(python, Path(folder) / "run", str(script))
                    env = stoker_environment()
                times[what, way] = time_once(command, env, folder)
    return times


def measure(python: str, repeats: int, budget: Budget) -> list[dict[tuple[str, str], tuple[float, float]]]:  # fmt: skip
    rounds: list[dict[tuple[str, str], tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="entry-") as folder:
        scripts = {}
        for number, (what, text) in enumerate(SCRIPTS.items()):
            scripts[what] = Path(folder) / f"script{number}.py"
            scripts[what].write_text(text)
        longest = 0.0
        while len(rounds) <= repeats and budget.has(1.3 * longest):
            began = time.monotonic()
            rounds.append(run_round(python, scripts))
            longest = max(longest, time.monotonic() - began)
    return rounds[1:]


def summarize(rounds: list[dict[tuple[str, str], tuple[float, float]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for what in SCRIPTS:
        until = {way: [1000 * each[what, way][0] for each in rounds] for way in WAYS}
        whole = {way: [1000 * each[what, way][1] for each in rounds] for way in WAYS}
        summary[what] = {
            way: {"until_ms": spread_of(until[way])._asdict(), "command_ms": spread_of(whole[way])._asdict()}
            for way in WAYS
        }  # fmt: skip
        summary[what]["added_ms"] = difference_of(until["stoker run"], until["python"])._asdict()
        summary[what]["added_to_command_ms"] = difference_of(
            whole["stoker run"], whole["python"]
        )._asdict()
    return summary


def render_page(results: Mapping[str, Any]) -> str:
    rows = []
    for what, figures in results["times"].items():
        for way in WAYS:
            until, whole = figures[way]["until_ms"], figures[way]["command_ms"]
            added = figures["added_ms"]
            rows.append(
                [
                    f"{what}, {way}", f"{until['median']:.1f}", f"{until['low']:.1f} to {until['high']:.1f}",
                    "" if way == "python" else f"{added['value']:+.1f} ({added['low']:+.1f} to {added['high']:+.1f})",
                    f"{whole['median']:.1f}",
                ]
            )  # fmt: skip
    head = ["until", "median, ms", "middle half, ms", "added, ms (95 %)", "whole command, ms"]
    ends = ", ".join(
        f"{figures['added_to_command_ms']['value']:+.0f} ms ({what})"
        for what, figures in results["times"].items()
    )
    return "\n".join(
        [
            "# What `stoker run` adds before the user's first line\n",
            f"{render_machine(results['machine'])} {results['repeats']} rounds in turn, after one "
            "that is not counted.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            f"**What was worse.** The whole command, with its report, took longer by {ends}.\n",
        ]
    )


def main() -> None:
    args = parse_starts(__doc__, "entry", MIN_REPEATS)
    machine = describe_machine(args.python, ("torch",), plain_environment())
    rounds = measure(args.python, args.repeats, Budget(args.budget_s))
    results = {
        "command": shlex.join(["benchmarks/entry.py", *sys.argv[1:]]),
        "machine": machine,
        "repeats": len(rounds),
        "times": summarize(rounds),
    }
    write_results(args.output, results, render_page(results))


if __name__ == "__main__":
    main()
