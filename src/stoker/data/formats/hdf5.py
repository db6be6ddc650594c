"""HDF5: contiguous datasets only, so that every byte has one place in the file.

Written by hand, without h5py: the bytes go to the file as they come, and what describes them
follows at the end. Every header has a checksum.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterable, Sequence
from math import prod
from typing import IO

from stoker.data.block import NO_LABEL
from stoker.data.formats import Place
from stoker.data.formats.lookup3 import lookup3
from stoker.data.sample import CHUNK, Content, Sink, encode
from stoker.errors import DataError

# The names in a file of ours.
BYTES, PARTS, KEYS, LABELS = "bytes", "parts", "keys", "labels"
SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The bytes begin at a page of their own.
START = 4096
UNDEFINED = (1 << 64) - 1
# Start and end of a part that a sample has not: no bytes.
MISSING = struct.pack("<QQ", 1, 0)
# Each kind of part has a table, and each table a temporary file.
MAX_KINDS = 256


class HDF5Writer:
    """Writes a file that h5py and any HDF5 since 1.8 reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = Sink(file)
        self._sink.write(bytes(START))
        self._tables: dict[str, _Table] = {}
        self._arrays: dict[str, int] = {}
        self._keys, self._labels = _spool(), _spool()
        self._count = self._widest = 0
        self._has_labels = False

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one sample: its parts one after the other."""
        assert not self._arrays
        places = []
        for content in contents:
            start = self._sink.position
            crc = self._sink.write_content(content)
            self._table(content.extension).add(self._count, start - START, content.size)
            places.append(Place(start, content.size, crc))
        name = encode(key)
        self._keys.write(struct.pack("<I", len(name)) + name)
        self._labels.write(struct.pack("<q", NO_LABEL if label is None else label))
        self._has_labels |= label is not None
        self._widest = max(self._widest, len(name))
        self._count += 1
        return places

    def add_array(
        self, name: str, dtype: str, shape: Sequence[int], count: int, chunks: Iterable[bytes]
    ) -> int:
        """Write rows of one shape as one dataset; return where the first of them begins."""
        assert not self._count
        kind = type_of(dtype)
        place = self._align()
        for chunk in chunks:
            self._sink.write(chunk)
        assert self._sink.position - place == count * _type_bytes(dtype) * prod(shape)
        self._arrays[name] = self._dataset(kind, (count, *shape), place)
        return place

    def finish(self) -> None:
        """Write what describes the bytes, and where that is."""
        links = dict(self._arrays)
        if not links:
            size = self._sink.position - START
            links[BYTES] = self._dataset(type_of("|u1"), (size,), START)
            tables = {
                _link_name(name): self._write_table(each) for name, each in self._tables.items()
            }
            links[PARTS] = self._group(tables)
            links[KEYS] = self._write_keys()
            if self._has_labels:
                place = self._align()
                self._copy(self._labels)
                links[LABELS] = self._dataset(type_of("<i8"), (self._count,), place)
        root = self._group(links)
        head = SIGNATURE + struct.pack("<4B4Q", 2, 8, 8, 0, 0, UNDEFINED, self._sink.position, root)
        self._sink.patch(0, head + struct.pack("<I", lookup3(head)))

    def close(self) -> None:
        """Forget keys, labels and tables."""
        for spool in (self._keys, self._labels, *(each.rows for each in self._tables.values())):
            spool.close()

    def _table(self, extension: str) -> _Table:
        table = self._tables.get(extension)
        if table is None:
            if len(self._tables) >= MAX_KINDS:
                raise DataError(
                    f"there are more than {MAX_KINDS} kinds of parts",
                    why="what follows the first dot of a name is its kind; HDF5 has a table of each",
                    fix="--format tar",
                )
            table = self._tables[extension] = _Table()
        return table

    def _write_table(self, table: _Table) -> int:
        table.fill_to(self._count)
        place = self._align()
        self._copy(table.rows)
        return self._dataset(type_of("<u8"), (self._count, 2), place)

    def _write_keys(self) -> int:
        """Write the keys as texts of one length, as numpy has them."""
        place, width = self._align(), max(self._widest, 1)
        self._keys.seek(0)
        while size := self._keys.read(4):
            self._sink.write(self._keys.read(*struct.unpack("<I", size)).ljust(width, b"\0"))
        return self._dataset(type_of(f"|S{width}"), (self._count,), place)

    def _copy(self, spool: IO[bytes]) -> None:
        spool.seek(0)
        while chunk := spool.read(CHUNK):
            self._sink.write(chunk)

    def _align(self) -> int:
        self._sink.write(bytes(-self._sink.position % 64))
        return self._sink.position

    def _dataset(self, kind: bytes, shape: Sequence[int], place: int) -> int:
        size = prod(shape) * struct.unpack_from("<I", kind, 4)[0]
        space = struct.pack(f"<4B{len(shape)}Q", 2, len(shape), 0, 1, *shape)
        layout = struct.pack("<BBQQ", 3, 1, place if size else UNDEFINED, size)
        # 0x0a: room is made when bytes are written, and filled only if somebody says with what.
        return self._header([(1, space), (3, kind), (5, b"\x03\x0a"), (8, layout)])

    def _group(self, links: dict[str, int]) -> int:
        messages = [(2, struct.pack("<BBQQ", 0, 0, UNDEFINED, UNDEFINED)), (10, bytes(2))]
        for name, place in links.items():
            text = encode(name)
            # 0x11: two bytes for the length of the name, and the name is UTF-8.
            head = struct.pack("<BBBH", 1, 0x11, 1, len(text))
            messages.append((6, head + text + struct.pack("<Q", place)))
        return self._header(messages)

    def _header(self, messages: Iterable[tuple[int, bytes]]) -> int:
        """Write what an object is; return where that stands."""
        place = self._align()
        body = b"".join(struct.pack("<BHB", kind, len(data), 0) + data for kind, data in messages)
        head = b"OHDR" + struct.pack("<BBI", 2, 2, len(body)) + body
        self._sink.write(head + struct.pack("<I", lookup3(head)))
        return place


class _Table:
    """Where the parts of one kind lie: start and end, for each sample."""

    def __init__(self) -> None:
        self.rows, self.count = _spool(), 0

    def add(self, sample: int, start: int, size: int) -> None:
        self.fill_to(sample)
        self.rows.write(struct.pack("<QQ", start, start + size))
        self.count += 1

    def fill_to(self, count: int) -> None:
        while self.count < count:
            some = min(count - self.count, CHUNK // len(MISSING))
            self.rows.write(MISSING * some)
            self.count += some


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(1 << 16)


def _link_name(extension: str) -> str:
    """Return the name of a table: an empty name and a dot mean something else in HDF5."""
    return "%" + extension if extension in ("", ".") or extension.startswith("%") else extension


# Of floating-point numbers: where the exponent begins, its size, its bias.
_FLOATS = {2: (10, 5, 15), 4: (23, 8, 127), 8: (52, 11, 1023)}


def _type_bytes(dtype: str) -> int:
    return int(re.sub(r"\D", "", dtype))


def type_of(dtype: str) -> bytes:
    """Return how HDF5 calls a type of numpy."""
    order, kind, size = dtype[0], dtype[1], _type_bytes(dtype)
    is_big = order == ">"
    if kind in "iu":
        bits = is_big | (8 if kind == "i" else 0)
        return struct.pack("<4BIHH", 0x10, bits, 0, 0, size, 0, 8 * size)
    if kind == "f" and size in _FLOATS:
        place, width, bias = _FLOATS[size]
        head = struct.pack("<4BI", 0x11, 0x20 | is_big, 8 * size - 1, 0, size)
        return head + struct.pack("<HH4BI", 0, 8 * size, place, width, 0, place, bias)
    if kind == "S":
        return struct.pack("<4BI", 0x13, 1, 0, 0, size)
    if kind == "b":
        names = b"FALSE\0\0\0TRUE\0\0\0\0\0\1"
        return struct.pack("<4BI", 0x18, 2, 0, 0, 1) + type_of("|i1") + names
    raise DataError(
        f"HDF5 has no numbers of the type `{dtype}`",
        why="it has whole numbers, floating-point numbers of 2, 4 and 8 bytes, and texts",
        fix="--format tar",
    )
