"""Compressed tars: read from their start to their end, as there is no place to jump to."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from math import inf
from pathlib import Path
from typing import IO, cast

from stoker.data.classes import class_of
from stoker.data.formats import COMPRESSED, Member, damaged
from stoker.data.formats.tar import members
from stoker.data.sample import CHUNK, Content, File, Held, Sample, is_hidden
from stoker.errors import FileError, StokerError

# Files that wait for whoever writes them: so many bytes in memory, the others in temporary files.
MAX_HELD, MAX_SPOOL = 32 << 20, 256 << 20


@dataclass
class CompressedSource:
    """The files of a compressed tar, in its order."""

    path: Path
    label_names: list[str] = field(default_factory=list)
    leaves_hidden: bool = False
    may_repeat: bool = True
    skipped: int = 0
    can_shuffle: bool = False

    def samples(self) -> Iterator[Sample]:
        """Yield every sample; neighbours with one key are one sample."""
        self.skipped = 0
        labels = {name: at for at, name in enumerate(self.label_names)}
        for key, group in groupby(self._files(), key=lambda each: each[0]):
            yield Sample(key, tuple(file for _, file in group), labels.get(class_of(key)))

    def _files(self) -> Iterator[tuple[str, File]]:
        keeper = _Keeper(self.path)
        with _opened(self.path) as stream:
            for member in members(self.path, stream, inf, self._is_left):
                if self._is_left(member.key):
                    self.skipped += 1
                    continue
                stream.seek(member.offset)
                held = keeper.keep(stream, member.size)
                yield (
                    member.key,
                    File(member.extension, str(self.path), None, member.size, held=held),
                )
            # To the end: there the checksum is.
            while stream.read(CHUNK):
                pass

    def _is_left(self, key: str) -> bool:
        return self.leaves_hidden and is_hidden(key)


def names_in(path: Path) -> Iterator[Member]:
    """Yield the files of a compressed tar without their bytes."""
    with _opened(path) as stream:
        yield from members(path, stream, inf)


class _Kept:
    """The bytes of one file, in memory."""

    def __init__(self, data: bytes, mtime_ns: int, freed: deque[int]) -> None:
        self._data, self._mtime_ns, self._freed = data, mtime_ns, freed

    def content(self, file: File) -> Content:
        data = self._data
        return Content(
            file.extension, len(data), data, mtime_ns=self._mtime_ns, crc=zlib.crc32(data)
        )

    def __del__(self) -> None:
        self._freed.append(len(self._data))


class _Spool:
    """A file without a name, which goes away with the last who refers to it."""

    def __init__(self) -> None:
        self._file, self.size = tempfile.TemporaryFile(buffering=0), 0  # noqa: SIM115

    def add(self, chunks: Iterator[bytes]) -> None:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                written = os.pwrite(self._file.fileno(), rest, self.size)
                rest, self.size = rest[written:], self.size + written

    def read(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            chunk = os.pread(self._file.fileno(), min(CHUNK, end - at), at)
            at += len(chunk)
            yield chunk

    def __del__(self) -> None:
        self._file.close()


class _Spooled:
    """The bytes of one file, on disk."""

    def __init__(self, spool: _Spool, start: int, end: int, mtime_ns: int) -> None:
        self._spool, self._start, self._end, self._mtime_ns = spool, start, end, mtime_ns

    def content(self, file: File) -> Content:
        def stream() -> Iterator[bytes]:
            return self._spool.read(self._start, self._end)

        return Content(file.extension, self._end - self._start, None, stream, self._mtime_ns)


class _Keeper:
    """Keeps the bytes of files until nobody wants them any more: in memory, if there is room."""

    def __init__(self, path: Path) -> None:
        self._path, self._mtime_ns = path, path.stat().st_mtime_ns
        self._held, self._spool = 0, _Spool()
        self._freed: deque[int] = deque()  # Filled by whichever thread is the last to want them.

    def keep(self, stream: IO[bytes], size: int) -> Held:
        while self._freed:
            self._held -= self._freed.popleft()
        if self._held + size <= MAX_HELD:
            self._held += size
            data = b"".join(self._chunks(stream, size))
            return _Kept(data, self._mtime_ns, self._freed)
        if self._spool.size > MAX_SPOOL:
            self._spool = _Spool()
        start = self._spool.size
        self._spool.add(self._chunks(stream, size))
        return _Spooled(self._spool, start, self._spool.size, self._mtime_ns)

    def _chunks(self, stream: IO[bytes], size: int) -> Iterator[bytes]:
        while size:
            chunk = stream.read(min(size, CHUNK))
            if not chunk:
                raise damaged(self._path, "it ends within a file")
            size -= len(chunk)
            yield chunk


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open for reading once, from the start to the end."""
    kind = next(each for name, each in COMPRESSED.items() if path.name.lower().endswith(name))
    try:
        if kind == "zst":
            with _unzstd(path) as stream:
                yield stream
        else:
            module = {"gz": "gzip", "bz2": "bz2", "xz": "lzma"}[kind]
            with import_module(module).open(path, "rb") as stream:
                yield stream
    except (EOFError, zlib.error, ValueError, ArithmeticError) as error:
        raise damaged(path, str(error) or "it ends too early") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except Exception as error:
        # Of lzma, which is not imported here: some Pythons are built without it.
        if type(error).__name__ != "LZMAError":
            raise
        raise damaged(path, str(error)) from None


def _unreadable(path: Path, error: OSError) -> StokerError:
    if error.errno is None:  # What gzip and bz2 say of damaged bytes.
        return damaged(path, str(error))
    return FileError(
        f"cannot read `{path}`", why=error.strerror or str(error), fix="check the permissions"
    )


class _Forward:
    """A pipe with a position: what it jumps over is read."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._at = pipe, 0

    def read(self, size: int) -> bytes:
        data = self._pipe.read(size)
        self._at += len(data)
        return data

    def seek(self, place: int) -> None:
        while self._at < place and self.read(min(CHUNK, place - self._at)):
            pass


@contextmanager
def _unzstd(path: Path) -> Iterator[IO[bytes]]:
    """Read through the program zstd: Python has it from 3.14 on only."""
    program = shutil.which("zstd")
    if program is None:
        raise FileError(
            f"cannot read `{path}`",
            why="the program `zstd` is not there",
            fix="load a module that has zstd, or ask for it to be installed",
        )
    with subprocess.Popen(
        [program, "-dcq", "--", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield cast("IO[bytes]", _Forward(process.stdout))
        except BaseException:
            process.kill()
            raise
        said = process.stderr.read(4096).decode(errors="replace").strip()
    if process.returncode:
        raise damaged(path, said.rpartition(": ")[2] or "zstd cannot read it")
