"""TFRecord: each record a `tf.train.Example` with the parts as bytes, written by hand."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data.formats import Member, Place, damaged
from stoker.data.formats.crc32c import extend, masked
from stoker.data.sample import CHUNK, Content, Sink, decode, encode

KEY, LABEL = "__key__", "label"
# The record as a whole, where it has more than bytes or is no Example.
WHOLE = "example"
LENGTH, CRC = struct.Struct("<Q"), struct.Struct("<I")
# Names of features and what surrounds them; values are not read.
MAX_NAME = 4096
BYTES_LIST, INT64_LIST = 1, 3
MAX_VARINT = 10


class _Checked(Sink):
    """A sink that keeps the checksum of a record."""

    crc = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write, and count it in."""
        self.crc = extend(self.crc, data)
        super().write(data)


class TFRecordWriter:
    """Writes records that TensorFlow reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = _Checked(file)

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one record."""
        heads = [_feature_head(encode(each.extension), each.size) for each in contents]
        before = _feature_head(encode(KEY), len(encode(key))) + encode(key)
        names = {each.extension for each in contents}
        if label is not None and LABEL not in names:
            before += _label_feature(label)
        inner = len(before) + sum(map(len, heads)) + sum(each.size for each in contents)
        start = b"\x0a" + _varint(inner)
        length = LENGTH.pack(len(start) + inner)
        self._sink.write(length + CRC.pack(masked(extend(0, length))))
        self._sink.crc = 0
        self._sink.write(start + before)
        places = []
        for head, content in zip(heads, contents, strict=True):
            self._sink.write(head)
            offset = self._sink.position
            places.append(Place(offset, content.size, self._sink.write_content(content)))
        self._sink.write(CRC.pack(masked(self._sink.crc)))
        return places

    def finish(self) -> None:
        """Nothing belongs to the end of a TFRecord file."""

    def close(self) -> None:
        """Hold nothing."""


def _feature_head(name: bytes, size: int) -> bytes:
    """Return what stands before the value of a feature with one string of bytes."""
    value = b"\x0a" + _varint(size)
    listed = b"\x0a" + _varint(len(value) + size) + value
    entry = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(listed) + size) + listed
    return b"\x0a" + _varint(len(entry) + size) + entry


def _label_feature(label: int) -> bytes:
    number = _varint(label & (1 << 64) - 1)
    packed = b"\x0a" + _varint(len(number)) + number
    listed = b"\x1a" + _varint(len(packed)) + packed
    entry = b"\x0a" + _varint(len(LABEL)) + LABEL.encode() + b"\x12" + _varint(len(listed)) + listed
    return b"\x0a" + _varint(len(entry)) + entry


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Field(NamedTuple):
    number: int
    start: int
    end: int


class _Strange(Exception):
    """The bytes are no Example."""


def scan_tfrecord(path: Path) -> Iterator[Member]:
    """Yield the bytes features of each record; the whole record if it has others or none."""
    # Records without a key are numbered; of many files, each has its own numbers.
    stem = path.name.removesuffix(".tfrecord").removesuffix(".tfrecords")
    with path.open("rb", buffering=8192) as file:
        end = os.fstat(file.fileno()).st_size
        for number, (start, size) in enumerate(records(path, file, end)):
            try:
                key, label, found, is_all = _read_example(file, start, start + size)
            except _Strange:
                key, label, found, is_all = None, None, [], False
            name = f"{stem}/{number:08d}" if key is None else key
            for feature, (at, length) in found:
                yield Member(name, feature, at, length, label=label)
            if not found or not is_all:
                yield Member(name, WHOLE, start, size, label=label)


def records(path: Path, file: IO[bytes], end: int) -> Iterator[tuple[int, int]]:
    """Yield where each record's data lies. The checksums of the lengths are checked."""
    at = 0
    while at < end:
        file.seek(at)
        head = file.read(LENGTH.size + CRC.size)
        if len(head) < 12 or masked(extend(0, head[:8])) != CRC.unpack(head[8:])[0]:
            raise damaged(path, f"the record at byte {at:,} has no valid length")
        (size,) = LENGTH.unpack(head[:8])
        if at + 16 + size > end:
            raise damaged(path, f"it ends within the record at byte {at:,}")
        yield at + 12, size
        at += 16 + size


def check_record(file: IO[bytes], start: int, size: int) -> bool:
    """Tell whether a record's own checksum is right. Reads all of it."""
    file.seek(start)
    crc, left = 0, size
    while left:
        chunk = file.read(min(left, CHUNK))
        crc, left = extend(crc, chunk), left - len(chunk)
        if not chunk:
            return False
    stored: int = CRC.unpack(file.read(4))[0]
    return stored == masked(crc)


def _read_example(
    file: IO[bytes], start: int, end: int
) -> tuple[str | None, int | None, list[tuple[str, tuple[int, int]]], bool]:
    key: str | None = None
    label: int | None = None
    found: list[tuple[str, tuple[int, int]]] = []
    is_all = True
    for features in _fields(file, start, end):
        for entry in _fields(file, features.start, features.end):
            parts = {each.number: each for each in _fields(file, entry.start, entry.end)}
            if 1 not in parts or 2 not in parts or parts[1].end - parts[1].start > MAX_NAME:
                raise _Strange
            name = decode(_bytes(file, parts[1]))
            kinds = _two(file, parts[2])
            values = _two(file, kinds[0]) if len(kinds) == 1 else []
            if name == LABEL and _is_number(kinds, values):
                label = _label(_bytes(file, values[0]))
            elif len(values) != 1 or kinds[0].number != BYTES_LIST:
                is_all = False
            elif name == KEY and values[0].end - values[0].start <= MAX_NAME:
                key = decode(_bytes(file, values[0]))
            else:
                found.append((name, (values[0].start, values[0].end - values[0].start)))
    return key, label, found, is_all


def _two(file: IO[bytes], field: _Field) -> list[_Field]:
    """Return the first two fields: whoever has more than one is not looked at further."""
    return list(islice(_fields(file, field.start, field.end), 2))


def _is_number(kinds: list[_Field], values: list[_Field]) -> bool:
    return (
        len(values) == 1
        and kinds[0].number == INT64_LIST
        and 0 < values[0].end - values[0].start <= MAX_VARINT
    )


def _label(data: bytes) -> int | None:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))
    number -= 1 << 64 if number >= 1 << 63 else 0
    return number if abs(number) < 1 << 31 else None


def _fields(file: IO[bytes], start: int, end: int) -> Iterator[_Field]:
    while start < end:
        file.seek(start)
        head = file.read(11)
        tag, size, used = head[:1], 0, 1
        if not tag or tag[0] & 7 != 2:
            raise _Strange
        while True:
            if used >= len(head):
                raise _Strange
            byte = head[used]
            size |= (byte & 0x7F) << 7 * (used - 1)
            used += 1
            if byte < 0x80:
                break
        if start + used + size > end:
            raise _Strange
        yield _Field(tag[0] >> 3, start + used, start + used + size)
        start += used + size


def _bytes(file: IO[bytes], field: _Field) -> bytes:
    file.seek(field.start)
    return file.read(field.end - field.start)
