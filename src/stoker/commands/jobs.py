"""`stoker jobs`: your jobs in the queue, and those that ended of late."""

from __future__ import annotations

import json
import sys

from stoker.commands.parser import Parser, add_json
from stoker.engine.queue import list_jobs
from stoker.report.jobs import (
    jobs_json,
    next_command,
    render_jobs,
    render_left_out,
    shown_jobs,
    used_by,
)
from stoker.watch.submitted import submitted_runs

DESCRIPTION = """\
Show your jobs: those that wait, those that run, and the last few that ended within a day.
Two questions to Slurm, however many jobs there are.

  stoker jobs
  stoker jobs --all
"""


def run(words: list[str]) -> int:
    """List the user's jobs."""
    parser = Parser("jobs", DESCRIPTION)
    parser.add_argument("--all", action="store_true", help="every job that ended in the last day")
    add_json(parser)
    args = parser.parse_args(words)
    listing = list_jobs()
    jobs, left_out = shown_jobs(listing, is_all=args.all or args.json)
    used = used_by(jobs, submitted_runs())
    if args.json:
        print(json.dumps(jobs_json(jobs, listing.notes, used), indent=2))
    elif jobs:
        text = render_jobs(jobs, used) + "\n"
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    else:
        print("note: no job of yours waits, runs, or ended in the last day", file=sys.stderr)
    sys.stdout.flush()
    for note in listing.notes:
        print(f"note: {note}", file=sys.stderr)
    if left_out:
        print(render_left_out(left_out), file=sys.stderr)
    print(f"next: {next_command(jobs)}", file=sys.stderr)
    return 0
