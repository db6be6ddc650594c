"""Reading HDF5: what is written here without h5py, what others wrote with it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data.block import NO_LABEL
from stoker.data.formats import Member, damaged
from stoker.data.formats.hdf5 import (
    BYTES,
    KEYS,
    LABELS,
    MISSING,
    PARTS,
    SIGNATURE,
    UNDEFINED,
    type_of,
)  # fmt: skip
from stoker.data.formats.lookup3 import lookup3
from stoker.data.sample import decode

SUPERBLOCK = 48
# Names of 256 tables of 64 kB: no header of ours is longer.
MAX_HEADER = 1 << 24
# Samples whose rows are read at once.
BLOCK = 8192


class _NotOurs(Exception):
    """It may be HDF5, but not as it is written here."""


class _Dataset(NamedTuple):
    """One dataset: its place, its shape, and the size of an element."""

    place: int
    shape: tuple[int, ...]
    item: int

    @property
    def row(self) -> int:
        return self.item * prod(self.shape[1:])


class _Layout(NamedTuple):
    """What is in a file of ours that has parts of any size."""

    data: _Dataset
    tables: dict[str, _Dataset]
    keys: _Dataset
    labels: _Dataset | None


class Array(NamedTuple):
    """A dataset of which each row is a part of a sample."""

    extension: str
    dtype: str
    shape: tuple[int, ...]
    place: int
    size: int


class Arrays(NamedTuple):
    """What is in a file that has a row a sample. `labels` gives those from one row to another."""

    arrays: list[Array]
    labels: Callable[[int, int], Sequence[int]] | None
    samples: int


def scan_hdf5(path: Path) -> Iterator[Member]:
    """Yield the parts of each sample: those of our own files, or the rows of any dataset."""
    with path.open("rb", buffering=0) as file:
        members = _our_members(path, file)
        if members is not None:
            yield from members
            return
    from stoker.data.formats.hdf5_rows import opened_arrays

    with opened_arrays(path) as arrays:
        yield from row_members(path, arrays)


def _our_members(path: Path, file: IO[bytes]) -> Iterator[Member] | None:
    try:
        links, size = _root(path, file)
        if {BYTES, PARTS, KEYS} <= set(links):
            return _parts(path, file, _layout(path, file, links, size))
        return row_members(path, _arrays(path, file, links, size))
    except (_NotOurs, struct.error):
        return None


def arrays_of_hdf5(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of the parts that have the same in all samples."""
    with path.open("rb", buffering=0) as file:
        try:
            links, size = _root(path, file)
            if {BYTES, PARTS, KEYS} <= set(links):
                return {}
            found = _arrays(path, file, links, size).arrays
            return {each.extension: (each.dtype, each.shape) for each in found}
        except (_NotOurs, struct.error):
            pass
    from stoker.data.formats.hdf5_rows import opened_arrays

    with opened_arrays(path) as arrays:
        return {each.extension: (each.dtype, each.shape) for each in arrays.arrays}


def row_members(path: Path, rows: Arrays) -> Iterator[Member]:
    """Yield the rows of all datasets: those of one number are one sample."""
    stem = path.name.rpartition(".")[0] or path.name
    for start in range(0, rows.samples, BLOCK):
        end = min(start + BLOCK, rows.samples)
        labels = [NO_LABEL] * (end - start) if rows.labels is None else rows.labels(start, end)
        for number, told in enumerate(labels, start):
            label = told if abs(told) < -NO_LABEL else None
            for each in rows.arrays:
                at = each.place + number * each.size
                yield Member(f"{stem}/{number:08d}", each.extension, at, each.size, label=label)


def _root(path: Path, file: IO[bytes]) -> tuple[dict[str, int], int]:
    """Return what the file has by name, and its size."""
    head = os.pread(file.fileno(), SUPERBLOCK, 0)
    if len(head) < SUPERBLOCK or head[:12] != SIGNATURE + bytes((2, 8, 8, 0)):
        raise _NotOurs
    if lookup3(head[:-4]) != struct.unpack_from("<I", head, SUPERBLOCK - 4)[0]:
        raise damaged(path, "the checksum of its first bytes is wrong")
    size = os.fstat(file.fileno()).st_size
    _, _, end, root = struct.unpack_from("<4Q", head, 12)
    if end > size:
        raise damaged(path, f"it has {size:,} bytes instead of {end:,}")
    return _links(path, file, root), size


def _layout(path: Path, file: IO[bytes], links: dict[str, int], size: int) -> _Layout:
    def dataset(place: int) -> _Dataset:
        return _dataset(path, file, place, size)[0]

    tables = _links(path, file, links[PARTS])
    layout = _Layout(
        dataset(links[BYTES]),
        {_extension(name): dataset(place) for name, place in tables.items()},
        dataset(links[KEYS]),
        dataset(links[LABELS]) if LABELS in links else None,
    )
    count = layout.keys.shape[0]
    if any(each.shape != (count, 2) or each.item != 8 for each in layout.tables.values()):
        raise damaged(path, "its tables are not all of one length")
    if layout.labels is not None and (layout.labels.shape != (count,) or layout.labels.item != 8):
        raise damaged(path, "it has not a label for each sample")
    return layout


def _arrays(path: Path, file: IO[bytes], links: dict[str, int], size: int) -> Arrays:
    arrays, labels, counts = [], None, set()
    for name, place in links.items():
        dataset, kind = _dataset(path, file, place, size)
        dtype = f"|S{dataset.item}" if kind[:2] == b"\x13\x01" else _dtypes().get(kind)
        if dtype is None:
            raise _NotOurs
        counts.add(dataset.shape[0])
        if (name, dtype, len(dataset.shape)) == (LABELS, "<i8", 1):
            labels = _numbers(file, dataset)
        elif dataset.row:
            arrays.append(Array(name, dtype, dataset.shape[1:], dataset.place, dataset.row))
    if len(counts) != 1:
        raise _NotOurs
    return Arrays(arrays, labels, counts.pop() if arrays else 0)


def _numbers(file: IO[bytes], dataset: _Dataset) -> Callable[[int, int], Sequence[int]]:
    def read(start: int, end: int) -> Sequence[int]:
        return struct.unpack(f"<{end - start}q", _rows(file, dataset, start, end))

    return read


@lru_cache(maxsize=1)
def _dtypes() -> dict[bytes, str]:
    """Return the types of numpy by what HDF5 calls them."""
    names = ["|u1", "|i1", "|b1"]
    names += [f"{order}{kind}" for order in "<>" for kind in
              ("u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")]  # fmt: skip
    return {type_of(each): each for each in names}


def _messages(path: Path, file: IO[bytes], place: int) -> Iterator[tuple[int, bytes]]:
    """Yield what the header of an object says."""
    head = os.pread(file.fileno(), 10, min(place, 1 << 62))
    if len(head) < 10 or head[:6] != b"OHDR\2\2":
        raise _NotOurs
    (size,) = struct.unpack_from("<I", head, 6)
    body = os.pread(file.fileno(), min(size, MAX_HEADER) + 4, place + 10)
    if len(body) < size + 4 or lookup3(head + body[:-4]) != struct.unpack("<I", body[-4:])[0]:
        raise damaged(path, f"the checksum of the header at byte {place:,} is wrong")
    at = 0
    while at + 4 <= size:
        kind, length = struct.unpack_from("<BH", body, at)
        yield kind, body[at + 4 : at + 4 + length]
        at += 4 + length


def _links(path: Path, file: IO[bytes], place: int) -> dict[str, int]:
    links = {}
    for kind, data in _messages(path, file, place):
        if kind == 6:
            if data[:3] != b"\1\x11\1":
                raise _NotOurs
            (length,) = struct.unpack_from("<H", data, 3)
            (at,) = struct.unpack_from("<Q", data, 5 + length)
            links[decode(data[5 : 5 + length])] = at
    return links


def _dataset(path: Path, file: IO[bytes], place: int, size: int) -> tuple[_Dataset, bytes]:
    """Return a dataset, and how HDF5 calls the type of its numbers."""
    told = dict(_messages(path, file, place))
    if not {1, 3, 8} <= set(told) or told[1][:1] != b"\2" or told[8][:2] != b"\3\1":
        raise _NotOurs
    shape = struct.unpack_from(f"<{told[1][1]}Q", told[1], 4)
    (item,) = struct.unpack_from("<I", told[3], 4)
    start, length = struct.unpack_from("<QQ", told[8], 2)
    start = 0 if start == UNDEFINED else start
    if not shape or not item or length != item * prod(shape) or start + length > size:
        raise damaged(path, "it ends within a dataset")
    return _Dataset(start, shape, item), told[3]


def _parts(path: Path, file: IO[bytes], layout: _Layout) -> Iterator[Member]:
    count, total = layout.keys.shape[0], layout.data.shape[0]
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        keys = _rows(file, layout.keys, start, end)
        labels = layout.labels and _rows(file, layout.labels, start, end)
        tables = {name: _rows(file, each, start, end) for name, each in layout.tables.items()}
        for at in range(end - start):
            width = layout.keys.item
            key = decode(keys[at * width : (at + 1) * width].rstrip(b"\0"))
            label = struct.unpack_from("<q", labels, 8 * at)[0] if labels else NO_LABEL
            rows = ((*struct.unpack_from("<QQ", each, 16 * at), name)
                    for name, each in tables.items() if each[16 * at : 16 * at + 16] != MISSING)  # fmt: skip
            for begin, stop, name in sorted(rows):
                if not begin <= stop <= total:
                    raise damaged(path, f"`{key}` lies outside of its bytes")
                yield Member(
                    key, name, layout.data.place + begin, stop - begin,
                    label=label if abs(label) < -NO_LABEL else None,
                )  # fmt: skip


def _rows(file: IO[bytes], dataset: _Dataset, start: int, end: int) -> bytes:
    size = (end - start) * dataset.row
    return os.pread(file.fileno(), size, dataset.place + start * dataset.row)


def _extension(name: str) -> str:
    return name.removeprefix("%")
