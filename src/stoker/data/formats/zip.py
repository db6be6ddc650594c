"""ZIP: stored, not compressed, with ZIP64 only where a size or a count needs it."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from stoker.data.formats import Member, Place, damaged
from stoker.data.sample import Content, Sink, decode, encode, join_name, split_name
from stoker.errors import DataError

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
MAX32, MAX16 = 0xFFFFFFFF, 0xFFFF
UTF8, LATE, ENCRYPTED = 0x800, 0x8, 0x1
STORED, DEFLATED = 0, 8


class ZipWriter:
    """Writes a ZIP that `unzip` and Python read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = Sink(file)
        self._directory = tempfile.SpooledTemporaryFile(1 << 22)  # noqa: SIM115
        self._count = 0

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one sample: one file a part."""
        return [self._add(encode(join_name(key, each.extension)), each) for each in contents]

    def _add(self, name: bytes, content: Content) -> Place:
        if len(name) > MAX16:
            raise DataError(
                f"the name `{decode(name[:60])}…` is too long",
                why=f"it has {len(name):,} bytes, a ZIP file holds {MAX16:,}",
                fix="--format tar",
            )
        start, size = self._sink.position, content.size
        flags, (day, clock) = _flags(name), _dos_time(content.mtime_ns)
        extra = struct.pack("<HHQQ", 1, 16, size, size) if size >= MAX32 else b""
        short = min(size, MAX32)
        version = 45 if extra else 20
        self._sink.write(
            LOCAL.pack(b"PK\3\4", version, flags, STORED, clock, day, 0, short, short,
                       len(name), len(extra)) + name + extra
        )  # fmt: skip
        offset = self._sink.position
        crc = self._sink.write_content(content)
        self._sink.patch(start + 14, struct.pack("<I", crc))
        extra = struct.pack("<QQ", size, size) if size >= MAX32 else b""
        extra += struct.pack("<Q", start) if start >= MAX32 else b""
        extra = struct.pack("<HH", 1, len(extra)) + extra if extra else b""
        self._directory.write(
            CENTRAL.pack(b"PK\1\2", 0x300 | 45, 45 if extra else 20, flags, STORED, clock, day,
                         crc, short, short, len(name), len(extra), 0, 0, 0, 0o100644 << 16,
                         min(start, MAX32)) + name + extra
        )  # fmt: skip
        self._count += 1
        return Place(offset, size, crc)

    def finish(self) -> None:
        """Write the directory."""
        start = self._sink.position
        self._directory.seek(0)
        while chunk := self._directory.read(1 << 20):
            self._sink.write(chunk)
        size, end = self._sink.position - start, self._sink.position
        count = self._count
        if count >= MAX16 or start >= MAX32 or size >= MAX32:
            self._sink.write(END64.pack(b"PK\6\6", 44, 0x300 | 45, 45, 0, 0, count, count, size,
                                        start) + LOCATOR.pack(b"PK\6\7", 0, end, 1))  # fmt: skip
        few = min(count, MAX16)
        self._sink.write(
            END.pack(b"PK\5\6", 0, 0, few, few, min(size, MAX32), min(start, MAX32), 0)
        )

    def close(self) -> None:
        """Forget the directory."""
        self._directory.close()


def _flags(name: bytes) -> int:
    try:
        return 0 if name.isascii() else UTF8 * bool(name.decode())
    except UnicodeDecodeError:
        return 0


def _dos_time(mtime_ns: int) -> tuple[int, int]:
    when = time.gmtime(max(mtime_ns // 10**9, 315532800))  # ZIP's time begins in 1980.
    day = min(when.tm_year - 1980, 127) << 9 | when.tm_mon << 5 | when.tm_mday
    return day, when.tm_hour << 11 | when.tm_min << 5 | min(when.tm_sec, 59) // 2


def scan_zip(path: Path) -> Iterator[Member]:
    """Yield the files of a ZIP in the order of its directory."""
    with path.open("rb", buffering=1 << 16) as file:
        total = os.fstat(file.fileno()).st_size
        count, at, end = _find_directory(path, file, total)
        for _ in range(count):
            file.seek(at)
            fixed = file.read(CENTRAL.size)
            if len(fixed) < CENTRAL.size or fixed[:4] != b"PK\1\2":
                raise damaged(path, f"its directory cannot be read at byte {at:,}")
            (_, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, note_size, _,
             _, mode, start) = CENTRAL.unpack(fixed)  # fmt: skip
            name = file.read(name_size)
            extra = file.read(extra_size)
            at += CENTRAL.size + name_size + extra_size + note_size
            size, packed, start = _long(extra, size, packed, start)
            if name.endswith(b"/") or (mode >> 16) & 0o170000 not in (0, 0o100000):
                continue
            _refuse(path, name, flags, method)
            begin = _check_local(path, file, start, name, fixed)
            if begin + packed > end or (method == STORED and packed != size):
                raise damaged(path, f"`{_text(name, flags)}` does not fit in it")
            key, extension = split_name(_text(name, flags))
            yield Member(key, extension, begin, size, crc, packed if method else None)
        if at != end:
            raise damaged(path, "its directory is longer than it says")


def _find_directory(path: Path, file: IO[bytes], total: int) -> tuple[int, int, int]:
    """Return how many entries there are, where the directory begins and where it ends."""
    tail = os.pread(file.fileno(), MAX16 + END.size, max(0, total - MAX16 - END.size))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        raise damaged(path, "it has no directory at its end: it may be cut off")
    place = total - len(tail) + at
    _, _, _, _, count, size, start, note = END.unpack(tail[at : at + END.size])
    if place + END.size + note != total:
        raise damaged(path, "what follows its directory does not belong there")
    locator = os.pread(file.fileno(), LOCATOR.size, max(0, place - LOCATOR.size))
    if locator[:4] == b"PK\6\7":
        _, _, place, _ = LOCATOR.unpack(locator)
        end64 = os.pread(file.fileno(), END64.size, min(place, total))
        if len(end64) < END64.size or end64[:4] != b"PK\6\6":
            raise damaged(path, "its ZIP64 directory cannot be read")
        *_, count, size, start = END64.unpack(end64)
    if start + size != place:
        raise damaged(path, "its directory is not where it says")
    return count, start, place


def _long(extra: bytes, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """Return the sizes and the offset, from the ZIP64 field where they did not fit."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            size = next(values, size) if size == MAX32 else size
            packed = next(values, packed) if packed == MAX32 else packed
            start = next(values, start) if start == MAX32 else start
        at += 4 + length
    return size, packed, start


def _refuse(path: Path, name: bytes, flags: int, method: int) -> None:
    why = ""
    if flags & ENCRYPTED:
        why = f"`{_text(name, flags)}` is encrypted"
    elif method not in (STORED, DEFLATED):
        why = f"`{_text(name, flags)}` is compressed by method {method}"
    if why:
        raise DataError(
            f"`{path}` cannot be read", why=why, fix="unpack it with unzip or 7z, then stoker pack"
        )


def _check_local(path: Path, file: IO[bytes], start: int, name: bytes, central: bytes) -> int:
    """Return where the bytes begin; the file's own header must agree with the directory."""
    fixed = os.pread(file.fileno(), LOCAL.size + len(name), min(start, 1 << 62))
    if len(fixed) == LOCAL.size + len(name) and fixed[LOCAL.size :] == name:
        magic, _, flags, method, _, _, *told, name_size, extra_size = LOCAL.unpack(
            fixed[: LOCAL.size]
        )
        _, _, _, _, same_method, _, _, *known, same_size = CENTRAL.unpack(central)[:11]
        # Checksum and sizes may follow the bytes, or (sizes only) be in the ZIP64 field.
        count = 0 if flags & LATE else 1 if MAX32 in told[1:] else 3
        if (magic, method, told[:count], name_size) == (
            b"PK\3\4", same_method, known[:count], same_size,
        ):  # fmt: skip
            return start + LOCAL.size + len(name) + int(extra_size)
    raise damaged(path, f"the header of `{decode(name)}` cannot be read")


def _text(name: bytes, flags: int) -> str:
    # Without the flag a name is of code page 437 by the book, and UTF-8 in practice on Linux.
    return decode(name)
