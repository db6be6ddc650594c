"""Tar: USTAR, with PAX records only where a name or a size needs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data.checksum import crc32
from stoker.data.formats import Member, Place, damaged
from stoker.data.sample import Content, Sink, decode, encode, join_name, split_name
from stoker.errors import DataError

BLOCK = 512
NAME_BYTES, PREFIX_BYTES = 100, 155
MAX_SIZE = 8**11 - 1
# Written at once with its header: one call instead of three.
SMALL = 1 << 16
# Long enough for any name; what claims more is damaged.
MAX_EXTRA = 1 << 20


class TarWriter:
    """Writes a tar that GNU tar, Python and WebDataset read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = Sink(file)

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one sample: one file a part."""
        places = []
        for content in contents:
            size, data, crc = content.size, content.data, content.crc
            name = encode(join_name(key, content.extension))
            head = _heads(name, size, content.mtime_ns // 10**9)
            offset = self._sink.position + len(head)
            if data is not None and size < SMALL:
                self._sink.write(b"".join((head, data, bytes(-size % BLOCK))))
                crc = crc32(data) if crc is None else crc
            else:
                self._sink.write(head)
                crc = self._sink.write_content(content)
                self._sink.write(bytes(-size % BLOCK))
            places.append(Place(offset, size, crc))
        return places

    @property
    def position(self) -> int:
        """Where the next file begins."""
        return self._sink.position

    def add_blocks(self, blocks: memoryview) -> None:
        """Write files that are whole blocks already, each with its header."""
        self._sink.write(blocks)

    def finish(self) -> None:
        """Write the end mark."""
        self._sink.write(bytes(2 * BLOCK))

    def close(self) -> None:
        """Hold nothing."""


def _heads(name: bytes, size: int, mtime: int) -> bytes:
    mtime = min(max(mtime, 0), MAX_SIZE)
    split = _split(name)
    records = b""
    if split is None:
        split = (name[:NAME_BYTES], b"")
        if not _is_utf8(name):
            records += _record(b"hdrcharset", b"BINARY")
        records += _record(b"path", name)
    if size > MAX_SIZE:
        records += _record(b"size", b"%d" % size)
    head = _head(split, size if size <= MAX_SIZE else 0, mtime, b"0")
    if not records:
        return head
    extra = _head((b"PaxHeaders/extra", b""), len(records), 0, b"x")
    return extra + records + bytes(-len(records) % BLOCK) + head


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Return name and prefix as USTAR has them; `None` if they do not fit."""
    if len(name) <= NAME_BYTES:
        return name, b""
    slash = name.find(b"/", len(name) - NAME_BYTES - 1)
    if 0 < slash <= PREFIX_BYTES and slash < len(name) - 1:
        return name[slash + 1 :], name[:slash]
    return None


# What is the same in all headers: mode, owner and group; the format's name, no devices.
_BEFORE, _AFTER = b"0000644\0000000000\0000000000\0", bytes(100) + b"ustar\00000" + bytes(80)
_SAME = sum(_BEFORE) + sum(_AFTER) + 256


def _head(name: tuple[bytes, bytes], size: int, mtime: int, kind: bytes) -> bytes:
    numbers = b"%011o\0%011o\0" % (size, mtime)
    total = _SAME + sum(name[0]) + sum(numbers) + kind[0] + sum(name[1])
    return b"%b%b%b%06o\0 %b%b%b" % (
        name[0].ljust(NAME_BYTES, b"\0"), _BEFORE, numbers, total, kind, _AFTER,
        name[1].ljust(167, b"\0"),
    )  # fmt: skip


def _record(name: bytes, value: bytes) -> bytes:
    rest = b" %b=%b\n" % (name, value)
    size = len(rest) + 1
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d" % size + rest


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


class Entry(NamedTuple):
    """One entry of a tar: of what kind, named how, the bytes where, and what a link leads to."""

    kind: bytes
    name: bytes
    offset: int
    size: int
    target: bytes


def scan_tar(path: Path) -> Iterator[Member]:
    """Yield the files of a tar, under each name that they have.

    Folders, symbolic links and devices have no bytes and are left out.
    """
    # Little more than the headers is read, of large files at least.
    with path.open("rb", buffering=8192) as file:
        links = _Links(path)
        for entry in _entries(path, file, os.fstat(file.fileno()).st_size):
            if entry.kind == HARD_LINK:
                place = links.place(entry)
                if place is not None:
                    yield _member(entry.name, *place)
            elif entry.kind in REGULAR_KINDS:
                yield _member(entry.name, entry.offset, entry.size)


def members(
    path: Path, file: IO[bytes], end: float, is_left: Callable[[str], bool] = lambda _: False
) -> Iterator[Member]:
    """Yield the files of an open tar of so many bytes, going forward only.

    The bytes of a hard link lie behind: it is refused, unless it has none or `is_left` out.
    """
    bare: set[str] = set()
    for entry in _entries(path, file, end):
        if entry.kind not in (*REGULAR_KINDS, HARD_LINK):
            bare.add(_plain(entry.name))
        elif entry.kind == HARD_LINK:
            if _plain(entry.target) not in bare and not is_left(_plain(entry.name)):
                names = (decode(each) for each in (entry.name, entry.target))
                why = "`{}` is a link to the bytes of `{}`, which a stream has left behind"
                raise _refused(path, why.format(*names), "with --hard-dereference, or unpack it")
        else:
            yield _member(entry.name, entry.offset, entry.size)


class _Links:
    """Where the bytes of hard links are. An archive with any is read twice more, and only then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, tuple[int, int] | None] | None = None

    def place(self, link: Entry) -> tuple[int, int] | None:
        """Return them; None of a second name of a symbolic link or a device, which has no bytes."""
        if self._places is None:
            self._places = self._find()
        try:
            return self._places[_plain(link.target)]
        except KeyError:
            what = f"`{decode(link.name)}` is a link to `{decode(link.target)}`"
            raise damaged(self._path, f"{what}, which it does not have") from None

    def _find(self) -> dict[str, tuple[int, int] | None]:
        wanted = {_plain(each.target) for each in self._entries() if each.kind == HARD_LINK}
        return {
            name: (each.offset, each.size) if each.kind in REGULAR_KINDS else None
            for each in self._entries()
            if each.kind != HARD_LINK and (name := _plain(each.name)) in wanted
        }

    def _entries(self) -> Iterator[Entry]:
        with self._path.open("rb", buffering=8192) as file:
            yield from _entries(self._path, file, os.fstat(file.fileno()).st_size)


def _member(name: bytes, offset: int, size: int) -> Member:
    return Member(*split_name(_plain(name)), offset, size)


def _plain(name: bytes) -> str:
    return plain_name(decode(name))


def _entries(path: Path, file: IO[bytes], end: float) -> Iterator[Entry]:
    """Yield what an open tar of so many bytes holds, going forward only."""
    at = 0
    extra: dict[bytes, bytes] = {}
    common: dict[bytes, bytes] = {}
    while True:
        file.seek(at)
        head = file.read(BLOCK)
        if head.count(0) == BLOCK:
            return
        size = _checked_size(path, head, at)
        kind = head[156:157]
        if kind in b"xgLK":
            if size > MAX_EXTRA or at + BLOCK + size > end:
                raise damaged(path, f"the header at byte {at:,} claims {size:,} bytes")
            found = _extras(path, kind, file.read(size), at)
            (common if kind == b"g" else extra).update(found)
        else:
            fields = {**common, **extra}
            size = _pax_size(path, fields, size, at)
            name = fields.get(b"path") or _name(head)
            if kind in REGULAR_KINDS and at + BLOCK + size > end:
                raise damaged(path, f"it ends within `{decode(name)}`")
            if kind == b"S" or any(each.startswith(b"GNU.sparse") for each in fields):
                raise _refused(
                    path, f"`{decode(name)}` is stored as a sparse file", "without --sparse"
                )
            size = 0 if kind in b"123456" else size
            if not name.endswith(b"/"):
                target = fields.get(b"linkpath") or head[157:257].split(b"\0", 1)[0]
                yield Entry(kind, name, at + BLOCK, size, target)
            extra = {}
        at += BLOCK + -(-size // BLOCK) * BLOCK


REGULAR_KINDS = (b"0", b"\0", b"7")
HARD_LINK = b"1"


def _checked_size(path: Path, head: bytes, at: int) -> int:
    if len(head) < BLOCK:
        raise damaged(path, f"it ends at byte {at + len(head):,} without the end mark of a tar")
    try:
        wanted = int(head[148:156].strip(b" \0") or b"0", 8)
        if wanted != sum(head) - sum(head[148:156]) + 256:
            raise ValueError
        if head[124] & 0x80:
            return int.from_bytes(head[124:136], "big") & ((1 << 95) - 1)
        text = head[124:136].strip(b" \0") or b"0"
        if not text.isdigit():
            raise ValueError
        return int(text, 8)
    except ValueError:
        raise damaged(path, f"the checksum of the header at byte {at:,} is wrong") from None


def _extras(path: Path, kind: bytes, data: bytes, at: int) -> dict[bytes, bytes]:
    if kind in b"KL":
        return {b"linkpath" if kind == b"K" else b"path": data.rstrip(b"\0")}
    found, position = {}, 0
    while position < len(data):
        length, _, _ = data[position : position + 20].partition(b" ")
        size = int(length) if length.isdigit() else 0
        name, equals, value = data[position + len(length) + 1 : position + size].partition(b"=")
        if size < 5 or not equals or not value.endswith(b"\n"):
            raise damaged(path, f"the PAX header at byte {at:,} cannot be read")
        found[name] = value[:-1]
        position += size
    return found


def _pax_size(path: Path, fields: dict[bytes, bytes], size: int, at: int) -> int:
    text = fields.get(b"size")
    if text is None:
        return size
    if not text.isdigit() or len(text) > 19:
        raise damaged(path, f"the PAX header at byte {at:,} cannot be read")
    return int(text)


def _refused(path: Path, why: str, fix: str) -> DataError:
    error = damaged(path, why)
    error.what, error.fix = f"`{path}` cannot be indexed", f"make the archive anew, {fix}"
    return error


def _name(head: bytes) -> bytes:
    name = head[:NAME_BYTES].split(b"\0", 1)[0]
    prefix = head[345:500].split(b"\0", 1)[0] if head[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def plain_name(name: str) -> str:
    """Return a name without the `./` that `tar cf x.tar .` puts before each."""
    while name.startswith("./"):
        name = name[2:]
    return name
