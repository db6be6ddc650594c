"""`stoker cancel`: stop jobs, one at once, several after a question."""

from __future__ import annotations

import json
import sys

from stoker.commands.parser import Parser, add_json
from stoker.engine.cancel import cancel, find_own
from stoker.errors import UsageError
from stoker.report.jobs import cancelled_words
from stoker.units import plural
from stoker.watch.submitted import find_submitted

DESCRIPTION = """\
Cancel jobs of yours: waiting ones leave the queue, running ones are stopped. An array is one
job; 1234_7 is one element of it. For several jobs you are asked first.

  stoker cancel 1234
  stoker cancel 1234_7 1240 --yes
"""


def run(words: list[str]) -> int:
    """Cancel jobs."""
    parser = Parser("cancel", DESCRIPTION)
    parser.add_argument("job", nargs="+", help="a job's or run's id")
    parser.add_argument("--yes", action="store_true", help="do not ask, also for several jobs")
    add_json(parser)
    args = parser.parse_args(words)
    live, ended = find_own([find_submitted(each)[0] for each in args.job])
    for job in ended:
        print(f"note: job {job} has ended already", file=sys.stderr)
    if len(live) > 1 and not args.yes:
        for job, elements in live.items():
            print(cancelled_words(job, elements, "to cancel"), file=sys.stderr)
        if not _is_agreed(len(live)):
            print("nothing was cancelled", file=sys.stderr)
            return 1
    if live:
        cancel(list(live))
    if args.json:
        print(json.dumps({"cancelled": list(live), "ended_before": ended}, indent=2))
    else:
        for job, elements in live.items():
            print(cancelled_words(job, elements, "cancelled"))
    sys.stdout.flush()
    print("next: stoker jobs", file=sys.stderr)
    return 0


def _is_agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{plural(count, 'job')} would be cancelled",
            why="for several jobs you are asked first, and here nobody can answer",
            fix="stoker cancel --yes …, or one job at a time",
        )
    print(f"cancel these {plural(count, 'job')}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
