"""The output of a job while it is written: files that come late, are cut, replaced, or binary."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Read at most so much of a file at once, and hold back at most so much of a line.
CHUNK = 1 << 16
MAX_LINE = 1 << 16
# How often files are looked at; so many at once, and more of them more rarely.
LOOK_S = 0.5
LOOKED_AT = 32
# Chunks of one file before the next file has its turn.
MAX_CHUNKS = 16
# Looks after the end: a shared file system shows the last lines late.
LAST_LOOKS = 3

# torchrun puts this before each line of a process, with its number on the node.
_LOCAL = re.compile(rb"\[default(\d+)\]:")
_LOG_NAME = re.compile(r"(?:(?P<element>\d+)-)?(?P<task>\d+)\.log")


@dataclass(frozen=True)
class Source:
    """One file of output and what its lines are called; `task` None: the batch script's own."""

    path: Path
    task: int | None = None
    element: int | None = None


class Tail:
    """A file that grows: what is new in it, also when it was not there yet, cut or replaced."""

    def __init__(self, path: Path, last_lines: int | None = None) -> None:
        self.path = path
        self.position = 0
        self.inode: int | None = None
        self.last_lines = last_lines

    def read(self) -> bytes:
        """Return at most a chunk of what is new; empty if there is nothing."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self.inode is None and self.last_lines is not None:
                    self.position = start_of_last(file.fileno(), found.st_size, self.last_lines)
                elif found.st_ino != self.inode or found.st_size < self.position:
                    self.position = 0
                self.inode = found.st_ino
                file.seek(self.position)
                data = file.read(CHUNK)
        except OSError:
            return b""
        self.position += len(data)
        return data


class Lines:
    """Whole lines out of chunks, each with the rank that wrote it."""

    def __init__(self, source: Source, processes: int, rank: int | None = None) -> None:
        self.source, self.processes, self.rank = source, processes, rank
        self.rest = b""

    def take(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Return the whole lines in what came, named; the last one may wait for its end."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if self.rest and (is_last or len(self.rest) > MAX_LINE):
            whole.append(self.rest)
            self.rest = b""
        return b"".join(self._named(line) for line in whole)

    def _named(self, line: bytes) -> bytes:
        # Of a progress bar that is drawn over and over, what would be seen.
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        task = self.source.task
        if task is None:
            name = "script" if self.source.element is None else str(self.source.element)
            return b"" if self.rank is not None else f"{name} | ".encode() + line + b"\n"
        rank: int | None = task if self.processes == 1 else None
        local = _LOCAL.match(line) if self.processes > 1 else None
        if local:
            rank, line = task * self.processes + int(local[1]), line[local.end() :]
        element = "" if self.source.element is None else f"{self.source.element} "
        if self.rank is not None:
            name = f"{element}| " if element else ""
            return name.encode() + line + b"\n" if rank == self.rank else b""
        name = f"task {task}" if rank is None else f"rank {rank}"
        return f"{element}{name} | ".encode() + line + b"\n"


def start_of_last(file: int, size: int, count: int) -> int:
    """Return where the last lines of a file begin, read from its end."""
    position, found = size, 0
    while position > 0 and count:
        begin = max(0, position - CHUNK)
        block = os.pread(file, position - begin, begin)
        for index in range(len(block) - 1, -1, -1):
            # The line break at the very end ends the last line, and begins none.
            if block[index] == 10 and begin + index < size - 1:
                found += 1
                if found == count:
                    return begin + index + 1
        position = begin
    return 0 if count else size


def task_logs(folder: Path, element: int | None = None) -> list[Source]:
    """Return the logs of tasks that are there: one each, and of each element of an array."""
    try:
        names = [each.name for each in os.scandir(folder)]
    except OSError:
        return []
    found = []
    for name in names:
        match = _LOG_NAME.fullmatch(name)
        if match:
            number = int(match["element"]) if match["element"] else None
            if element is None or number in (None, element):
                found.append(Source(folder / name, int(match["task"]), number))
    return sorted(found, key=lambda each: (each.element or 0, each.task or 0))


@dataclass(frozen=True)
class Wanted:
    """What to show of the logs."""

    # Processes that write to one file of a task.
    processes: int = 1
    rank: int | None = None
    # Begin so many lines before the end of each file; None: at its start.
    last_lines: int | None = None
    # One file alone, byte by byte as it is.
    is_plain: bool = False


def follow(
    sources: Callable[[], Sequence[Source]],
    wanted: Wanted,
    is_ended: Callable[[], bool] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bytes]:
    """Yield what is in the logs; with `is_ended`, go on until it says so.

    Without it each log comes whole, one after the other; with it, lines come as they arrive.
    """
    readers: dict[Source, tuple[Tail, Lines]] = {}
    looks_left = LAST_LOOKS
    while True:
        for source in sources():
            if source not in readers:
                lines = Lines(source, wanted.processes, wanted.rank)
                readers[source] = (Tail(source.path, wanted.last_lines), lines)
        is_behind = False
        for tail, lines in readers.values():
            for count, data in enumerate(_new(tail, MAX_CHUNKS if is_ended else None), 1):
                is_behind = is_behind or count == MAX_CHUNKS
                yield data if wanted.is_plain else lines.take(data)
        if is_behind and is_ended:
            continue
        if is_ended is None or looks_left == 0:
            break
        if is_ended():
            looks_left -= 1
        # A thousand elements on a shared file system are not looked at twice a second.
        sleep(LOOK_S * max(1.0, len(readers) / LOOKED_AT))
    for _, lines in readers.values():
        yield lines.take(b"", is_last=True)


def _new(tail: Tail, chunks: int | None) -> Iterator[bytes]:
    # One that is written fast must not keep the others waiting.
    while chunks is None or chunks > 0:
        data = tail.read()
        if not data:
            return
        yield data
        chunks = None if chunks is None else chunks - 1
