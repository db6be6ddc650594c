"""What is common to programs that train one loop with planted delays: words, turns, the last line."""

import argparse
import fcntl
import os
from contextlib import contextmanager
from pathlib import Path


def parse_words(loops):
    """Return the words of the command line; `loops` are the functions of which one is to run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", required=True, choices=[each.__name__ for each in loops])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--busy", action="store_true", help="delays compute instead of sleeping")
    parser.add_argument("--plant", type=parse_plants, default={}, metavar="PLACE=MS,…")
    parser.add_argument("--turn", metavar="FILE", help="train while no other program has it locked")
    parser.add_argument("--ready", type=lambda text: [each for each in text.split(",") if each],
                        default=[], metavar="MODULE,…", help="import before that, if there")  # fmt: skip
    return parser.parse_args()


def parse_plants(text):
    """Return the milliseconds by place: `item=24,forward=6`."""
    pairs = [each.split("=") for each in text.split(",") if each]
    return {place: float(ms) for place, ms in pairs}


@contextmanager
def turn(file):
    """Let one program train at a time, of those that have got ready beside each other."""
    # Of several ranks the first one waits, and the others for it.
    if file is None or os.environ.get("RANK", "0") != "0":
        yield
        return
    with Path(file).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        # Not by closing it: loader workers have it open, too.
        fcntl.flock(lock, fcntl.LOCK_UN)


def train(args, loops, delays):
    """Run the loop that was asked for, and print what was planted."""
    {each.__name__: each for each in loops}[args.loop](args)
    told = delays.told(loop=args.loop, workers=args.workers, rank=int(os.environ.get("RANK", 0)))
    # In one piece: two ranks may end at the same moment.
    os.write(1, f"{told}\n".encode())
