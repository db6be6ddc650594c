"""`stoker report`: what a run did and what limited it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stoker.commands.files import write_file
from stoker.commands.parser import Parser, add_json
from stoker.errors import FileError, UsageError
from stoker.report.gpu_csv import render_gpu_csv
from stoker.report.run import next_command, render_run
from stoker.report.run_json import run_json
from stoker.units import parse_count, plural
from stoker.watch.folder import find_run
from stoker.watch.summary import Summary, read_summary

DESCRIPTION = """\
Show what a run did: how it ended, what limits it, what a step is made of, what the machines
and GPUs did, and the slowest lines. Also for a run that goes on, or was killed half-way.

  stoker report
  stoker report .stoker/runs/20261115-065520-train --lines 30
  stoker report --csv gpu.csv
"""


def run(words: list[str]) -> int:
    """Report one run."""
    parser = Parser("report", DESCRIPTION)
    parser.add_argument("run", nargs="?", help="a run's id or folder (default: the newest here)")
    add_json(parser)
    parser.add_argument(
        "--lines", type=_count, default=10, metavar="N", help="slowest lines to show (default 10)"
    )
    parser.add_argument("--csv", metavar="FILE", help="write the GPU readings; - for stdout")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    args = parser.parse_args(words)
    summary = _read(args.run)
    if args.csv is not None:
        _write_csv(summary, args.csv, args.force)
    elif args.json:
        print(json.dumps(run_json(summary), indent=2))
    else:
        text = render_run(summary, args.lines) + "\n"
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    if args.csv is None:
        print(f"next: {next_command(summary)}", file=sys.stderr)
    return 0


def _read(name: str | None) -> Summary:
    folder = find_run(name)
    summary = read_summary(folder)
    if not (summary.run or summary.ranks or summary.machines):
        raise FileError(
            f"`{name}` holds no run",
            why=f"there is neither {folder.run_json.name} nor a reading in it",
            fix="stoker report, for the newest run here",
        )
    return summary


def _write_csv(summary: Summary, file: str, force: bool) -> None:
    text = render_gpu_csv(summary)
    rows = text.count("\n") - 1
    if file == "-":
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    else:
        write_file(Path(file), text, force=force)
        print(f"wrote {file} ({plural(rows, 'row')})", file=sys.stderr)
    if not rows:
        print("note: there was no GPU to read: the header is all there is", file=sys.stderr)


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.what}; {error.fix}") from None
