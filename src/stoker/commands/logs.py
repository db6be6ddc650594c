"""`stoker logs`: what a job writes, of all its ranks or of one."""

from __future__ import annotations

import sys

from stoker.commands.parser import Parser, typed
from stoker.engine.end import End
from stoker.engine.logs import Source, follow
from stoker.engine.output import job_outputs
from stoker.engine.queue import read_end
from stoker.errors import StokerError, UsageError
from stoker.report.jobs import ending_words
from stoker.report.log import chosen_logs, seen, whole_logs
from stoker.units import parse_count
from stoker.watch.submitted import find_submitted

DESCRIPTION = """\
Show what a job wrote: of a job that Stoker submitted a line at a time with its rank before it,
of any other its output file. With -f, go on until the job ends, over requeues too.

  stoker logs
  stoker logs -f 1234
  stoker logs 1234_7 --rank 3 -n 100
"""


def run(words: list[str]) -> int:
    """Copy a job's logs to stdout."""
    parser = Parser("logs", DESCRIPTION)
    parser.add_argument("job", nargs="?", help="a job's or run's id (default: the newest here)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("--rank", type=typed(parse_count), metavar="N", help="only this rank")
    parser.add_argument(
        "-n",
        "--lines",
        type=typed(parse_count),
        metavar="N",
        help="begin N lines before the end of each log",
    )
    args = parser.parse_args(words)
    job, submitted = find_submitted(args.job)
    end = End(job)
    if submitted is None:
        if args.rank is not None:
            raise _no_ranks(job)
        sources, wanted = whole_logs(job_outputs(job), args.lines)
    else:
        sources, wanted = chosen_logs(submitted, job, args.rank, args.lines)
    has_any = False
    try:
        for data in follow(sources, wanted, end if args.follow else None):
            has_any = has_any or bool(data)
            sys.stdout.buffer.write(seen(data) if sys.stdout.isatty() else data)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        print(f"\nnext: stoker why {job}", file=sys.stderr)
        return 0
    _say_end(job, end if args.follow else None, sources(), has_any=has_any)
    return 0


def _say_end(job: str, end: End | None, sources: list[Source], *, has_any: bool) -> None:
    if not has_any:
        names = ", ".join(str(source.path) for source in sources[:2])
        print(f"note: nothing is written yet, or nothing at all: {names}", file=sys.stderr)
    try:
        jobs = end.last() if end else read_end(job)
    except StokerError:
        jobs = []
    for each in jobs[:5]:
        print(f"job {each.id}: {ending_words(each)}", file=sys.stderr)
    is_ended = all(each.is_ended for each in jobs)
    print(f"next: stoker {'why' if is_ended or end else 'logs -f'} {job}", file=sys.stderr)


def _no_ranks(job: str) -> UsageError:
    return UsageError(
        f"the ranks of job {job} cannot be told apart",
        why="Stoker did not submit it from this folder: there is one file for all of them",
        fix=f"stoker logs {job}",
    )
