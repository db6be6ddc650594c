"""The index of packed samples: where each part of each sample lies in which archive.

One binary file, little endian: magic, the length of a JSON header and its checksum, the header,
then columns, each aligned to 8 bytes. It is mapped and never parsed: opening takes the same time
for ten samples and for ten million. Only the header is checked when it is opened; what is in the
columns is checked by `check_columns`, and by whoever reads what they point to.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import tempfile
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from stoker.data.block import NO_LABEL, Block
from stoker.errors import DataError as DataError  # noqa: PLC0414  # Read from here, too.
from stoker.errors import FileError

INDEX_NAME = "index.stoker"
SUFFIX = ".stoker"
MAGIC = b"STOKIDX\x01"
FORMAT = 1
# The columns and their types, as `struct` and `array` name them.
COLUMNS = {
    "shard": "I", "offset": "Q", "size": "Q", "crc": "I", "extension": "H",
    "first": "Q", "labels": "i", "name_at": "Q", "names": "B",
}  # fmt: skip
# Rows that wait in memory before they go to a temporary file.
BUFFERED_ROWS = 1 << 14
HEAD = struct.Struct("<8sQII")
# An archive that was copied has another time; some of its bytes tell it from another archive.
PROBES, PROBE_BYTES = 4, 4096


class Part(NamedTuple):
    """One part of a sample: its bytes in an archive. `made` is one that packing added."""

    extension: str
    shard: int
    offset: int
    size: int
    crc: int | None
    made: bool = False


class Shard(NamedTuple):
    """One archive: its name beside the index, and what tells whether it has changed."""

    name: str
    size: int
    mtime_ns: int
    probe: int

    @classmethod
    def of(cls, path: Path) -> Shard:
        """Return what tells this archive from any other."""
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            return cls(path.name, stat.st_size, stat.st_mtime_ns, _probe(file, stat.st_size))


class Index:
    """The samples of a data set, in their order."""

    def __init__(self, path: Path, header: dict[str, Any], mapped: memoryview, start: int) -> None:
        self.path, self.header = path, header
        self.shards = tuple(Shard(*each) for each in header["shards"])
        self.extensions: list[str] = header["extensions"]
        self.label_names: list[str] = header["label_names"]
        self.has_checksums: bool = header["checksums"]
        self._made = set(header["made"])
        self._mapped, self._start = mapped, start
        self.shard, self.offset, self.size, self.crc, self.extension = (
            self._column(name) for name in ("shard", "offset", "size", "crc", "extension")
        )
        self.first, self.labels = self._column("first"), self._column("labels")
        self._name_at, self._names = self._column("name_at"), self._column("names")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """Map an index. Raises DataError if it is damaged, FileError if it cannot be read."""
        place = Path(path)
        if sys.byteorder != "little":
            raise DataError(
                f"cannot read `{place}` on this machine",
                why="the index is little endian, the machine is not",
                fix="use a machine with x86 or Arm processors",
            )
        try:
            with place.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(HEAD.size)
                header, start = _read_header(place, head, file, size)
                mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise FileError(
                f"cannot read `{place}`",
                why=error.strerror or str(error),
                fix="stoker index ARCHIVE, to make the index of an archive",
            ) from None
        return cls(place, header, mapped, start)

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, i: int) -> str:
        """Return the name of sample `i`."""
        at = self._at(i)
        name = bytes(self._names[self._name_at[at] : self._name_at[at + 1]])
        return name.decode("utf-8", "surrogateescape")

    def label(self, i: int) -> int | None:
        """Return the label of sample `i`; `None` if it has none."""
        label: int = self.labels[self._at(i)]
        return None if label == NO_LABEL else label

    def parts(self, i: int) -> list[Part]:
        """Return the parts of sample `i`, in the archive's order."""
        at = self._at(i)
        return [self.part(each) for each in range(self.first[at], self.first[at + 1])]

    def part(self, row: int) -> Part:
        """Return one row of the columns."""
        try:
            kind = self.extension[row]
            return Part(
                self.extensions[kind],
                self.shard[row],
                self.offset[row],
                self.size[row],
                self.crc[row] if self.has_checksums else None,
                kind in self._made,
            )
        except IndexError:
            raise self._damaged("a row points outside of it") from None

    def find(self, key: str) -> int:
        """Return the number of the sample with this key. Raises KeyError."""
        wanted = key.encode("utf-8", "surrogateescape")
        start, end = self._span("names")
        if not wanted:  # Is found everywhere.
            return self._find_empty()
        at = start - 1
        file: mmap.mmap = self._mapped.obj  # type: ignore[assignment]
        while (at := file.find(wanted, at + 1, end)) >= 0:
            row = bisect_right(self._name_at, at - start) - 1
            if row < len(self) and self.key(row) == key:
                return row
        raise KeyError(key)

    def _find_empty(self) -> int:
        for row in range(len(self)):
            if self._name_at[row] == self._name_at[row + 1]:
                return row
        raise KeyError("")

    def check_shards(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Raise DataError if an archive is missing or is not the one that was indexed."""
        place = self.path.parent if folder is None else Path(folder)
        for number, shard in enumerate(self.shards):
            path = place / shard.name
            try:
                self.check_shard(number, path, path.stat())
            except OSError as error:
                raise DataError(
                    f"cannot read `{path}`",
                    why=f"{error.strerror or error}; the index names it",
                    fix=f"put it back; or {self.remedy}",
                ) from None

    def check_shard(self, number: int, path: Path, found: os.stat_result) -> None:
        """Raise DataError if an archive, of which this was found, is not the one that was indexed."""
        shard = self.shards[number]
        is_as_large = found.st_size == shard.size
        if is_as_large and (
            found.st_mtime_ns == shard.mtime_ns or Shard.of(path).probe == shard.probe
        ):
            return
        sizes = f"{shard.size:,} bytes then, {found.st_size:,} now"
        raise DataError(
            f"`{path}` has changed since it was indexed",
            why="its bytes are others" if is_as_large else sizes,
            fix=self.remedy,
        )

    @property
    def remedy(self) -> str:
        """What to do where index and archives do not belong together.

        Only the index of others' archives can be made anew: that of `pack` also has the labels and
        the checksums.
        """
        folder = self.path.parent
        if not self.header.get("by_others"):
            return f"copy `{folder}` again from where it was packed, or pack the data again"
        is_folder = self.path.name == INDEX_NAME
        return f"stoker index {folder if is_folder else self.path.with_suffix('')} --force"

    def check_columns(self) -> None:
        """Raise DataError if the index itself is damaged. Reads all of it."""
        for name in COLUMNS:
            start, end = self._span(name)
            crc = 0
            for at in range(start, end, 1 << 20):
                crc = zlib.crc32(self._mapped[at : min(at + (1 << 20), end)], crc)
            if crc != self.header["columns"][name][2]:
                raise self._damaged(f"the checksum of its column `{name}` is wrong")

    def close(self) -> None:
        """Give the mapping back. The index is of no use afterwards."""
        for name in ("shard", "offset", "size", "crc", "extension", "first", "labels", "_name_at",
                     "_names"):  # fmt: skip
            getattr(self, name).release()
        file: mmap.mmap = self._mapped.obj  # type: ignore[assignment]
        self._mapped.release()
        file.close()

    def _at(self, i: int) -> int:
        at = i + len(self) if i < 0 else i
        if not 0 <= at < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return at

    def _span(self, name: str) -> tuple[int, int]:
        offset, count, _ = self.header["columns"][name]
        start = self._start + offset
        return start, start + count * struct.calcsize("=" + COLUMNS[name])

    def _column(self, name: str) -> memoryview:
        start, end = self._span(name)
        return self._mapped[start:end].cast("B").cast(COLUMNS[name])  # type: ignore[call-overload,no-any-return]

    def _damaged(self, why: str) -> DataError:
        return _damaged(self.path, why)


class IndexWriter:
    """Collects samples and writes their index; memory stays small however many there are."""

    def __init__(self, folder: Path | None = None, *, checksums: bool = True) -> None:
        self._checksums = checksums
        self._columns = {name: _Column(kind, folder) for name, kind in COLUMNS.items()}
        self._extensions: dict[tuple[str, bool], int] = {}
        self._names_size = 0
        self.samples = self.parts = 0
        self._has_labels = False
        self._columns["first"].add(0)
        self._columns["name_at"].add(0)

    def add(self, key: str, parts: Iterable[Part], label: int | None = None) -> None:
        """Add the next sample."""
        columns = self._columns
        for part in parts:
            kind = self._kind(part.extension, part.made)
            columns["shard"].add(part.shard)
            columns["offset"].add(part.offset)
            columns["size"].add(part.size)
            columns["crc"].add(part.crc or 0)
            columns["extension"].add(kind)
            self.parts += 1
        self.samples += 1
        columns["first"].add(self.parts)
        columns["labels"].add(NO_LABEL if label is None else label)
        self._has_labels |= label is not None
        name = key.encode("utf-8", "surrogateescape")
        self._names_size += len(name)
        columns["names"].extend(name)
        columns["name_at"].add(self._names_size)

    def add_block(self, shard: int, block: Block) -> None:
        """Add the next samples of one archive."""
        columns, parts = self._columns, len(block.kind)
        # Only what is there, in its order: a block may know of other kinds.
        kinds = {each: self._kind(*block.kinds[each]) for each in dict.fromkeys(block.kind)}
        columns["shard"].many([shard] * parts)
        columns["extension"].many(map(kinds.__getitem__, block.kind))
        for name, found in (
            ("offset", block.offsets), ("size", block.sizes), ("crc", block.crcs),
            ("labels", block.labels),
        ):  # fmt: skip
            columns[name].extend(found.tobytes())
        columns["names"].extend(block.names)
        counts = accumulate(block.counts, initial=self.parts)
        columns["first"].many(islice(counts, 1, None))
        ends = accumulate(block.name_sizes, initial=self._names_size)
        columns["name_at"].many(islice(ends, 1, None))
        self._names_size += len(block.names)
        self.parts += parts
        self.samples += len(block.labels)
        self._has_labels |= block.labels.count(NO_LABEL) < len(block.labels)

    def _kind(self, extension: str, made: bool) -> int:
        kind = self._extensions.setdefault((extension, made), len(self._extensions))
        if kind >= 1 << 16:
            raise DataError(
                "there are more than 65,536 kinds of parts",
                why="what follows the first dot of a name is its kind, as in WebDataset",
                fix="use names without dots before the extension",
            )
        return kind

    def finish(
        self,
        path: str | os.PathLike[str],
        shards: Sequence[Shard] = (),
        label_names: Sequence[str] = (),
        **facts: Any,
    ) -> None:
        """Write the index under its name, whole or not at all."""
        place = Path(path)
        spans, offset = {}, 0
        for name, column in self._columns.items():
            column.flush()
            spans[name] = (offset, column.count, column.crc)
            offset += -(-column.bytes // 8) * 8
        header = {
            "format": FORMAT, "samples": self.samples, "parts": self.parts, "bytes": offset,
            "checksums": self._checksums, "shards": [list(each) for each in shards],
            "extensions": [name for name, _ in self._extensions],
            "made": [kind for (_, made), kind in self._extensions.items() if made],
            "label_names": list(label_names), "has_labels": self._has_labels, "columns": spans,
            **facts,
        }  # fmt: skip
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with replacing(place) as file:
            file.write(HEAD.pack(MAGIC, len(text), zlib.crc32(text), 0) + text)
            for column in self._columns.values():
                column.copy_to(file)
                file.write(bytes(-column.bytes % 8))

    def close(self) -> None:
        """Give up what was collected and not written."""
        for column in self._columns.values():
            column.close()


class replacing:
    """A file to write that gets its name when it is whole and (if `durable`) on disk, or never."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        # Short, as the name itself may be as long as names can be. In containers, processes of
        # several nodes have the same number.
        place = os.fsencode(f"{os.uname().nodename}:{path}")
        self.temporary = path.with_name(f".{os.getpid()}-{zlib.crc32(place):08x}.part")

    def __enter__(self) -> IO[bytes]:
        self._file = self.temporary.open("wb", buffering=1 << 20)
        return self._file

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                if self._durable:
                    os.fsync(self._file.fileno())
                self._file.close()
                self.temporary.replace(self.path)
                if self._durable:
                    sync_folder(self.path.parent)
        finally:
            with suppress(OSError):  # A full disk refuses the rest once more.
                self._file.close()
            self.temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring renames in a folder to disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:  # Some network file systems refuse this for folders.
        pass
    finally:
        os.close(descriptor)


def index_of(path: Path) -> Path:
    """Return where the index of a data set is: of a folder, of one archive, or the index itself."""
    if path.is_dir():
        return path / INDEX_NAME
    return path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)


class _Column:
    def __init__(self, kind: str, folder: Path | None) -> None:
        self.count = self.bytes = self.crc = 0
        self._rows = array(kind)
        place = None if folder is None else str(folder)
        self._file = tempfile.SpooledTemporaryFile(1 << 20, dir=place)  # noqa: SIM115

    def add(self, value: int) -> None:
        self._rows.append(value)
        if len(self._rows) >= BUFFERED_ROWS:
            self.flush()

    def many(self, values: Iterable[int]) -> None:
        self._rows.extend(values)
        if len(self._rows) >= BUFFERED_ROWS:
            self.flush()

    def extend(self, data: bytes) -> None:
        self._rows.frombytes(data)
        if len(self._rows) >= BUFFERED_ROWS:
            self.flush()

    def flush(self) -> None:
        data = self._rows.tobytes()
        self._file.write(data)
        self.count += len(self._rows)
        self.bytes += len(data)
        self.crc = zlib.crc32(data, self.crc)
        del self._rows[:]

    def copy_to(self, file: IO[bytes]) -> None:
        self._file.seek(0)
        while chunk := self._file.read(1 << 20):
            file.write(chunk)
        self.close()

    def close(self) -> None:
        self._file.close()


def _read_header(path: Path, head: bytes, file: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    if len(head) < HEAD.size or head[:7] != MAGIC[:7]:
        raise _damaged(path, "it does not begin as an index does")
    magic, length, crc, _ = HEAD.unpack(head)
    if magic != MAGIC:
        raise DataError(
            f"cannot read `{path}`",
            why=f"it has format {magic[7]}, this version of Stoker reads {MAGIC[7]}",
            fix="use the version of Stoker that made it, or make the index anew",
        )
    text = file.read(length) if length <= size else b""
    if len(text) != length or zlib.crc32(text) != crc:
        raise _damaged(path, "the checksum of its header is wrong")
    header: dict[str, Any] = json.loads(text)
    start = HEAD.size + length
    if start + header["bytes"] != size:
        raise _damaged(path, f"it has {size:,} bytes instead of {start + header['bytes']:,}")
    return header, start


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"the index `{path}` is damaged",
        why=why,
        fix=f"rm {path}; stoker index {path.parent if path.name == INDEX_NAME else path.with_suffix('')}",
    )


def _probe(file: IO[bytes], size: int) -> int:
    crc = 0
    for each in range(PROBES):
        at = max(0, size - PROBE_BYTES) * each // (PROBES - 1)
        crc = zlib.crc32(os.pread(file.fileno(), PROBE_BYTES, at), crc)
    return crc
