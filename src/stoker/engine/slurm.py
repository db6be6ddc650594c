"""The only door to Slurm: its commands, with explicit fields, in few calls of bounded time."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from stoker.errors import SlurmError

# How long one call may take, and the pauses before it is tried again.
CALL_S = 60.0
PAUSES_S = (1.0, 2.0, 4.0)
# No name of a job, a node or an account holds this character.
SEPARATOR = "\x1f"
# The controller or the data base is away, or too busy to answer: it may be back in a moment.
AWAY = re.compile(
    r"unable to contact|connection refused|communication connection failure|connect failure"
    r"|unable to (establish|connect)|problem talking to|transport endpoint|host is down"
    r"|no route to host|network is unreachable|resource temporarily unavailable",
    re.IGNORECASE,
)
# Here the question may have arrived, and only the answer is lost.
UNANSWERED = re.compile(r"timed out|zero bytes were transmitted|unexpected message", re.IGNORECASE)
# Its programs are installed, and nobody has said to them where the cluster is.
HOMELESS = re.compile(
    r"configuration source|Unable to process configuration file|Unable to (stat|open) .*slurm\.conf",
    re.IGNORECASE,
)


def call(
    words: Sequence[str],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    is_question: bool = True,
    pauses_s: Sequence[float] = PAUSES_S,
) -> str:
    """Return what a command of Slurm's prints; raises `SlurmError` with what it complains of.

    Where Slurm is away the call is tried again. What may have been carried out is not: only
    questions are asked twice.
    """
    for pause_s in (*pauses_s, None):
        complaint = ""
        try:
            done = subprocess.run(
                words,
                input=stdin,
                env=env,
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=CALL_S,
                check=False,
            )
        except FileNotFoundError:
            raise SlurmError(
                f"there is no `{words[0]}` here",
                why="Slurm's commands are not on PATH",
                fix="log in to a cluster, or `module load slurm`",
            ) from None
        except OSError as error:
            raise SlurmError(
                f"`{words[0]}` cannot be started",
                why=error.strerror or str(error),
                fix=f"try it by hand: {words[0]} --version",
            ) from None
        except subprocess.TimeoutExpired:
            complaint, is_away = f"no answer within {CALL_S:.0f} s", is_question
        else:
            if done.returncode == 0:
                return done.stdout
            complaint = _complaint(words[0], done.stderr or done.stdout)
            is_away = bool(AWAY.search(complaint))
            if UNANSWERED.search(complaint):
                is_away = is_question
            elif not is_away:
                raise _refused(words, complaint)
        if pause_s is None or not is_away:
            raise _away(words, complaint, is_question=is_question)
        time.sleep(pause_s)
    raise AssertionError("the last pause is None")


def rows(output: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Return what a command printed, a row a line, as fields with their names.

    >>> rows("7\\x1ftrain\\n", ["id", "name"])
    [{'id': '7', 'name': 'train'}]
    """
    found = []
    for line in output.splitlines():
        values = [value.strip() for value in line.split(SEPARATOR)]
        if len(values) >= len(fields):
            found.append(dict(zip(fields, values, strict=False)))
    return found


def _complaint(command: str, text: str) -> str:
    """Return what a command wrote to stderr, without its own name before each line."""
    lines = [re.sub(rf"^({command}: )?(error: )?", "", line) for line in text.splitlines()]
    return "; ".join(line for line in lines if line.strip()) or "it says nothing"


def _refused(words: Sequence[str], complaint: str) -> SlurmError:
    if HOMELESS.search(complaint):
        return SlurmError(
            "Slurm's programs are here, but no cluster",
            why="no slurm.conf can be read: neither in its place, nor by $SLURM_CONF or the network",
            fix="log in to a login node of the cluster; `stoker run` runs it on this machine",
        )
    return SlurmError(
        f"`{words[0]}` refuses",
        why=complaint,
        fix=f"try it by hand: {words[0]} --help; `stoker cluster show` tells what the site allows",
    )


def _away(words: Sequence[str], complaint: str, *, is_question: bool) -> SlurmError:
    unsure = "" if is_question else "; it may have been carried out: see `stoker jobs` first"
    return SlurmError(
        "Slurm does not answer",
        why=f"{words[0]}: {complaint}",
        fix=f"try again in some minutes{unsure}; `scontrol ping` tells whether the controller is back",
    )
