"""Verifying: every checksum of a data set, and whether archives and index tell the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data import spill
from stoker.data.checksum import crc32
from stoker.data.formats import OWN_LABELS, damaged, format_of, scan
from stoker.data.formats.tfrecord import check_record, records
from stoker.data.index import Index, Part, Shard, index_of
from stoker.data.packing.reading import stream
from stoker.data.sample import CHUNK, File, join_name
from stoker.data.sources.compressed import CompressedSource
from stoker.data.sources.source import find_packed
from stoker.errors import DataError, FileError, StokerError

OPEN_FILES = 64
# Formats in which samples lie in the order in which they were written.
IN_ORDER = ("tar", "zip", "tfrecord")


class Problem(NamedTuple):
    """What is wrong: with a sample, or with the file as a whole."""

    file: str
    key: str | None
    why: str


def verify(path: Path) -> Iterator[Problem]:
    """Yield everything that is wrong with a data set or an archive."""
    place = index_of(path)
    if not path.exists():
        raise FileError(
            f"`{path}` does not exist", why="there is no such file or folder", fix="check the name"
        )
    if not place.exists():
        if path.is_dir():
            find_packed(path)  # Says what a folder without an index is.
        yield from _verify_archive(path)
        return
    index = Index.open(place)
    try:
        index.check_columns()
    except StokerError as error:
        yield Problem(str(place), None, error.why)
        return
    named = set()
    for problem in _verify_indexed(index, place.parent):
        named.add(problem.file)
        yield problem
    for shard in index.shards:
        # A record has more than its parts, and TensorFlow compares the checksum of all.
        if shard.name not in named and format_of(place.parent / shard.name) == "tfrecord":
            yield from _verify_records(place.parent / shard.name)


def _verify_indexed(index: Index, folder: Path) -> Iterator[Problem]:
    for number, _ in enumerate(index.shards):
        yield from _verify_structure(index, number, folder)
    yield from _verify_parts(index, folder)


def count_samples(path: Path) -> int | None:
    """Return how many samples the index has; `None` without an index."""
    place = index_of(path)
    return len(Index.open(place)) if place.exists() else None


def has_checksums(path: Path) -> bool:
    """Tell whether every byte is covered by a checksum."""
    place = index_of(path)
    if place.exists():
        index = Index.open(place)
        return index.has_checksums or index.header.get("container") == "tfrecord"
    return (
        not path.is_dir() and path.exists() and format_of(path) in ("zip", "tfrecord", "compressed")
    )


def _verify_structure(index: Index, number: int, folder: Path) -> Iterator[Problem]:
    shard = index.shards[number]
    path = folder / shard.name
    try:
        size = path.stat().st_size
        if size != shard.size:
            yield Problem(shard.name, None, f"it has {size:,} bytes instead of {shard.size:,}")
        elif not index.has_checksums and Shard.of(path).probe != shard.probe:
            yield Problem(shard.name, None, "it is not the one that was indexed")
        told, known = _told(index, path), _rows_of(index, number)
        if format_of(path) not in IN_ORDER:
            told, known = spill.sort(told), spill.sort(known)
        if not _is_told(index):
            for _ in told:  # Its structure alone.
                pass
            return
        for member, row in zip_longest(told, known):
            if member != row:
                name = (row or member or ("",))[0]
                yield Problem(shard.name, name, "archive and index do not tell the same of it")
                return
    except StokerError as error:
        yield Problem(shard.name, None, error.why)
    except OSError as error:
        yield Problem(shard.name, None, error.strerror or str(error))


def _is_told(index: Index) -> bool:
    """Whether the archives themselves tell what the index has, in the same order.

    An index of others' archives may have brought parts together that were far apart, and of
    arrays the archive knows the whole, not the samples.
    """
    return not index.header.get("by_others") and not index.header.get("arrays")


# Key, extension, offset, size, and the label if the archive has its own way to keep it.
Row = tuple[str, str, int, int, int | None]


def _told(index: Index, path: Path) -> Iterator[Row]:
    has_labels = index.header.get("container") in OWN_LABELS
    for each in scan(path):
        yield (*each[:4], each.label if has_labels else None)


def _rows_of(index: Index, number: int) -> Iterator[Row]:
    """Yield the parts of one archive; those of a packed data set are in its order."""
    start = _first_sample(index, number)
    has_labels = index.header.get("container") in OWN_LABELS
    for i in range(start, len(index)):
        for part in index.parts(i):
            if part.shard != number:
                return
            label = index.label(i) if has_labels else None
            yield index.key(i), part.extension, part.offset, part.size, label


def _first_sample(index: Index, number: int) -> int:
    low, high = 0, len(index)
    while low < high:
        middle = (low + high) // 2
        if index.shard[index.first[middle]] < number:
            low = middle + 1
        else:
            high = middle
    return low


def _verify_parts(index: Index, folder: Path) -> Iterator[Problem]:
    with ExitStack() as stack:
        files: dict[int, IO[bytes] | None] = {}
        for i in range(len(index)):
            for part in index.parts(i):
                if part.shard not in files:
                    if len(files) >= OPEN_FILES:
                        stack.close()
                        files.clear()
                    files[part.shard] = _opened(stack, index, part.shard, folder)
                why = _wrong(files[part.shard], part)
                if why:
                    name = index.shards[part.shard].name if part.shard < len(index.shards) else "?"
                    yield Problem(name, index.key(i), f"{part.extension or 'its file'}: {why}")


def _opened(stack: ExitStack, index: Index, number: int, folder: Path) -> IO[bytes] | None:
    try:
        return stack.enter_context((folder / index.shards[number].name).open("rb", buffering=0))
    except (OSError, IndexError):
        return None


def _wrong(file: IO[bytes] | None, part: Part) -> str | None:
    if file is None:
        return "the archive cannot be read"
    crc, at, end = 0, part.offset, part.offset + part.size
    if end > os.fstat(file.fileno()).st_size:
        return "the archive ends before it"
    try:
        while part.crc is not None and at < end:
            chunk = os.pread(file.fileno(), min(CHUNK, end - at), at)
            if not chunk:
                return "the archive ends before it"
            crc = crc32(chunk, crc)
            at += len(chunk)
    except OSError as error:
        return error.strerror or str(error)
    return "its bytes have changed" if part.crc not in (None, crc) else None


def _verify_archive(path: Path) -> Iterator[Problem]:
    """Check an archive without an index by what the archive itself knows."""
    checks = {"tfrecord": _verify_records, "compressed": _verify_compressed}
    try:
        yield from checks.get(format_of(path) or "", _verify_members)(path)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None
    except DataError as error:
        yield Problem(path.name, None, error.why)


def _verify_members(path: Path) -> Iterator[Problem]:
    for member in scan(path):
        if member.crc is None:
            continue
        crc = 0
        name = join_name(member.key, member.extension)
        piece = File(member.extension, str(path), member.offset, member.size, member.packed)
        try:
            for chunk in stream(piece):
                crc = crc32(chunk, crc)
        except StokerError as error:
            yield Problem(path.name, name, error.why)
            continue
        if crc != member.crc:
            yield Problem(path.name, name, "its bytes have changed")


def _verify_records(path: Path) -> Iterator[Problem]:
    """Compare the checksum of each record of a TFRecord file."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        for number, (start, size) in enumerate(records(path, file, end)):
            position = file.tell()
            if not check_record(file, start, size):
                yield Problem(path.name, f"{number:08d}", "its bytes have changed")
            file.seek(position)


def _verify_compressed(path: Path) -> Iterator[Problem]:
    """Read all of it: whoever unpacks it compares the checksum, too."""
    for _ in CompressedSource(path).samples():
        pass
    yield from ()
