"""The index of archives that others have made: nothing in them is rewritten."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from stoker.data import spill
from stoker.data.checksum import crc32
from stoker.data.classes import FILE_ARCHIVES, class_of, classes_of
from stoker.data.formats import (
    FORMATS,
    SUFFIXES,
    Member,
    arrays_of,
    format_of,
    format_of_name,
    scan,
)
from stoker.data.index import Index, IndexWriter, Part, Shard, index_of
from stoker.data.packing.journal import refuse_interrupted
from stoker.data.packing.reading import stream
from stoker.data.sample import LABEL, File, first_repeated, join_name, read_label
from stoker.errors import DataError, FileError

# A row: key, number in the archives' order, part, label.
Row = tuple[str, int, tuple[Any, ...], int | None]


def index_archive(path: Path, *, checksums: bool = False, force: bool = False) -> int:
    """Write the index of an archive, or of all archives in a folder; return how many samples."""
    target = index_of(path)
    if target.exists():
        _refuse_taken(target, force)
    refuse_interrupted(path)
    try:
        return _write(_archives(path), target, checksums)
    except OSError as error:
        raise FileError(
            f"cannot index `{path}`", why=error.strerror or str(error), fix="check the permissions"
        ) from None


def _refuse_taken(target: Path, force: bool) -> None:
    if not force:
        raise FileError(f"`{target}` exists already", why="it would be overwritten", fix="--force")
    try:
        index = Index.open(target)
    except DataError:
        return
    if not index.header.get("by_others"):
        raise FileError(
            f"`{target}` was made by stoker pack",
            why="it has checksums and names of labels that the archives do not have",
            fix=f"stoker verify {target.parent}; rm {target} first if you want to lose them",
        )


def _archives(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileError(f"`{path}` does not exist", why="no such file", fix="check the name")
        return [path]
    found = sorted(each for each in path.iterdir() if format_of_name(each.name))
    if not found:
        raise FileError(
            f"`{path}` has no archives",
            why=f"no name in it ends in {', '.join(SUFFIXES)}",
            fix=f"stoker pack {path} OUT",
        )
    return found


def _write(paths: list[Path], target: Path, checksums: bool) -> int:
    kinds = {format_of(each) for each in paths}
    known = checksums or kinds == {"zip"}
    before = [Shard.of(each) for each in paths]

    grouped = _rows(paths, known)
    is_scattered = first_repeated(lambda: _runs(_rows(paths, False))) is not None
    if is_scattered:
        grouped = _gathered(grouped)
    members = chain.from_iterable(scan(each) for each in paths)
    classes = classes_of(members) if kinds <= set(FILE_ARCHIVES) else []
    with closing(IndexWriter(target.parent, checksums=known)) as index:
        _collect(index, grouped, paths, classes)
        _refuse_changed(paths, before)
        container = kinds.pop() if len(kinds) == 1 else "mixed"
        assert container in (*FORMATS, "mixed")
        facts: dict[str, Any] = {
            "container": container,
            "scattered": is_scattered,
            "by_others": True,
        }
        if arrays := _arrays(paths):
            facts["arrays"] = arrays
        index.finish(target, before, classes, **facts)
    return index.samples


def _arrays(paths: list[Path]) -> dict[str, Any]:
    """Return the parts that have one type and shape in all archives."""
    first, *others = (arrays_of(each) for each in paths)
    return {
        name: {"dtype": each[0], "shape": list(each[1])}
        for name, each in first.items()
        if all(other.get(name) == each for other in others)
    }


def _collect(
    index: IndexWriter, rows: Iterator[Row], paths: list[Path], classes: list[str]
) -> None:
    labels = {name: at for at, name in enumerate(classes)}
    for key, group in groupby(rows, key=itemgetter(0)):
        members = list(group)
        _refuse_twice(key, members)
        own = (each[3] for each in members if each[3] is not None)
        label = next(own, labels.get(class_of(key)))
        index.add(key, [Part(*each[2]) for each in members], label)
    if not index.samples:
        raise FileError(
            f"`{paths[0]}` has no samples", why="there is no file in it", fix="stoker ls it"
        )


def _refuse_changed(paths: list[Path], before: list[Shard]) -> None:
    for path, shard in zip(paths, before, strict=True):
        if Shard.of(path) != shard:
            raise DataError(
                f"`{path}` changed while it was read",
                why="its size or its time is not what it was",
                fix="wait until it is whole, then give the same command again",
            )


def _rows(paths: list[Path], checksums: bool) -> Iterator[Row]:
    number = 0
    for shard, path in enumerate(paths):
        for member in _labelled(path):
            if member.packed is not None:
                raise DataError(
                    f"`{path}` cannot be indexed",
                    why=f"`{join_name(member.key, member.extension)}` is compressed: its bytes are "
                    "not there to be read",
                    fix=f"stoker pack {path} OUT",
                )
            crc = member.crc
            if checksums and crc is None:
                crc = 0
                piece = File(member.extension, str(path), member.offset, member.size)
                for chunk in stream(piece):
                    crc = crc32(chunk, crc)
            part = (member.extension, shard, member.offset, member.size, crc)
            yield member.key, number, part, member.label
            number += 1


def _labelled(path: Path) -> Iterator[Member]:
    """Yield the parts, with the label where one is a small `.cls`, as WebDataset has it."""
    with path.open("rb", buffering=0) as file:
        for member in scan(path):
            if member.extension == LABEL and 0 < member.size < 12 and member.packed is None:
                label = read_label(os.pread(file.fileno(), member.size, member.offset))
                if label is not None:
                    yield member._replace(label=label)
                    continue
            yield member


def _runs(rows: Iterator[Row]) -> Iterator[str]:
    return (key for key, _ in groupby(rows, key=itemgetter(0)))


def _gathered(rows: Iterator[Row]) -> Iterator[Row]:
    """Bring the parts of each sample together, samples in the order of their first part.

    `tar cf` takes files as the folder has them: a label may be far from its image.
    """

    def placed() -> Iterator[tuple[Any, ...]]:
        first, last = 0, None
        for key, number, part, label in spill.sort(rows):
            first, last = (number, key) if key != last else (first, key)
            yield first, number, key, part, label

    for _, number, key, part, label in spill.sort(placed()):
        yield key, number, part, label


def _refuse_twice(key: str, members: list[Row]) -> None:
    names = [each[2][0] for each in members]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise DataError(
            f"`{key}` has two parts `{twice}`",
            why="a key is a name up to its first dot, and stands for one sample",
            fix="make the archive anew, with each file once",
        )
