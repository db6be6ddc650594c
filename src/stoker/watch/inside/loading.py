"""What loading takes a batch: time on a core, time waiting for one, and the files it opens.

The rest is waiting for something else, such as storage. Only some batches are looked at, at most
twenty a second, and one or two where most steps pass by (passing.py); of workers, what they did
since the last look.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .process import Watched

# A look costs about 20 µs, and one for each worker.
LOOK_S = 0.05
LOOK_WORKERS_S = 0.5
# Where there are more workers than this, these stand for all.
MAX_WORKERS = 16
NANO = 1e-9

Times = tuple[float, float]


class Loading:
    """The loads of one process, or of its workers."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._timeline = watched.timeline
        # Nothing is looked at before this moment of the timeline.
        self.due = 0.0
        self._iterator = 0
        self._last: tuple[float, dict[int, Times]] | None = None

    def begin(self, iterator: Any) -> tuple[float, Times, int] | None:
        """A batch is asked for; return what to end with if it is loaded right here."""
        try:
            workers = getattr(iterator, "_workers", None)
            if workers is not None:
                self._look_at_workers(iterator, workers)
                return None
            self.due = self._timeline.last + LOOK_S
            times = self._read("thread-self")
            return None if times is None else (self._timeline.clock(), times, self._opens())
        except Exception as error:
            self._give_up(error)
            return None

    def end(self, begun: tuple[float, Times, int]) -> None:
        """The batch is there."""
        try:
            began, before, opens = begun
            wall, opened = self._timeline.clock() - began, self._opens() - opens
            after = self._read("thread-self")
            if after is not None:
                self._add(wall, after[0] - before[0], after[1] - before[1])
                self._timeline.block.add("loading.opens", opened)
        except Exception as error:
            self._give_up(error)

    def _look_at_workers(self, iterator: Any, workers: Any) -> None:
        now = self._timeline.clock()
        self.due = now + LOOK_WORKERS_S
        times = {each.pid: read for each in workers[:MAX_WORKERS] if (read := self._read(each.pid))}
        last, self._last = self._last, (now, times)
        if last is None or self._iterator != id(iterator) or last[1].keys() != times.keys():
            self._iterator = id(iterator)
            return
        for pid, (core, queue) in times.items():
            before = last[1][pid]
            self._add(now - last[0], core - before[0], queue - before[1])

    def _add(self, wall: float, core: float, queue: float) -> None:
        block = self._timeline.block
        block.add("loading.wall", wall)
        block.add("loading.core", core)
        block.add("loading.queue", queue)

    def _read(self, task: int | str) -> Times | None:
        # Our own files are none of the program's.
        before = self._watched.opens.count
        times = read_times(task)
        self._watched.opens.count = before
        return times

    def _opens(self) -> int:
        return self._watched.opens.count

    def _give_up(self, error: Exception) -> None:
        self.due = float("inf")
        self._watched.give_up_on("what loading waits for", error)


def read_times(task: int | str) -> Times | None:
    """Return the seconds that a thread was on a core and waited for one; None if untold."""
    try:
        handle = os.open(f"/proc/{task}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has ended, or the kernel does not count this
        return None
    try:
        words = os.read(handle, 100).split()
    finally:
        os.close(handle)
    return int(words[0]) * NANO, int(words[1]) * NANO
