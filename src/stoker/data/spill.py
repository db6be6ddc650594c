"""Sorting of more than memory should hold: sorted runs in temporary files, merged."""

from __future__ import annotations

import heapq
import marshal
import struct
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any, TypeVar

# Names of this many files take some 40 MB.
RUN = 200_000
# Items that are written and read at once.
BLOCK = 1024
LENGTH = struct.Struct("<Q")


Plain = TypeVar("Plain", bound="str | tuple[Any, ...]")


def sort(items: Iterable[Plain]) -> Iterator[Plain]:
    """Yield strings, or tuples of strings and numbers, in order."""
    rest = iter(items)
    run = sorted(islice(rest, RUN))
    if len(run) < RUN:
        return iter(run)
    files = []
    while run:
        file = tempfile.TemporaryFile()  # noqa: SIM115
        for start in range(0, len(run), BLOCK):
            dump(run[start : start + BLOCK], file)
        file.seek(0)
        files.append(file)
        run = []  # Gone before the next is there.
        run = sorted(islice(rest, RUN))
    return heapq.merge(*(_load(file) for file in files))


def dump(value: Any, file: IO[bytes]) -> None:
    """Write plain values. `marshal` itself reads from files a few bytes at a time."""
    data = marshal.dumps(value)
    file.write(LENGTH.pack(len(data)) + data)


def load(file: IO[bytes]) -> Any:
    """Return the next value. Raises EOFError at the end, ValueError where it is damaged."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return marshal.loads(data)


def _load(file: IO[bytes]) -> Iterator[Any]:
    with file:
        while True:
            try:
                block = load(file)
            except EOFError:
                return
            yield from block
