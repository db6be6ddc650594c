"""Arrays whose first axis counts the samples: npy, npz and idx files, or arrays packed already.

Their rows are read where they lie. Only what is compressed is unpacked first, into a file in
TMPDIR that has no name.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import IO, NamedTuple, Protocol, runtime_checkable

from stoker.data.npy import INTEGERS, Head, integers, item_bytes, read_idx_head, read_npy_head
from stoker.data.sources.archive import PackedSource
from stoker.errors import DataError, FileError, UsageError, nearest

# The name of the part that the samples become, as the reader knows it.
PART = "npy"
IDX_NAME = re.compile(r"[-.]idx\d+-[a-z]+(\.gz)?$")
# What holds the samples in a npz file, and the labels that belong to it.
PAIRS = (
    ("images", "labels"), ("image", "label"), ("x_train", "y_train"), ("x", "y"), ("X", "y"),
    ("data", "labels"), ("data", "target"), ("train_images", "train_labels"), ("arr_0", "arr_1"),
    ("x_test", "y_test"), ("test_images", "test_labels"), ("x_val", "y_val"),
    ("val_images", "val_labels"),
)  # fmt: skip
LABEL_READ = 1 << 20


@runtime_checkable
class Rows(Protocol):
    """Samples that are rows of arrays."""

    label_names: list[str]
    skipped: int
    # The type and the shape of one sample, by extension.
    arrays: dict[str, tuple[str, tuple[int, ...]]]

    def __len__(self) -> int: ...
    def key(self, row: int) -> str:
        """Return the name of a sample."""

    def label(self, row: int) -> int | None:
        """Return the label of a sample."""

    def read(self, extension: str, rows: Sequence[int]) -> bytes:
        """Return the bytes of some samples, one after the other."""

    def stamp(self) -> list[object]:
        """Return what tells whether the source has changed."""


class Held:
    """An open file for as long as somebody holds it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        """Close it."""
        os.close(self.number)


class Column(NamedTuple):
    """One array in an open file."""

    path: Path
    file: Held
    head: Head
    # Where the array begins in its file.
    start: int
    # Of the file when it was opened.
    stamp: tuple[int, int]

    def read(self, rows: Sequence[int]) -> bytes:
        """Return some rows."""
        size, first = self.head.row_bytes, self.start + self.head.offset
        if isinstance(rows, range) and rows.step == 1:
            return self._piece(first + rows.start * size, len(rows) * size)
        return b"".join([self._piece(first + row * size, size) for row in rows])

    def _piece(self, at: int, size: int) -> bytes:
        data = os.pread(self.file.number, size, at)
        while len(data) < size:  # One call gives 2 GiB at most.
            more = os.pread(self.file.number, size - len(data), at + len(data))
            if not more:
                raise _cut(self.path)
            data += more
        return data


class ArraySource:
    """The rows of one array, or of several that belong together."""

    def __init__(
        self,
        columns: dict[str, Column],
        labels: Column | None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.label_names: list[str] = []
        self.skipped = 0
        self._columns, self._numbers = columns, numbers
        self.arrays = {
            name: (each.head.dtype, each.head.shape[1:]) for name, each in columns.items()
        }
        first = next(iter(columns.values()))
        self._count = (first.head.shape or (0,))[0]
        for each in (*columns.values(), *([labels] if labels else [])):
            _check(each, first, self._count)
        self._labels = None if labels is None else _read_labels(labels)
        self._all = (*columns.values(), *([labels] if labels else []))

    def __len__(self) -> int:
        return self._count

    def key(self, row: int) -> str:
        """Return the number of a sample."""
        return f"{row if self._numbers is None else self._numbers[row]:08d}"

    def label(self, row: int) -> int | None:
        """Return the label of a sample."""
        return None if self._labels is None else self._labels[row]

    def read(self, extension: str, rows: Sequence[int]) -> bytes:
        """Return the bytes of some samples. Raises DataError if a file has changed."""
        data = self._columns[extension].read(rows)
        self._refuse_changed()
        return data

    def stamp(self) -> list[object]:
        """Return sizes and times of the files."""
        return [[str(each.path), *each.stamp] for each in self._all]

    def _refuse_changed(self) -> None:
        for each in self._all:
            try:
                is_same = _stamp(each.path) == each.stamp
            except OSError:
                is_same = False
            if not is_same:
                raise DataError(
                    f"`{each.path}` changed while it was read",
                    why="its size or its time is not what it was: somebody writes to it",
                    fix="wait until it is whole, then give the same command again",
                )


class PackedRows:
    """The rows of a data set of arrays that is packed already."""

    def __init__(self, source: PackedSource) -> None:
        self._source, self._index = source, source.index
        self.label_names, self.skipped, self.arrays = source.label_names, 0, source.arrays
        self._files: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._index)

    def key(self, row: int) -> str:
        """Return the name that the sample has."""
        return self._index.key(row)

    def label(self, row: int) -> int | None:
        """Return the label of a sample."""
        return self._index.label(row)

    def read(self, extension: str, rows: Sequence[int]) -> bytes:
        """Return the bytes of some samples, each compared with its checksum."""
        return b"".join([self._row(extension, row) for row in rows])

    def stamp(self) -> list[object]:
        """Return what the index knows of its archives."""
        return [list(each) for each in self._index.shards]

    def _row(self, extension: str, row: int) -> bytes:
        part = next(each for each in self._index.parts(row) if each.extension == extension)
        path = self._source.path_of(part, row)
        if path not in self._files:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                self._files[path] = Held(file)
        data = os.pread(self._files[path].number, part.size, part.offset)
        if len(data) != part.size or part.crc not in (None, zlib.crc32(data)):
            raise DataError(
                f"`{self.key(row)}` in `{path}` is damaged",
                why="the checksum of its bytes is wrong",
                fix=f"stoker verify {self._source.index.path.parent}, which names all that are",
            )
        return data


def is_array(path: Path) -> bool:
    """Tell whether a name is that of an array file."""
    name = path.name.lower()
    return name.endswith((".npy", ".npy.gz", ".npz")) or bool(IDX_NAME.search(name))


def find_arrays(path: Path, labels: Path | None = None, chosen: str | None = None) -> ArraySource:
    """Open array files: the labels are in a second file, or found by their names."""
    own: Column | None = None
    if path.name.lower().endswith(".npz"):
        columns, own = _npz_columns(path, chosen)
    else:
        if chosen is not None:
            raise UsageError(
                f"`{path}` has no names in it", why="it is one array", fix="leave --array out"
            )
        columns = {PART: _open(path)}
        beside = _labels_beside(path) if labels is None else None
        own = _open(beside) if beside else None
    if labels is not None:
        own = _named_labels(labels)
    return ArraySource(columns, own)


def _open(path: Path) -> Column:
    """Open a npy or idx file; one that is compressed is unpacked first."""
    try:
        stamp = _stamp(path)
        with path.open("rb") as file:
            name = path.name.lower()
            if not name.endswith(".gz"):
                return _column(path, file, name, stamp)
            with tempfile.TemporaryFile() as plain:
                _unpack(path, file, plain)
                return _column(path, plain, name[:-3], stamp)
    except OSError as error:
        raise FileError(
            f"cannot read `{path}`", why=error.strerror or str(error), fix="check the name"
        ) from None


def _column(path: Path, file: IO[bytes], name: str, stamp: tuple[int, int]) -> Column:
    head = (read_idx_head if IDX_NAME.search(name) else read_npy_head)(file, str(path))
    return Column(path, Held(file), head, 0, stamp)


def _unpack(path: Path, packed: IO[bytes], plain: IO[bytes]) -> None:
    try:
        with gzip.open(packed) as unpacker:
            shutil.copyfileobj(unpacker, plain, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"`{path}` is damaged", why=str(error), fix="copy it again from where it came"
        ) from None
    plain.seek(0)


def _labels_beside(path: Path) -> Path | None:
    """Return the labels of MNIST's images: the same name with another word in it."""
    if not IDX_NAME.search(path.name.lower()) or "images" not in path.name:
        return None
    name = path.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
    plain = name.removesuffix(".gz")
    return next((path.with_name(n) for n in (name, plain, f"{plain}.gz")
                 if path.with_name(n).exists()), None)  # fmt: skip


def _named_labels(path: Path) -> Column:
    if not path.name.lower().endswith(".npz"):
        return _open(path)
    columns, _ = _npz_columns(path, None)
    return next(iter(columns.values()))


# -- npz: a ZIP of npy files


def _npz_columns(path: Path, chosen: str | None) -> tuple[dict[str, Column], Column | None]:
    found = dict(_members(path))
    label_of = dict(reversed(PAIRS))
    name = _choose(path, found, chosen)
    label = next((b for a, b in PAIRS if a == name and b in found), label_of.get(name))
    count = found[name].head.shape[:1]
    columns = {PART: found[name]}
    if chosen is None:
        paired = {each for pair in PAIRS for each in pair}
        columns |= {
            f"{other}.{PART}": each
            for other, each in found.items()
            if other not in (name, label) and other not in paired and each.head.shape[:1] == count
        }
    labels = found.get(label) if label is not None else None
    if labels is not None and labels.head.dtype.lstrip("<>|=") not in INTEGERS:
        columns[f"{label}.{PART}"] = labels
        labels = None
    return columns, labels


def _choose(path: Path, found: dict[str, Column], chosen: str | None) -> str:
    if chosen is not None:
        if chosen in found:
            return chosen
        match = nearest(chosen, found)
        raise UsageError(
            f"`{path}` has no array `{chosen}`",
            why=f"it has {', '.join(found) or 'none'}",
            fix=f"--array {match}" if match else "name one of them",
        )
    images = [name for name, _ in PAIRS if name in found]
    images = list(dict.fromkeys(images)) or list(found)
    counts = {found[name].head.shape[:1] for name in images}
    if len(images) == 1 or (images and len(counts) == 1 and images == list(found)):
        return images[0]
    raise UsageError(
        f"`{path}` has several arrays",
        why=f"any of them could be the samples: {', '.join(images)}" if images else "it has none",
        fix=f"--array {images[0]}" if images else "another file",
    )


def _members(path: Path) -> Iterator[tuple[str, Column]]:
    try:
        stamp = _stamp(path)
        with zipfile.ZipFile(path) as archive:
            for each in archive.infolist():
                if each.filename.endswith(".npy"):
                    with _member(archive, each, path) as file:
                        start = file.tell()
                        head = read_npy_head(file, f"{path}: {each.filename}")
                        yield each.filename[:-4], Column(path, Held(file), head, start, stamp)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"`{path}` is damaged", why=str(error), fix="copy it again from where it came"
        ) from None
    except OSError as error:
        raise FileError(
            f"cannot read `{path}`", why=error.strerror or str(error), fix="check the name"
        ) from None


def _member(archive: zipfile.ZipFile, each: zipfile.ZipInfo, path: Path) -> IO[bytes]:
    """Return a file that is where a member's bytes begin."""
    if each.compress_type == zipfile.ZIP_STORED:
        file: IO[bytes] = path.open("rb")
        file.seek(each.header_offset + 26)
        sizes = file.read(4)
        name, extra = int.from_bytes(sizes[:2], "little"), int.from_bytes(sizes[2:], "little")
        file.seek(name + extra, os.SEEK_CUR)
        return file
    file = tempfile.TemporaryFile()  # noqa: SIM115
    with archive.open(each) as packed:
        shutil.copyfileobj(packed, file, 1 << 20)
    file.seek(0)
    return file


# -- checks


def _check(column: Column, first: Column, count: int) -> None:
    shape = column.head.shape
    if not shape:
        raise DataError(
            f"`{column.path}` is one number",
            why="it has no axis that counts samples",
            fix="an array",
        )
    if shape[0] != count:
        raise DataError(
            f"`{first.path}` and `{column.path}` do not belong together",
            why=f"there are {count:,} samples in one and {shape[0]:,} in the other",
            fix="--labels FILE, with the labels of these samples",
        )
    wanted = column.start + column.head.offset + item_bytes(column.head.dtype) * prod(shape)
    if os.fstat(column.file.number).st_size < wanted:
        raise _cut(column.path)


def _read_labels(column: Column) -> array[int]:
    """Return the labels, 4 bytes of memory each."""
    head = column.head
    if head.dtype.lstrip("<>|=") not in INTEGERS or prod(head.shape[1:]) != 1:
        raise DataError(
            f"`{column.path}` has no labels",
            why=f"labels are whole numbers, one a sample; this is {head.dtype} of {head.shape}",
            fix="the array of class numbers; what is no number can be an array of its own in a npz file",
        )
    labels = array("i")
    try:
        for start in range(0, head.shape[0], LABEL_READ):
            rows = range(start, min(start + LABEL_READ, head.shape[0]))
            labels.extend(integers(column.read(rows), head.dtype))
    except OverflowError:
        raise DataError(
            f"`{column.path}` has a label that is too large",
            why="labels are numbers of classes, below 2,147,483,648",
            fix="number the classes from 0 on",
        ) from None
    return labels


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _cut(path: Path) -> DataError:
    return DataError(
        f"`{path}` is cut off", why="it is shorter than its head says", fix="copy it again"
    )
