"""Filling tars with small files, many at once: what _intake.c can do. The same bytes as without it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import NamedTuple

from stoker.data.block import Block
from stoker.data.formats import Writer
from stoker.data.formats.tar import BLOCK, TarWriter
from stoker.data.packing.fill import SPARE, SampleFiller
from stoker.data.packing.reading import TASK_BYTES, Read, read_ahead
from stoker.data.sample import Sample

intake: ModuleType | None
try:
    intake = import_module("stoker.data.packing._intake")
except ImportError:  # It was not compiled on this machine.
    intake = None

MAX_SAMPLES = 512


class Run(NamedTuple):
    """Samples as they stand in a tar: from `start` to `end` of a buffer, which offsets count in."""

    block: Block
    start: int
    end: int
    buffer: bytearray

    def split(self, at: int) -> tuple[Run, Run]:
        """Return the samples before one of them, and the others."""
        block, count = self.block, len(self.block.labels)
        middle = block.offsets[sum(block.counts[:at])] - BLOCK
        return (
            Run(block.cut(0, at), self.start, middle, self.buffer),
            Run(block.cut(at, count), middle, self.end, self.buffer),
        )


class BulkFiller(SampleFiller):
    """Fills tars from files: whole runs where they can be had, sample by sample elsewhere."""

    def __init__(
        self,
        samples: Callable[[int], Iterable[Sample]],
        reads: Callable[[int, bool], Generator[Read, None, None]],
        shard_bytes: int,
        workers: int,
    ) -> None:
        super().__init__(reads, "tar", shard_bytes)
        self._samples, self._workers = samples, workers
        self._work: Generator[Run | Read, None, None] | None = None
        self._now: Run | Read | None = None

    def begin(self, at: int) -> None:
        """Read from a sample on."""
        self.close()
        self._work = _work(iter(self._samples(at)), self._workers)
        self._now = next(self._work, None)

    def has_more(self) -> bool:
        """Tell whether a sample waits."""
        return self._now is not None

    def fill(self, out: Writer, name: str) -> Iterator[Block]:
        """Write samples until the archive is as large as it should be."""
        assert isinstance(out, TarWriter)
        assert self._work is not None
        end = 0
        while self._now is not None:
            fitting, left = self._split(self._now, out.position, end)
            if fitting is not None:
                block = self._write(out, fitting)
                end = block.offsets[-1] + block.sizes[-1]
                yield block
            if left is not None:
                self._now = left
                return
            self._now = next(self._work, None)

    def close(self) -> None:
        """End the threads that read."""
        super().close()
        if self._work is not None:
            self._work.close()
        self._work = None

    def _split(
        self, now: Run | Read, position: int, end: int
    ) -> tuple[Run | Read | None, Run | Read | None]:
        """Return what fits into an archive of which the last part ends here, and what does not."""
        if isinstance(now, Read):
            fits = not end or self._fits([each.size for each in now.contents], end)
            return (now, None) if fits else (None, now)
        count = self._fitting(now, position - now.start, end)
        if 0 < count < len(now.block.labels):
            return now.split(count)
        return (now, None) if count else (None, now)

    def _fitting(self, run: Run, base: int, end: int) -> int:
        """Return how many samples of a run fit: as many as if they came one by one."""
        block, part = run.block, 0
        # Most runs fit as they are.
        if base + run.end + SPARE <= self._shard_bytes:
            return len(block.labels)
        for at, count in enumerate(block.counts):
            mine = range(part, part + count)
            part += count
            sizes = [block.sizes[each] for each in mine if not block.is_made(each)]
            if end and not self._fits(sizes, end):
                return at
            end = base + block.offsets[part - 1] + block.sizes[part - 1]
        return len(block.labels)

    def _write(self, out: TarWriter, fitting: Run | Read) -> Block:
        if isinstance(fitting, Read):
            return Block.of([self._add(out, fitting)])
        base = out.position - fitting.start
        with memoryview(fitting.buffer) as view:
            out.add_blocks(view[fitting.start : fitting.end])
        return fitting.block.moved(base)


def _work(samples: Iterator[Sample], workers: int) -> Generator[Run | Read, None, None]:
    """Yield the samples in their order, some tasks ahead; buffers are used again."""
    waiting: deque[tuple[Future[list[Sample]], Future[Run]]] = deque()
    buffers = [bytearray(TASK_BYTES) for _ in range(workers + 2)]
    count = 16
    # One thread finds the samples, others read them, and whoever asked for them writes.
    with ThreadPoolExecutor(1) as finder, ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while buffers:
                    task = finder.submit(_take, samples, count)
                    waiting.append((task, pool.submit(_run_task, task, buffers.pop())))
                task, future = waiting.popleft()
                run = future.result()
                if not task.result():
                    return
                if done := len(run.block.labels):
                    count = int(min(max(TASK_BYTES * 0.7 * done / run.end, 1), MAX_SAMPLES))
                yield from _with_left(run, task.result())
                buffers.append(run.buffer)
        finally:
            for both in waiting:
                for each in both:
                    each.cancel()


def _take(samples: Iterator[Sample], count: int) -> list[Sample]:
    return list(islice(samples, count))


def _run_task(task: Future[list[Sample]], buffer: bytearray) -> Run:
    return _run(task.result(), buffer)


def _run(samples: list[Sample], buffer: bytearray) -> Run:
    """Write samples into a buffer until one does not fit or is odd."""
    assert intake is not None
    end, columns = intake.tar_samples(samples, buffer)
    return Run(Block.load(columns), 0, end, buffer)


def _with_left(run: Run, samples: list[Sample]) -> Iterator[Run | Read]:
    """Yield all samples of a task: the run, and whatever it does not have of them."""
    while True:
        done = len(run.block.labels)
        if done:
            yield run
        elif samples:  # It is odd, or does not fit into a buffer.
            yield from read_ahead(samples[:1], 1)
            done = 1
        samples = samples[done:]
        if not samples:
            return
        run = _run(samples, run.buffer)
