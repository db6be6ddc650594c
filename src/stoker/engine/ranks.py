"""Start several processes side by side on this machine, each with variables of its own.

Run as a program, apart from Stoker itself: `python -I ranks.py JSON`, which holds the command and
one set of variables for each rank. It ends as the whole does: with the code of the
first rank that fails, or when the leading ranks have ended. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
)  # fmt: skip
# How long the others may take to end when one has failed.
GRACE_S = 10.0
LOOK_S = 0.05
KEPT_LINES = 12
PR_SET_PDEATHSIG = 1


class Rank:
    """One process, and the end of what it says on standard error."""

    def __init__(self, told: dict[str, Any], command: list[str], stdin: Any) -> None:
        self.name: str = told["name"]
        # The training is over when the leaders are; servers and workers that wait are then ended.
        self.leads: bool = told.get("leads", True)
        self.lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._rest = b""
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **told["env"]},
            stdin=stdin,
            stderr=subprocess.PIPE,
            # A Ctrl-C reaches us alone, and we pass it on once.
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )

    def read(self) -> bool:
        """Pass on what it says, whole lines at a time; return whether it may say more."""
        assert self.process.stderr is not None
        data = os.read(self.process.stderr.fileno(), 65536)
        head, newline, rest = (self._rest + data).rpartition(b"\n")
        if not data or len(rest) > 4096 or b"\r" in rest:
            head, newline, rest = head + newline + rest, b"", b""
        self._rest = rest
        if head:
            _write(head + newline)
            self.lines.extend(head.splitlines())
        return bool(data)

    def signal(self, number: int) -> None:
        """Signal it and whatever it has started."""
        with suppress(OSError):
            os.killpg(self.process.pid, number)

    def last_words(self) -> str:
        """Return the end of what it said, from its last traceback on."""
        lines = [line.decode(errors="replace") for line in self.lines]
        starts = [index for index, line in enumerate(lines) if line.startswith("Traceback")]
        return "\n".join(f"    {line}" for line in lines[starts[-1] if starts else 0 :])


def run(told: dict[str, Any]) -> int:
    """Run all ranks and return the exit code of the whole."""
    pending: list[int] = []
    for number in PASSED_ON:
        signal.signal(number, lambda each, _: pending.append(each))
    # Only the first may read what is typed.
    ranks = [
        Rank(each, told["command"], None if index == 0 else subprocess.DEVNULL)
        for index, each in enumerate(told["ranks"])
    ]
    code = _attend(ranks, pending)
    for rank in ranks:
        with suppress(OSError):
            os.set_blocking(rank.process.stderr.fileno(), False)  # type: ignore[union-attr]
            while rank.read():
                pass
    return code


def _attend(ranks: list[Rank], pending: list[int]) -> int:
    """Return the code of the first that fails, or 0 when all leaders have ended."""
    selector = selectors.DefaultSelector()
    for rank in ranks:
        selector.register(rank.process.stderr, selectors.EVENT_READ, rank)  # type: ignore[arg-type]
    code: int | None = None
    is_over, deadline = False, 0.0
    while any(rank.process.poll() is None for rank in ranks):
        for key, _ in selector.select(LOOK_S):
            if not key.data.read():
                selector.unregister(key.fileobj)
        if not selector.get_map():
            time.sleep(LOOK_S)
        while pending:
            number = pending.pop(0)
            for rank in ranks:
                rank.signal(number)
        if not is_over:
            # In this order: whoever fails between the two is seen in the next round.
            is_done = all(rank.process.poll() is not None for rank in ranks if rank.leads)
            code = _first_failure(ranks)
            if code is not None or is_done:
                is_over, deadline = True, time.monotonic() + GRACE_S
                _end(ranks, signal.SIGTERM)
        elif time.monotonic() > deadline:
            _end(ranks, signal.SIGKILL)
            deadline += GRACE_S
    return (_first_failure(ranks) or 0) if code is None and not is_over else code or 0


def _first_failure(ranks: list[Rank]) -> int | None:
    for rank in ranks:
        code = rank.process.poll()
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            _say(f"{rank.name} ended with {how}; the others are stopped")
            if rank.lines:
                _say(f"its last words:\n{rank.last_words()}")
            return code
    return None


def _end(ranks: list[Rank], number: int) -> None:
    for rank in ranks:
        if rank.process.poll() is None:
            rank.signal(number)


def _say(text: str) -> None:
    _write(f"stoker: {text}\n".encode())


def _write(data: bytes) -> None:
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def _end_as(code: int) -> None:
    """End with a code, or of the signal that ended the rank."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    _end_as(run(json.loads(sys.argv[1])))
