"""`stoker top`: a run while it goes on, from another terminal."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable

from stoker.commands.parser import Parser
from stoker.report.live import Follower, render_top
from stoker.report.run import is_running, run_name
from stoker.watch.folder import find_run
from stoker.watch.summary import Summary

DESCRIPTION = """\
Show a run while it goes on: step time and phases of each rank, CPU, memory and GPUs, and
the last five minutes. Ends with the run; Ctrl-C leaves it, and the run goes on.

  stoker top
  stoker top .stoker/runs/20261115-065520-train --interval 5
"""

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
# Faster than the readings come makes no sense.
MIN_INTERVAL_S = 0.1


def run(words: list[str]) -> int:
    """Watch one run."""
    parser = Parser("top", DESCRIPTION)
    parser.add_argument("run", nargs="?", help="a run's id or folder (default: the newest here)")
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between screens"
    )
    args = parser.parse_args(words)
    folder = find_run(args.run)
    follower = Follower(folder)
    is_once = args.once or not sys.stdout.isatty()
    try:
        summary = watch(follower.read, once=is_once, interval_s=args.interval)
    except KeyboardInterrupt:
        print()
        return 0
    verb = "top" if is_running(summary) else "report"
    print(f"next: stoker {verb} {run_name(folder.path)}", file=sys.stderr)
    return 0


def watch(
    read: Callable[[], Summary],
    *,
    once: bool,
    interval_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Summary:
    """Draw screens until the run ends, or just one; return what was drawn last."""
    while True:
        summary = read()
        size = shutil.get_terminal_size((100, 40))
        frame = render_top(summary, size.columns, size.lines - 1)
        if not once:
            lines = frame.split("\n")
            frame = HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in lines) + CLEAR_BELOW
        else:
            frame += "\n"
        sys.stdout.buffer.write(frame.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
        if once or not is_running(summary):
            return summary
        sleep(interval_s)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"`{text}` is not between {MIN_INTERVAL_S} and 3600 s")
    return seconds
