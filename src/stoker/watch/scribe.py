"""The scribe of one machine: hears what watched processes say, takes readings, writes the run folder.

It runs beside the training, never in it. When the disk refuses, it stops writing, says so once,
and the training goes on.
"""

from __future__ import annotations

import _socket
import json
import math
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stoker.watch.folder import RunFolder
from stoker.watch.record import end_run
from stoker.watch.series import (
    FINE_STEP_ROWS,
    MAX_COARSE_STEP_ROWS,
    Row,
    SeriesWriter,
    Stat,
)

if TYPE_CHECKING:
    from stoker.watch.sampler import Sampler

# A reading a second; less often where a reading costs more than its share of one core.
INTERVAL_S = 1.0
READING_BUDGET = 0.005
MAX_INTERVAL_S = 30.0
FACTS_EVERY_S = 5.0
# Processes tell every two seconds how many files they opened; who is silent for longer opens none.
NEWS_S = 3.0
MAX_LINES = 300
# A batch script may start any number of small Python programs.
MAX_PROCESSES = 100
SOCKET = "scribe"


def pace(before: float, cost: float) -> float:
    """Return the seconds until the next reading, where the last two took these of the processor.

    One that is dear once, as the first of a GPU's counters is, says nothing of the next.

    >>> pace(0.001, 0.106), pace(0.010, 0.106), pace(0.8, 0.9)
    (1.0, 2.0, 30.0)
    """
    return min(MAX_INTERVAL_S, max(INTERVAL_S, min(before, cost) / READING_BUDGET))


class Running(Protocol):
    """What the scribe attends: a child that can be waited for."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the child may have ended."""

    def poll(self) -> int | None:
        """Return the return code, or None while it runs."""


class Heard:
    """What one watched process has said so far."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.snapshot: dict[str, Any] = {}
        self.writer: SeriesWriter | None = None
        self.label = ""


class Scribe:
    """Writes one machine's part of the run folder."""

    def __init__(
        self, folder: RunFolder, start: float, warn: Callable[[str], None], root_pid: int | None
    ) -> None:
        self.folder = folder
        self.host = os.uname().nodename
        self.start = start
        self.is_writing = True
        self.notes: list[str] = []
        self._warn = warn
        # Readings cover what descends from this process; None: somebody else takes them.
        self._root_pid = root_pid
        self._room, self._socket = _open_room()
        self.address = f"{self._room}/{SOCKET}"
        self._socket.setblocking(False)
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, 4 << 20)
        self._heard: dict[int, Heard] = {}
        # Lines of loader workers and other children, by the process that forked them.
        self._children: dict[int, dict[tuple[str, str, int], list[float]]] = {}
        # Files opened that no reading has told of yet, and a second as the last news had it.
        self._opens, self._opens_s = 0.0, 0.0
        self._has_news, self._silent_s = False, 0.0
        self._has_steps = False
        # What the machine has; without a sampler, somebody else tells of it.
        self._machine: Mapping[str, object] = {}
        self._notes_told: list[str] = []
        # What was told of a run without steps until now.
        self._main: Path | None = None
        self._writer: SeriesWriter | None = None
        self._facts_at = time.monotonic()
        self.on_reading: Callable[[], None] | None = None

    # -- the loop --------------------------------------------------------------------

    def attend(self, child: Running) -> int:
        """Hear, read and write until the child ends; return its code."""
        # Imported once the child runs: the user's program does not wait for it.
        from stoker.watch.sampler import Sampler

        sampler = None if self._root_pid is None else Sampler(self._root_pid)
        if sampler is not None:
            self._machine = sampler.facts()
            self.notes = sampler.notes
            self._write(self._write_machine)
            sampler.read()
        interval, last = INTERVAL_S / 4, time.monotonic()
        cost = 0.0
        while (code := child.poll()) is None:
            timeout = max(0.0, last + interval - time.monotonic())
            ready, _, _ = select.select([self._socket.fileno(), child.fileno()], [], [], timeout)
            if self._socket.fileno() in ready:
                self._hear()
            if child.fileno() in ready:
                os.read(child.fileno(), 100)
            now = time.monotonic()
            if now - last >= interval:
                before, cost = cost, self._read(sampler, now - last)
                interval = pace(before, cost)
                last = now
        self._hear()
        self._read(sampler, time.monotonic() - last)
        if sampler is not None:
            sampler.close()
        return code

    def close(self, code: int, *, is_first: bool = True) -> None:
        """Write what is left, how it ended if that is ours to say, and take the socket away."""
        self._write(self._write_facts)
        if is_first:
            with suppress(OSError):  # there may be room again
                end_run(self.folder, code, self.notes, self.is_writing)
        for writer in (self._writer, *(each.writer for each in self._heard.values())):
            if writer is not None:
                writer.close()
        self._socket.close()
        with suppress(OSError):
            os.unlink(self.address)
            os.rmdir(self._room)

    def _read(self, sampler: Sampler | None, seconds: float) -> float:
        now = time.time() - self.start
        # The clock of a node may be set back while it runs.
        if time.monotonic() - self._facts_at >= FACTS_EVERY_S:
            self._facts_at = time.monotonic()
            self._write(self._write_facts)
        if self.on_reading is not None:
            self.on_reading()
        if sampler is None:
            return 0.0
        began = time.process_time()
        reading = sampler.read()
        if seconds > 0:
            reading["files.opens_s"] = self._opened(seconds)
        cost = time.process_time() - began
        reading["cost.sampler_pct"] = 100 * cost / max(seconds, 1e-3)
        # Once for each second: where readings become dear they are rarer, and weigh as much.
        count = max(1, round(seconds))
        stats = {name: Stat(count, value, 0.0, value) for name, value in reading.items()}
        self._write(lambda: self._samples().append(Row(now - seconds, now, stats)))
        return cost

    def _opened(self, seconds: float) -> float:
        """Return how many files a second are opened: as the last news said, until there are others."""
        self._silent_s += seconds
        if self._has_news:
            self._opens_s = self._opens / max(seconds, min(self._silent_s, NEWS_S))
            self._opens, self._silent_s, self._has_news = 0.0, 0.0, False
        elif self._silent_s > NEWS_S:
            self._opens_s = 0.0
        return self._opens_s

    def _samples(self) -> SeriesWriter:
        if self._writer is None:
            head = {"kind": "samples", "host": self.host, "start": self.start}
            self._writer = SeriesWriter(self.folder.samples(self.host), head)
        return self._writer

    def _write(self, action: Callable[[], object]) -> None:
        """Write, unless the disk has refused before."""
        if not self.is_writing:
            return
        try:
            action()
        except Exception as error:  # whatever is wrong with the disk or us, the program goes on
            self.is_writing = False
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._warn(
                f"recording stopped: {reason}; the program goes on "
                f"({self.folder.path} has what was written until now)"
            )

    # -- what is heard ---------------------------------------------------------------

    def _hear(self) -> None:
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except (BlockingIOError, InterruptedError):
                return
            with suppress(Exception):  # not ours, or damaged: it is refused before it is used
                self._take(json.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        pid = int(message["pid"])
        heard = self._heard.get(pid) or Heard(pid)
        if message["k"] == "steps":
            row, rank = self._row(message), int(message["rank"])
            self._heard[pid] = heard
            self._write(lambda: self._take_steps(heard, rank, row))
        elif message["k"] == "facts":
            check_facts(message)
            self._heard[pid] = heard
            self._opens += max(0, message["opens"] - heard.snapshot.get("opens", 0))
            self._has_news = True
            heard.snapshot = message
        elif message["k"] == "bye":
            if heard.writer is not None:
                self._write(lambda: self._finish(heard))
            elif heard.snapshot.get("child"):
                self._fold(heard)
            elif len(self._heard) > MAX_PROCESSES:
                self._heard.pop(pid, None)

    def _row(self, message: dict[str, Any]) -> Row:
        stats = {name: _stat(*sums) for name, sums in message["sums"].items()}
        first, last = message["t"]
        if not (math.isfinite(first) and math.isfinite(last)):
            raise ValueError("no time")
        return Row(first - self.start, last - self.start, stats)

    def _take_steps(self, heard: Heard, rank: int, row: Row) -> None:
        if heard.writer is None:
            self._forget_main()
            heard.label = self._label(heard, rank)
            head = {"kind": "steps", "host": self.host, "label": heard.label, "start": self.start}
            heard.writer = SeriesWriter(
                self.folder.steps(heard.label), head, MAX_COARSE_STEP_ROWS, FINE_STEP_ROWS
            )
            self._has_steps = True
        heard.writer.append(row)

    def _label(self, heard: Heard, rank: int) -> str:
        label = f"{rank}-{self.host}"
        return f"{label}-{heard.pid}" if self.folder.steps(label).exists() else label

    def _fold(self, heard: Heard) -> None:
        """A child has ended: its lines stay, under the process that it belonged to."""
        kept = self._children.setdefault(int(heard.snapshot["ppid"]), {})
        _add_lines(kept, heard.snapshot["lines"])
        if len(kept) > 2 * MAX_LINES:
            heaviest = sorted(kept, key=lambda key: kept[key][0], reverse=True)[MAX_LINES:]
            for key in heaviest:
                del kept[key]
        del self._heard[heard.pid]

    # -- what is written of each rank ------------------------------------------------

    def _write_machine(self) -> None:
        self._notes_told = list(self.notes)
        self.folder.write(
            self.folder.machine(self.host), {**self._machine, "notes": self._notes_told}
        )

    def _write_facts(self) -> None:
        if self.notes != self._notes_told:
            self._write_machine()
        self._fold_gone()
        for heard in self._heard.values():
            if heard.writer is not None:
                self.folder.write(self.folder.facts(heard.label), self._facts_of(heard))
        if not self._has_steps:
            self._write_main()

    def _fold_gone(self) -> None:
        for heard in list(self._heard.values()):
            is_idle_child = heard.snapshot.get("child") and heard.writer is None
            if is_idle_child and not Path(f"/proc/{heard.pid}").exists():
                self._fold(heard)

    def _finish(self, heard: Heard) -> None:
        """A process that took steps has ended: a run may have any number of them in turn."""
        del self._heard[heard.pid]
        assert heard.writer is not None
        heard.writer.close()
        self._fold_gone()
        self.folder.write(self.folder.facts(heard.label), self._facts_of(heard))
        self._children.pop(heard.pid, None)

    def _write_main(self) -> None:
        """Nobody has taken a step: the process that is busiest with the user's own code is told."""
        known = [
            each for each in self._heard.values() if each.snapshot and not each.snapshot["child"]
        ]
        if not known:
            return
        main = max(known, key=lambda each: sum(row[3] for row in each.snapshot["lines"]))
        main.label = self._label(main, int(main.snapshot["rank"]))
        path = self.folder.facts(main.label)
        if path != self._main:
            self._forget_main()
        self._main = path
        self.folder.write(path, self._facts_of(main))

    def _forget_main(self) -> None:
        if self._main is not None:
            self._main.unlink(missing_ok=True)
            self._main = None

    def _facts_of(self, heard: Heard) -> dict[str, Any]:
        lines: dict[tuple[str, str, int], list[float]] = {}
        for key, pair in self._children.get(heard.pid, {}).items():
            lines[key] = pair[:]
        workers = 0
        for child in self._heard.values():
            if child.snapshot.get("child") and child.snapshot.get("ppid") == heard.pid:
                workers += 1
                _add_lines(lines, child.snapshot["lines"])
        heaviest = sorted(lines, key=lambda key: lines[key][0], reverse=True)[:MAX_LINES]
        worker_lines = [[*key, *(round(each, 3) for each in lines[key])] for key in heaviest]
        return {
            "label": heard.label,
            "host": self.host,
            **{key: value for key, value in heard.snapshot.items() if key not in ("k", "child")},
            "pid": heard.pid,
            "workers": workers,
            "worker_lines": worker_lines,
        }


def check_facts(message: dict[str, Any]) -> None:
    """Raise unless a message has what is needed of it later."""
    _add_lines({}, message["lines"])
    if not isinstance(message["child"], bool) or not math.isfinite(message["opens"]):
        raise ValueError("no facts")
    for name in ("ppid", "rank"):
        int(message[name])


def _add_lines(kept: dict[tuple[str, str, int], list[float]], told: list[list[Any]]) -> None:
    for file, function, line, own, total, *_ in told:
        pair = kept.setdefault((file, function, line), [0.0, 0.0])
        pair[0] += own
        pair[1] += total


def _stat(count: float, total: float, squares: float, largest: float) -> Stat:
    mean = total / count
    return Stat(int(count), mean, math.sqrt(max(0.0, squares / count - mean * mean)), largest)


def _open_room() -> tuple[str, _socket.socket]:
    """Return a folder that only this user can enter, and the socket in it."""
    name = f"stoker-{os.getpid()}-{os.urandom(4).hex()}"
    room = f"{os.environ.get('TMPDIR') or '/tmp'}/{name}"
    try:
        return room, _bound(room)
    except OSError:  # it is full, or its path too long: an address has at most 107 characters
        return f"/tmp/{name}", _bound(f"/tmp/{name}")


def _bound(room: str) -> _socket.socket:
    os.mkdir(room, 0o700)
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        channel.bind(f"{room}/{SOCKET}")
    except OSError:
        channel.close()
        os.rmdir(room)
        raise
    return channel


def say(text: str) -> None:
    """Say one line to the person at the terminal, if there is one."""
    talk(f"stoker: {text}\n")


def talk(text: str) -> None:
    """Write to standard error; one that is closed or full is not our concern."""
    if sys.stderr is None:
        return  # descriptor 2 is closed, or one of our own files
    data = text.encode(errors="backslashreplace")
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
