"""Reading of a source's bytes, some samples ahead of whoever writes them, within a bound."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from stat import S_ISREG
from typing import NamedTuple

from stoker.data.checksum import crc32
from stoker.data.sample import CHUNK, Content, File, Sample
from stoker.errors import DataError, FileError

# What one task may hold in memory. Larger parts are streamed, in pieces that stay in the caches.
TASK_BYTES = 2 << 20
MAX_TASK_SAMPLES = 256
# Samples that take longer, or are larger, are read by threads.
SLOW_S, SMALL = 150e-6, 32 << 10


class Read(NamedTuple):
    """A sample with its bytes."""

    sample: Sample
    contents: tuple[Content, ...]


def read_ahead(
    samples: Iterable[Sample], workers: int, *, only_sizes: bool = False
) -> Generator[Read, None, None]:
    """Yield the samples in their order with their bytes, read by threads."""
    rest, count = iter(samples), 8
    # Threads pay where reading waits or gives up the interpreter's lock for long. Small files
    # that are in memory are read faster without: found out as it goes.
    while task := list(islice(rest, count)):
        start = time.perf_counter()
        done = _read_task(task, only_sizes)
        each_s = (time.perf_counter() - start) / len(done)
        count, mean = _next_count(done)
        yield from done
        if each_s > SLOW_S or mean > SMALL:
            yield from _read_threaded(rest, count, workers, only_sizes)
            return


def _read_threaded(
    rest: Iterator[Sample], count: int, workers: int, only_sizes: bool
) -> Generator[Read, None, None]:
    waiting: deque[Future[list[Read]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                while len(waiting) <= 2 * workers and (task := list(islice(rest, count))):
                    waiting.append(pool.submit(_read_task, task, only_sizes))
                if not waiting:
                    return
                done = waiting.popleft().result()
                count, _ = _next_count(done)
                yield from done
        finally:
            for each in waiting:
                each.cancel()


def _next_count(done: list[Read]) -> tuple[int, float]:
    """Return how many samples the next task may have, and the mean size of these."""
    mean = sum([each.size for read in done for each in read.contents]) / len(done)
    return int(min(max(TASK_BYTES // 2 / (mean + 1), 1), MAX_TASK_SAMPLES)), mean


def _read_task(samples: list[Sample], only_sizes: bool) -> list[Read]:
    left = 0 if only_sizes else TASK_BYTES
    found = []
    for sample in samples:
        contents = []
        for file in sample.files:
            content = _read(file, left)
            left -= 0 if content.data is None else content.size
            contents.append(content)
        found.append(Read(sample, tuple(contents)))
    return found


def _read(file: File, limit: int) -> Content:
    if file.held is not None:
        return file.held.content(file)
    try:
        _refuse_odd(file)
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        stat = os.fstat(descriptor)
        size = len(file.head) + (stat.st_size if file.offset is None else file.size)
        if size > limit:
            return Content(
                file.extension, size, None, lambda: _ahead(_stream(file, stat)), stat.st_mtime_ns
            )
        data = _whole(file, descriptor, stat)
        return Content(file.extension, size, data, None, stat.st_mtime_ns, crc=crc32(data))
    except OSError as error:
        raise _unreadable(file, error) from None
    finally:
        os.close(descriptor)


def _whole(file: File, descriptor: int, stat: os.stat_result) -> bytes:
    """Return all bytes of a part; of most files they come at once."""
    if file.offset is None and file.packed is None and not file.head:
        data, now = os.pread(descriptor, stat.st_size, 0), os.fstat(descriptor)
        if len(data) == stat.st_size == now.st_size and now.st_mtime_ns == stat.st_mtime_ns:
            return data
    return b"".join(_chunks(file, descriptor, stat))


def stream(file: File) -> Iterator[bytes]:
    """Yield the bytes of a part, whatever its size."""
    if file.held is not None:
        yield from file.held.content(file).chunks()
        return
    try:
        stat = _refuse_odd(file)
    except OSError as error:
        raise _unreadable(file, error) from None
    yield from _stream(file, stat)


def _stream(file: File, stat: os.stat_result) -> Iterator[bytes]:
    try:
        with open(file.path, "rb", buffering=0) as opened:  # noqa: PTH123
            yield from _chunks(file, opened.fileno(), stat)
    except OSError as error:
        raise _unreadable(file, error) from None


def _ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same, and have the next read meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = pool.submit(next, chunks, None)
            yield chunk


def _chunks(file: File, descriptor: int, stat: os.stat_result) -> Iterator[bytes]:
    """Yield exactly the bytes that were promised, or say that the file changed meanwhile."""
    if file.head:
        yield file.head
    if file.packed is not None:
        yield from _inflated(file, descriptor)
    else:
        at = file.offset or 0
        end = at + (stat.st_size if file.offset is None else file.size)
        while at < end:
            chunk = os.pread(descriptor, min(CHUNK, end - at), at)
            if not chunk:
                break
            at += len(chunk)
            yield chunk
        if at != end:
            raise _changed(file)
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (stat.st_size, stat.st_mtime_ns):
        raise _changed(file)


def _inflated(file: File, descriptor: int) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(-15)
    at, end, left = file.offset or 0, (file.offset or 0) + (file.packed or 0), file.size
    try:
        while left and (at < end or unpacker.unconsumed_tail):
            data = unpacker.unconsumed_tail
            if not data:
                data = os.pread(descriptor, min(CHUNK, end - at), at)
                at += len(data)
            chunk = unpacker.decompress(data, min(CHUNK, left))
            left -= len(chunk)
            yield chunk
            if not data:
                break
    except zlib.error:
        left = -1
    if left:
        raise DataError(
            f"`{file.path}` is damaged",
            why=f"the compressed bytes at {file.offset:,} cannot be read",
            fix="copy it again from where it came",
        )


def _refuse_odd(file: File) -> os.stat_result:
    """Raise FileError if a path leads to a device or a pipe, which would be waited for."""
    stat = os.stat(file.path)  # noqa: PTH116  millions of paths
    if not S_ISREG(stat.st_mode):
        raise FileError(
            f"cannot read `{file.path}`",
            why="it is a folder, a device or a pipe, or a link to one",
            fix="take it away, then give the same command again: it goes on where it was",
        )
    return stat


def _unreadable(file: File, error: OSError) -> FileError:
    return FileError(
        f"cannot read `{file.path}`",
        why=error.strerror or str(error),
        fix="put it right, then give the same command again: it goes on where it was",
    )


def _changed(file: File) -> DataError:
    return DataError(
        f"`{file.path}` changed while it was read",
        why="its size or its time is not what it was: somebody writes to it",
        fix="wait until it is whole, then give the same command again: it goes on where it was",
    )
