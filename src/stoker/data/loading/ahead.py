"""Work that threads do ahead of whoever wants it, handed over in its order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any


class Job:
    """Pieces that any threads may do, and what joins them: done by whoever ends last."""

    def __init__(
        self, pieces: Sequence[Callable[[], Any]], join: Callable[[list[Any]], Any]
    ) -> None:
        self.pieces, self._join = pieces, join
        self._made: list[Any] = [None] * len(pieces)
        self._errors: list[BaseException | None] = [None] * len(pieces)
        self._left = len(pieces)
        self._lock = threading.Lock()
        self.done: Future[Any] = Future()

    def run(self) -> Any:
        """Do everything here and now."""
        return self._join([piece() for piece in self.pieces])

    def work(self, at: int) -> None:
        """Do one piece; after the last one, `done` has the result or the first piece's error."""
        try:
            self._made[at] = self.pieces[at]()
        except BaseException as error:
            self._errors[at] = error
        with self._lock:
            self._left -= 1
            if self._left:
                return
        try:
            # Not the first in time: the same error each time.
            for first in filter(None, self._errors):
                raise first
            self.done.set_result(self._join(self._made))
        except BaseException as error:
            self.done.set_exception(error)


def in_order(jobs: Iterable[Job], num_threads: int, ahead: int) -> Iterator[Any]:
    """Yield the result of each job, in their order, while threads work on the next `ahead` ones."""
    if num_threads < 1:
        yield from (job.run() for job in jobs)
        return
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-loader")

    def begin(job: Job) -> Future[Any]:
        for at in range(len(job.pieces)):
            pool.submit(job.work, at)
        return job.done

    rest = map(begin, jobs)
    try:
        waiting = deque(islice(rest, ahead))
        while waiting:
            made = waiting.popleft().result()
            waiting.extend(islice(rest, 1))
            yield made
    finally:
        # Also when a training breaks out of its loop.
        pool.shutdown(wait=True, cancel_futures=True)
