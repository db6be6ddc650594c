"""`stoker report`: what a run did and what limited it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stoker.commands.files import check_free, write_file
from stoker.commands.parser import Parser, add_json, typed
from stoker.engine.accounting import last_attempts, read_attempts
from stoker.errors import FileError, SlurmError, StokerError, UsageError
from stoker.report.accounting import JOB, Joined, jobs_json, join_job, render_jobs
from stoker.report.gpu_csv import render_gpu_csv
from stoker.report.run import next_command, render_run
from stoker.report.run_json import render_run_json
from stoker.report.table import width
from stoker.units import parse_count, plural
from stoker.watch.collector import no_collector
from stoker.watch.folder import find_run
from stoker.watch.submitted import find_run_inside
from stoker.watch.summary import Summary, read_summary

DESCRIPTION = """\
Show what a run did: how it ended, what limits it, what a step is made of, what the machines
and GPUs did, and the slowest lines. Also for a run that goes on, or was killed half-way.

  stoker report
  stoker report .stoker/runs/20261115-065520-train --lines 30
  stoker report 1234567
  stoker report --html run.html
  stoker report --csv gpu.csv
"""


@no_collector()
def run(words: list[str]) -> int:
    """Report one run."""
    parser = Parser("report", DESCRIPTION)
    parser.add_argument(
        "run", nargs="?", help="a run's id or folder, or a job (default: the newest run)"
    )
    add_json(parser)
    parser.add_argument(
        "--lines",
        type=typed(parse_count),
        default=10,
        metavar="N",
        help="slowest lines to show (default 10)",
    )
    parser.add_argument(
        "--findings",
        type=typed(parse_count),
        default=3,
        metavar="N",
        help="findings to show (default 3)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with charts, for a browser")
    parser.add_argument("--csv", metavar="FILE", help="write the GPU readings; - for stdout")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    args = parser.parse_args(words)
    for file in (args.html, args.csv):
        if file not in (None, "-"):
            check_free(Path(file), force=args.force)
    try:
        summary = _read(args.run)
    except (FileError, UsageError) as error:
        if args.run is None or not JOB.fullmatch(args.run):
            raise
        inside = find_run_inside(args.run)
        if inside is None:
            return _report_job(args, error)
        summary = _read(str(inside.path))
    job = None if args.csv is not None else join_job(summary)
    if args.html is not None:
        _write_html(summary, job, args.html, args.force)
    if args.csv is not None:
        _write_csv(summary, args.csv, args.force)
    if args.html is not None or args.csv is not None:
        sys.stdout.flush()
        return 0
    if args.json:
        print(render_run_json(summary, job))
    else:
        text = render_run(summary, args.lines, args.findings, job=job) + "\n"
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    print(f"next: {next_command(summary)}", file=sys.stderr)
    return 0


def _report_job(args: argparse.Namespace, error: StokerError) -> int:
    """Report a job that left no run folder here: what Slurm accounted is all there is."""
    try:
        attempts = last_attempts(read_attempts(args.run))
    except SlurmError:
        attempts = []
    if not attempts or args.html is not None or args.csv is not None:
        raise error
    text = (
        json.dumps(jobs_json(attempts), indent=2) if args.json else render_jobs(attempts, width())
    )
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    print(
        "note: no run folder here is of this job, so where its time went is not known; "
        "`stoker submit` keeps one\nnext: stoker submit YOUR_SCRIPT.py",
        file=sys.stderr,
    )
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


def _write_html(summary: Summary, job: Joined | None, file: str, force: bool) -> None:
    # Most reports are text: what only the page needs is not read for them.
    from stoker.advise.findings import find
    from stoker.advise.spent import find_spent
    from stoker.advise.stages import stages_of
    from stoker.report.page import render_page

    text = render_page(summary, find(summary), stages_of(summary), find_spent(summary), job)
    write_file(Path(file), text, force=force)
    print(f"wrote {file} ({len(text.encode()) / 1000:,.0f} kB)", file=sys.stderr)


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
