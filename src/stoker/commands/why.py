"""`stoker why`: why a job waits, and what would start earlier; or how it ended."""

from __future__ import annotations

import json
import sys
from datetime import datetime

from stoker.commands.parser import Parser, add_json
from stoker.engine.pending import explain_wait
from stoker.engine.queue import read_end, show_job
from stoker.report.pending import (
    job_json,
    next_command,
    render_end,
    render_running,
    render_wait,
    wait_json,
)
from stoker.watch.submitted import find_submitted

DESCRIPTION = """\
Say why a job waits: what it waits for, with the numbers, when it should start, and what would
start earlier. Of a job that runs: since when. Of one that has ended: how, and what to do.

  stoker why 1234
  stoker why 1234_7 --no-try
"""


def run(words: list[str]) -> int:
    """Explain one job."""
    parser = Parser("why", DESCRIPTION)
    parser.add_argument("job", nargs="?", help="a job's or run's id (default: the newest here)")
    parser.add_argument(
        "--no-try", action="store_true", help="do not ask Slurm when other requests would start"
    )
    add_json(parser)
    args = parser.parse_args(words)
    job, _ = find_submitted(args.job)
    waiting = [each for each in show_job(job) if each.get("JobState") == "PENDING"]
    if waiting:
        wait = explain_wait(waiting[0], try_others=not args.no_try)
        value, text = wait_json(wait), render_wait(wait, datetime.now())
        following = next_command(wait)
    else:
        found = read_end(job)
        ended = [each for each in found if each.is_ended]
        # Of an array the elements that went wrong are those that one asks about.
        wrong = [each for each in ended if each.state != "COMPLETED"]
        chosen = (wrong or [each for each in found if not each.is_ended] or ended)[0]
        value = job_json(chosen)
        text = render_end(chosen) if chosen.is_ended else render_running(chosen)
        following = f"stoker logs {'' if chosen.is_ended else '-f '}{chosen.id}"
    if args.json:
        print(json.dumps(value, indent=2))
    else:
        sys.stdout.buffer.write((text + "\n").encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    print(f"next: {following}", file=sys.stderr)
    return 0
