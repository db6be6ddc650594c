"""Is the line view right? A loop whose lines take known times, under Stoker and under py-spy.

    .venv/bin/python benchmarks/lines.py
    .venv/bin/python benchmarks/lines.py --peers peers     (pip install --target peers py-spy)

`programs/known_lines.py` times each of its lines itself. The share that each watcher gives a line,
and all that it calls, is compared with the share by that clock, in the same run. py-spy looks from
outside, a hundred times a second, and stops the program for it (`--nonblocking` does not, and may
read nonsense). Launches take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from figures import render_table, spread_of, write_results
from machine import (
    HERE,
    PROGRAMS,
    describe_machine,
    peer_environment,
    plain_environment,
    render_machine,
    stoker_environment,
    stoker_run,
)

from stoker.watch.folder import RunFolder
from stoker.watch.summary import read_summary

SCRIPT = PROGRAMS / "known_lines.py"
Shares = dict[str, float]
# What follows this in the page was written by hand, and stays.
BY_HAND = "<!-- by hand -->\n"


def under_stoker(seconds: float, folder: Path, _peers: Path | None) -> tuple[Shares, Shares]:
    """Return the true shares of the lines, and those that Stoker gives them."""
    out = folder / "run"
    words = stoker_run(sys.executable, out, "--quiet", str(SCRIPT), str(seconds))
    done = subprocess.run(
        words, env=stoker_environment(), capture_output=True, text=True, check=True
    )
    found: dict[int, float] = {}
    for line in read_summary(RunFolder(out)).ranks[0].lines:
        if line.function == "one_batch":
            found[line.line] = found.get(line.line, 0.0) + line.total_s
    return compare(done.stdout, found)


def under_py_spy(seconds: float, folder: Path, peers: Path | None) -> tuple[Shares, Shares]:
    """Return the same of py-spy, from its stacks as text."""
    out = folder / "stacks"
    words = ["py-spy", "record", "--format", "raw", "--output", str(out), "--rate", "100", "--idle"]
    done = subprocess.run(
        [*words, "--", sys.executable, str(SCRIPT), str(seconds)],
        env=peer_environment(peers), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[int, float] = {}
    for row in out.read_text().splitlines():
        stack, _, count = row.rpartition(" ")
        for frame in stack.split(";"):
            if frame.startswith("one_batch "):
                line = int(frame.rpartition(":")[2].rstrip(")"))
                found[line] = found.get(line, 0.0) + int(count)
    return compare(done.stdout, found)


def compare(told: str, found: Mapping[int, float]) -> tuple[Shares, Shares]:
    """Return the shares of the named lines, by the program's clock and as they were found."""
    # py-spy has words of its own on the same channel.
    spent = json.loads(next(row for row in told.splitlines() if row.startswith("{")))
    whole = sum(seconds for _, seconds in spent.values())
    seen = sum(found.get(line, 0.0) for line, _ in spent.values()) or 1.0
    true = {name: seconds / whole for name, (_, seconds) in spent.items()}
    return true, {name: found.get(line, 0.0) / seen for name, (line, _) in spent.items()}


WATCHERS: dict[str, Callable[[float, Path, Path | None], tuple[Shares, Shares]]] = {
    "stoker run": under_stoker,
    "py-spy": under_py_spy,
}


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of one launch")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where py-spy is installed")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "lines.json")
    args = parser.parse_args()
    machine = describe_machine(sys.executable, (), plain_environment())
    names = [name for name in WATCHERS if args.peers or name != "py-spy"]
    runs: dict[str, list[tuple[Shares, Shares]]] = {name: [] for name in names}
    for launch in range(args.launches):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                pair = WATCHERS[name](args.seconds, Path(folder), args.peers)
            runs[name].append(pair)
            print(
                f"launch {launch + 1}, {name}: off by at most {worst(*pair):.1%}", file=sys.stderr
            )
    results = {"machine": machine, "seconds": args.seconds, "runs": runs}
    page = args.output.with_suffix(".md")
    told = page.read_text().partition(BY_HAND)[2] if page.exists() else ""
    write_results(args.output, results, render_page(results) + BY_HAND + told)


def worst(true: Shares, found: Shares) -> float:
    """Return by how much the share of any line is off."""
    return max(abs(found[name] - share) for name, share in true.items())


def render_page(results: Mapping[str, Any]) -> str:
    """Return the page that shows the figures."""
    runs = results["runs"]
    lines = list(runs["stoker run"][0][0])
    head = ["line", *(f"{name}: {what}" for name in runs for what in ("true", "found"))]
    rows = []
    for line in lines:
        shares = [[pair[at][line] for pair in pairs] for pairs in runs.values() for at in (0, 1)]
        rows.append((line, *(f"{statistics.median(each):.1%}" for each in shares)))
    ends = []
    for name, pairs in runs.items():
        off = spread_of([worst(*pair) for pair in pairs])
        ends.append((name, f"{off.median:.1%} ({off.min:.1%} to {off.max:.1%})"))
    return "\n".join([
        "# Is the line view right?",
        "",
        render_machine(results["machine"]),
        f"{len(pairs)} launches of {results['seconds']:g} s; medians of the shares of one loop.",
        "",
        render_table(head, rows),
        render_table(("watcher", "the share that is furthest off"), ends),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
