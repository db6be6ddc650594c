"""What people type: one file per verb, no logic.

`main` imports the one verb that is asked for, so that `stoker --help` costs little more
than Python itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Every verb with its one line of help: what `stoker --help` prints without importing them.
VERBS = {
    "run": "run a training script unchanged, and show where its time went",
    "report": "what a run did: where its time went, GPUs, CPUs, slowest lines",
    "compare": "two runs side by side: what differs, and whether it is more than noise",
    "top": "watch a run from another terminal while it goes on",
    "plan": "what to ask for on a cluster, with a reason for each number, and the script",
    "submit": "plan a job, write its script and give it to Slurm",
    "jobs": "your jobs: waiting, running, and those that ended of late",
    "logs": "what a job writes, of all its ranks or of one",
    "why": "why a job waits, and what would start earlier; or how it ended",
    "cancel": "stop jobs of yours",
    "bench": "how fast ranks talk to each other: collectives, and DDP's buckets",
    "check": "find what is wrong with a batch script",
    "port": "rewrite a one-GPU script for several GPUs, as a diff to review",
    "cluster": "list, show and detect clusters",
    "pack": "put many small files into a few large ones that any tool reads",
    "ls": "what is in a packed data set or an archive",
    "verify": "check every checksum of a data set, and name each bad sample",
    "unpack": "files out of a packed data set or an archive",
    "index": "make archives of others fast to read, without rewriting them",
    "doctor": "what is missing on this machine; what a folder of many files would gain",
    "demo": "a tour of what Stoker does, on this machine",
}

USAGE = """\
usage: stoker VERB [options] …

Stoker takes a training script to a GPU cluster and keeps the GPUs fed.

{verbs}

stoker VERB --help shows the options of a verb. Options come before the script;
everything after the script's name belongs to the script.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--version"], ["-V"]):
        from stoker import __version__

        print(f"stoker {__version__}")
        return 0
    if not words or words[0] in ("--help", "-h", "help"):
        print(render_usage(), end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    return _run(words[0], words[1:])


def render_usage() -> str:
    """Return the help of the whole command."""
    return USAGE.format(verbs="\n".join(f"  {name:<9}{text}" for name, text in VERBS.items()))


def _run(verb: str, words: list[str]) -> int:
    from stoker.errors import StokerError

    try:
        if verb not in VERBS:
            raise _unknown(verb)
        import importlib

        code: int = importlib.import_module(f"stoker.commands.{verb}").run(words)
        return code
    except StokerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`stoker … | head`): nothing is wrong.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        from stoker import __version__

        traceback.print_exc()
        print(
            f"error: Stoker {__version__} has a bug\n"
            "  why: no command line should end in a traceback\n"
            "  fix: please report the lines above with the command that you typed",
            file=sys.stderr,
        )
        return 1


def _unknown(verb: str) -> Exception:
    from stoker.errors import UsageError, nearest

    match = nearest(verb, VERBS)
    return UsageError(
        f"unknown verb `{verb}`",
        why="known are: " + ", ".join(VERBS),
        fix=f"stoker {match} --help" if match else "stoker --help",
    )
