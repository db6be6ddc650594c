"""Reads many parts of many archives at once: from mapped files, or with pread where that is better.

The copying is done in C without the interpreter's lock where _gather.c was compiled, otherwise
by `plain`.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

from stoker.data import plain
from stoker.data.index import Index
from stoker.data.mounts import is_networked
from stoker.errors import DataError

engine: Any
try:
    # Named at run time: it is not there for the type checker, and may not be there at all.
    engine = __import__("stoker.data._gather", fromlist=["copy"])
except ImportError:
    engine = plain

# Far below the usual limit of 1,024, which is the whole program's.
MAX_OPEN_FILES = 256
# Buffers that are kept for the next batch: a fresh one costs as much as filling it, as the kernel
# clears each page when it is first touched.
MAX_KEPT_BUFFERS = 16
# Smaller ones are not worth a large page.
LARGE_BUFFER = 4 << 20
# A batch that had to wait for more than one part in so many was not in memory: the next ones are
# asked for as a whole before they are copied, which costs as much as copying some kB each.
FEW_WAITS = 16
ASKED_BATCHES = 32


class Gathered(Sequence[memoryview]):
    """The parts of a batch, one after the other in one buffer."""

    def __init__(
        self,
        buffer: memoryview,
        ends: array[int],
        span: range | None = None,
        *,
        is_even: bool = False,
    ) -> None:
        self._whole, self._ends = buffer, ends
        self._span = range(len(ends)) if span is None else span
        # Whether all parts of the whole buffer have the same size.
        self.is_even = is_even

    def __len__(self) -> int:
        return len(self._span)

    @overload
    def __getitem__(self, at: int) -> memoryview: ...
    @overload
    def __getitem__(self, at: slice) -> Gathered: ...
    def __getitem__(self, at: int | slice) -> memoryview | Gathered:
        if isinstance(at, slice):
            return Gathered(self._whole, self._ends, self._span[at], is_even=self.is_even)
        place = self._span[at]
        return self._whole[self._ends[place - 1] if place else 0 : self._ends[place]]

    @property
    def buffer(self) -> memoryview:
        """All bytes of these parts, without gaps. Only of parts that follow each other."""
        if self._span.step != 1 or not self._span:
            return memoryview(b"".join(self))
        first, last = self._span[0], self._span[-1]
        return self._whole[self._ends[first - 1] if first else 0 : self._ends[last]]


class Pool:
    """Buffers that are used again when nobody looks at them any more."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._lock = threading.Lock()
        self._can_count = getattr(sys, "_is_gil_enabled", lambda: True)()
        # What the interpreter counts for a buffer that only a list refers to.
        alone = [bytearray()]
        self._alone = sys.getrefcount(alone[0])

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of this size; what is in it is not defined."""
        if not self._can_count:
            return memoryview(bytearray(size))
        with self._lock:
            for at in range(len(self._all)):
                room = len(self._all[at])
                if size <= room <= 2 * size and sys.getrefcount(self._all[at]) == self._alone:
                    return memoryview(self._all[at])[:size]
            # Batches differ a little in size: the next one is to fit as well.
            room = size + size // 8
            made = engine.memory(room) if room >= LARGE_BUFFER else bytearray(room)
            self._all.append(made)
            if len(self._all) > MAX_KEPT_BUFFERS:
                del self._all[0]
            return memoryview(made)[:size]


class Shards:
    """The archives of a data set, opened when they are first needed."""

    def __init__(self, index: Index, is_mapped: bool | None = None) -> None:
        self.index, self.folder = index, index.path.parent
        self.is_mapped = not is_networked(self.folder) if is_mapped is None else is_mapped
        self._start()

    def _start(self) -> None:
        count = len(self.index.shards)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        # Also of a child's own: CUDA gives it no pinned memory once its parent has used the GPU.
        self._pool: Any = Pool()
        self._lengths = array("Q", [plain.NONE]) * count
        self._mappings: list[memoryview | None] = [None] * count
        self._table: Any = [None] * count if engine is plain else array("Q", bytes(8 * count))
        self._files: OrderedDict[int, _File] = OrderedDict()
        self._asked = 1

    def view(self, part: int) -> memoryview:
        """Return the bytes of a part: of the mapped file itself if it is mapped."""
        if not self.is_mapped:
            return self.read(array("Q", [part]))[0]
        self._lay_out(array("Q", [part]))
        mapping = self._mappings[self.index.shard[part]]
        assert mapping is not None
        start = self.index.offset[part]
        return mapping[start : start + self.index.size[part]]

    def read(self, parts: array[int], threads: int = 1) -> Gathered:
        """Return copies of many parts in one buffer, in the order given.

        So many threads copy what is large; they help only where nobody else does.
        """
        ends, size, is_even = self._lay_out(parts)
        index = self.index
        out = self._pool.take(size)
        ask = self._asked > 0
        if self.is_mapped:
            columns = self._table, index.shard, index.offset
            try:
                waits = engine.copy(self._lengths, *columns, parts, ends, out, ask, threads)
            except IndexError:
                raise damaged(index, "it changed while it was read") from None
            self._note(waits, len(parts))
            return Gathered(out, ends, is_even=is_even)
        files = [self._file(index.shard[part]) for part in parts]
        numbers = array("i", (each.number for each in files))
        early, waits = engine.read(numbers, index.offset, parts, ends, out, ask)
        self._note(waits, len(parts))
        if early >= 0:
            raise self._outside(parts[early])
        return Gathered(out, ends, is_even=is_even)

    def _note(self, waits: int, count: int) -> None:
        if waits * FEW_WAITS > count:
            self._asked = ASKED_BATCHES
        elif self._asked > 0:
            self._asked -= 1

    def check(self, parts: Iterable[int], pieces: Iterable[memoryview]) -> None:
        """Raise DataError if a piece is not what was indexed; without checksums nothing is known."""
        if not self.index.has_checksums:
            return
        for part, piece in zip(parts, pieces, strict=True):
            if zlib.crc32(piece) != self.index.crc[part]:
                path = self._path(self.index.shard[part])
                raise DataError(
                    f"a sample in `{path}` is damaged",
                    why=f"the checksum of the {len(piece):,} bytes at {self.index.offset[part]:,} is wrong",
                    fix=f"stoker verify {self.folder}, then copy or pack the archive again",
                )

    def _lay_out(self, parts: array[int]) -> tuple[array[int], int, bool]:
        if self._pid != os.getpid():
            self._start()  # After a fork: a lock may be held by a thread that is not here.
        index, ends = self.index, array("Q", bytes(8 * len(parts)))
        columns = index.shard, index.offset, index.size
        while True:
            try:
                status, number, is_even = engine.lay_out(self._lengths, *columns, parts, ends)
            except IndexError:
                raise damaged(index, "it names a part or an archive that is not there") from None
            if status == plain.READY:
                return ends, number, bool(is_even)
            if status == plain.OUTSIDE:
                raise self._outside(parts[number])
            wanted = {index.shard[part] for part in parts if part < len(index.shard)}
            for shard in sorted(wanted & set(range(len(index.shards)))):
                self._open(shard)

    def _open(self, number: int) -> None:
        with self._lock:
            if self._lengths[number] != plain.NONE:
                return
            size = self.index.shards[number].size
            file = self._file(number)
            if self.is_mapped:
                mapping = _mapped(file, size)
                self._mappings[number] = memoryview(mapping)
                self._table[number] = engine.address(mapping)
                del self._files[number]
            # Last: whoever sees the length copies without asking.
            self._lengths[number] = size

    def _file(self, number: int) -> _File:
        with self._lock:
            file = self._files.get(number)
            if file is None:
                # Text: a path for each of a thousand archives takes longer than opening them.
                name = f"{self.folder}/{self.index.shards[number].name}"
                file = _opened(name)
                self.index.check_shard(number, self._path(number), os.fstat(file.number))
                self._files[number] = file
                if len(self._files) > MAX_OPEN_FILES:
                    # Closed when the last thread that reads from it is done.
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(number)
            return file

    def _path(self, number: int) -> Path:
        return self.folder / self.index.shards[number].name

    def _outside(self, part: int) -> DataError:
        index = self.index
        end = index.offset[part] + index.size[part]
        return DataError(
            f"`{self._path(index.shard[part])}` ends before a sample does",
            why=f"the index has the sample end at byte {end:,}",
            fix=f"stoker verify {self.folder}, then copy or pack the archive again",
        )


def damaged(index: Index, why: str) -> DataError:
    """Return the error of an index that contradicts itself."""
    return DataError(
        f"the index `{index.path}` is damaged",
        why=why,
        fix=index.remedy,
    )


class _File:
    """An open file that is closed when nobody refers to it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


def _opened(path: str | Path) -> _File:
    for attempt in range(2):
        try:
            return _File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EMFILE and not attempt and _allow_more_files():
                continue
            raise DataError(
                f"cannot read `{path}`",
                why=f"{error.strerror or error}; the index names it",
                fix="ulimit -n 4096"
                if error.errno == errno.EMFILE
                else "put it back, or pack the data again",
            ) from None
    raise AssertionError


def _mapped(file: _File, size: int) -> Any:
    try:
        return engine.map_file(file.number, size)
    except OSError as error:
        # Python keeps a file open for each mapping, C does not.
        if error.errno != errno.EMFILE or not _allow_more_files():
            raise
        return engine.map_file(file.number, size)


def _allow_more_files() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
