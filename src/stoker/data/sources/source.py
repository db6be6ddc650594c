"""Where samples come from: files, lists, tables, arrays, archives, packed data sets."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from stoker.data.classes import FILE_ARCHIVES, classes_of, find_classes
from stoker.data.formats import COMPRESSED, SUFFIXES, format_of, scan
from stoker.data.index import INDEX_NAME, index_of
from stoker.data.packing.journal import refuse_interrupted
from stoker.data.sample import Sample
from stoker.data.sources.archive import ArchiveSource, PackedSource
from stoker.data.sources.arrays import Held, PackedRows, Rows, find_arrays, is_array
from stoker.data.sources.files import FolderSource, ListSource
from stoker.data.sources.table import TABLES, TableSource
from stoker.errors import FileError, UsageError

LISTS = (".txt", ".lst", ".list")


class Source(Protocol):
    """Samples in an order that is the same each time."""

    label_names: list[str]
    may_repeat: bool
    skipped: int

    def samples(self) -> Iterator[Sample]:
        """Yield every sample."""


class Hints(NamedTuple):
    """What a source cannot know by itself."""

    labels: Path | None = None
    array: str | None = None
    path_column: str | None = None
    label_column: str | None = None


NO_HINTS = Hints()


def find_source(path: Path, hints: Hints = NO_HINTS) -> Source | Rows:
    """Return the source that a path is. Raises FileError if it is none."""
    _refuse_hints(path, hints)
    try:
        if str(path) == "-":
            return _piped()
        if path.is_dir():
            if (path / INDEX_NAME).exists():
                return _packed(path / INDEX_NAME)
            return FolderSource(path, find_classes(path))
        if path.exists() and (found := _find_file(path, hints)) is not None:
            return found
    except OSError as error:
        raise _unreadable(path, error) from None
    raise FileError(
        f"`{path}` is nothing that can be packed" if path.exists() else f"`{path}` does not exist",
        why="a source is a folder, a list of files (.txt, or -), a table (.csv), an array (.npy, "
        f".npz, idx) or an archive ({', '.join((*SUFFIXES, *COMPRESSED))})",
        fix="stoker pack --help",
    )


def find_packed(path: Path) -> PackedSource | ArchiveSource:
    """Return the samples of a packed data set or of any archive. Raises FileError."""
    is_folder = path.is_dir()
    try:
        if index_of(path).exists():
            return PackedSource(index_of(path))
        if path.is_file() and format_of(path) not in (None, "compressed"):
            return ArchiveSource(path)
        refuse_interrupted(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    why = f"there is no {INDEX_NAME} in it" if is_folder else "it is no archive that has an index"
    raise FileError(
        f"`{path}` is no packed data set" if path.exists() else f"`{path}` does not exist",
        why=why if path.exists() else "there is no such file or folder",
        fix=f"stoker pack {path} OUT, or stoker index {path} for a folder of archives"
        if path.exists()
        else "check the name",
    )


def _find_file(path: Path, hints: Hints) -> Source | Rows | None:
    if is_array(path):
        return find_arrays(path, hints.labels, hints.array)
    if path.suffix.lower() in TABLES:
        return TableSource(path, hints.path_column, hints.label_column)
    if path.suffix.lower() in LISTS:
        return ListSource(path, path.parent)
    if index_of(path).exists():
        return _packed(index_of(path))
    kind = format_of(path)
    if kind == "compressed":
        # Few sources are: what only this needs takes time to import.
        from stoker.data.sources.compressed import CompressedSource, names_in

        return CompressedSource(path, classes_of(names_in(path)), leaves_hidden=True)
    if kind in FILE_ARCHIVES:
        return ArchiveSource(path, classes_of(scan(path)), leaves_hidden=True)
    return ArchiveSource(path) if kind else None


def _packed(path: Path) -> Source | Rows:
    source = PackedSource(path)
    return PackedRows(source) if source.arrays else source


def _piped() -> ListSource:
    """Return the list that comes through a pipe: it is read more than once."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        held = Held(file)
    return ListSource(Path(f"/proc/self/fd/{held.number}"), Path(), held)


def _refuse_hints(path: Path, hints: Hints) -> None:
    is_table = path.suffix.lower() in TABLES
    for option, value, fits in (
        ("--labels", hints.labels, is_array(path)),
        ("--array", hints.array, is_array(path)),
        ("--path-column", hints.path_column, is_table),
        ("--label-column", hints.label_column, is_table),
    ):
        if value is not None and not fits:
            kind = "a table (.csv, .tsv)" if "column" in option else "an array (.npy, .npz, idx)"
            raise UsageError(
                f"{option} does not belong to `{path}`", why=f"it is for {kind}", fix="leave it out"
            )


def _unreadable(path: Path, error: OSError) -> FileError:
    # It may be something below that cannot be read.
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path
    return FileError(
        f"cannot read `{name}`", why=error.strerror or str(error), fix="check the permissions"
    )
