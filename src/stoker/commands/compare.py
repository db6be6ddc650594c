"""`stoker compare`: two runs side by side."""

from __future__ import annotations

import argparse
import json
import re
import sys

from stoker.advise.comparison import compare
from stoker.commands.parser import Parser, add_json
from stoker.errors import FileError, StokerError
from stoker.report.comparison import comparison_json, next_command, render_comparison
from stoker.watch.collector import no_collector
from stoker.watch.folder import find_run
from stoker.watch.summary import Summary, read_summary

DESCRIPTION = """\
Show two runs side by side: what was set differently, which is faster, and whether the
difference is more than noise.

  stoker compare 20261115-065520-train 20261115-071203-train
  stoker compare before after --fail-if-slower 5%
"""


@no_collector()
def run(words: list[str]) -> int:
    """Compare two runs."""
    parser = Parser("compare", DESCRIPTION)
    parser.add_argument("a", metavar="A", help="a run's id or folder: what is compared with")
    parser.add_argument("b", metavar="B", help="a run's id or folder: what is judged")
    parser.add_argument(
        "--fail-if-slower", type=_share, metavar="P", help="exit 1 if B is slower by more, as 5%%"
    )
    add_json(parser)
    args = parser.parse_args(words)
    limit: float | None = args.fail_if_slower
    comparison = compare(_read(args.a), _read(args.b))
    if args.json:
        print(json.dumps(comparison_json(comparison, limit), indent=2))
    else:
        text = render_comparison(comparison) + "\n"
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    print(f"next: {next_command(comparison)}", file=sys.stderr)
    if limit is None:
        return 0
    slowdown = comparison.slower_by(limit)
    if slowdown.is_slower is None:
        raise StokerError(
            f"it cannot be told whether B is more than {100 * limit:g} % slower",
            why=slowdown.why,
            fix="run both again, for longer or on a quieter machine; or allow more",
        )
    word = "slower" if slowdown.is_slower else "not slower"
    print(f"B is {word} than allowed: {slowdown.why}", file=sys.stderr)
    return int(slowdown.is_slower)


def _read(name: str) -> Summary:
    folder = find_run(name)
    summary = read_summary(folder)
    if not (summary.run or summary.ranks or summary.machines):
        raise FileError(
            f"`{name}` holds no run",
            why=f"there is neither {folder.run_json.name} nor a reading in it",
            fix="ls .stoker/runs, for the runs here",
        )
    return summary


def _share(text: str) -> float:
    """Read `5%`, or 5, as a share."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?) ?%?", text)
    if not match or not 0 < float(match[1]) <= 100:
        raise argparse.ArgumentTypeError(f"`{text}` is not a percentage; write for example 5%")
    return float(match[1]) / 100
