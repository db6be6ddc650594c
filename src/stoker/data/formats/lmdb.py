"""LMDB: one file, a name and its bytes. Written page by page, without the lmdb package.

Large values lie on pages of their own, in one piece, and are written as they come. Small ones lie
in the leaves of the tree, which is sorted by name: these are written last.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from stoker.data import spill
from stoker.data.formats import Place
from stoker.data.sample import Content, Sink, decode, encode, join_name
from stoker.errors import DataError

PAGE = 4096
# Number, padding, flags, then the bounds of the free room (or the number of pages).
HEAD = struct.Struct("<QHHHH")
# Magic, version, address, map size; then the free pages and the tree, last page, transaction.
META, TREE, LAST = struct.Struct("<IIQQ"), struct.Struct("<IHHQQQQQ"), struct.Struct("<QQ")
MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, METAPAGE = 1, 2, 4, 8
# Size or page (low, high, flags), then the size of the name.
NODE = struct.Struct("<HHHH")
BIG = 1
# A page must hold two nodes with their pointers; what is larger gets pages of its own.
MAX_NODE = ((PAGE - HEAD.size) // 2 & -2) - 2
MAX_NAME, MAX_VALUE = 511, (1 << 32) - 1
NONE = (1 << 64) - 1
INTEGER_KEYS = 8


class LMDBWriter:
    """Writes an environment of one file that the lmdb package reads (`subdir=False`)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._sink = Sink(file)
        self._sink.write(bytes(2 * PAGE))
        self._spools: list[IO[bytes]] = []
        self._small, self._entries = self._spool(), self._spool()
        self._count = self._small_count = 0
        self._pages = {BRANCH: 0, LEAF: 0, OVERFLOW: 0}

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one sample: one value a part."""
        return [self._add(encode(join_name(key, each.extension)), each) for each in contents]

    def _add(self, name: bytes, content: Content) -> Place:
        _refuse(name, content.size)
        if NODE.size + len(name) + content.size > MAX_NODE:
            count = -(-(HEAD.size + content.size) // PAGE)
            place, offset = self._sink.position // PAGE, self._sink.position + HEAD.size
            head = HEAD.pack(place, 0, OVERFLOW, count & 0xFFFF, count >> 16)
            self._sink.write(head)
            crc = self._sink.write_content(content)
            self._sink.write(bytes(-self._sink.position % PAGE))
            self._pages[OVERFLOW] += count
        else:
            place, offset = self._small.tell(), -1
            crc = Sink(self._small).write_content(content)
            self._small_count += 1
        spill.dump((name, self._count, place, content.size, offset), self._entries)
        self._count += 1
        return Place(offset, content.size, crc)

    def finish(self) -> Iterator[int] | None:
        """Write the tree, and where it begins. Return the offsets, if `add` did not know all."""
        offsets = self._spool()
        level, depth = self._write_leaves(offsets), 1
        while level.count > 1:
            level, depth = self._write_branches(level), depth + 1
        root = level.last if self._count else NONE
        free = TREE.pack(PAGE, INTEGER_KEYS, 0, 0, 0, 0, 0, NONE)
        pages = (self._pages[each] for each in (BRANCH, LEAF, OVERFLOW))
        tree = TREE.pack(0, 0, depth if self._count else 0, *pages, self._count, root)
        size = self._sink.position
        for number in (0, 1):  # The tree is in both, so that either may be lost.
            head = HEAD.pack(number, 0, METAPAGE, 0, 0) + META.pack(MAGIC, VERSION, 0, size)
            meta = head + free + tree + LAST.pack(size // PAGE - 1, number)
            self._sink.patch(number * PAGE, meta)
        if not self._small_count:
            return None
        return (offset for _, offset in spill.sort(_loaded(offsets)))

    def close(self) -> None:
        """Forget what was collected. Offsets must have been taken before."""
        for each in self._spools:
            each.close()

    def _spool(self) -> IO[bytes]:
        spool = tempfile.SpooledTemporaryFile(1 << 20)  # noqa: SIM115
        self._spools.append(spool)
        return spool

    def _write_leaves(self, offsets: IO[bytes]) -> _Level:
        above, page, last = _Level(self._spool()), _Page(), b""
        for name, number, place, size, offset in spill.sort(_loaded(self._entries)):
            if name == last:
                raise DataError(
                    f"`{decode(name)}` is there twice",
                    why="LMDB has one value for each name",
                    fix="keep each file once",
                )
            last, at = name, offset
            if offset >= 0:
                data, flags = struct.pack("<Q", place), BIG
            else:
                self._small.seek(place)
                data, flags = self._small.read(size), 0
            node = NODE.pack(size & 0xFFFF, size >> 16, flags, len(name)) + name + data
            if not page.fits(node):
                self._write_page(page, LEAF, above)
                page = _Page()
            inside = page.add(node, name) + NODE.size + len(name)
            if offset < 0:
                at = self._sink.position + inside
            spill.dump((number, at), offsets)
        if page.nodes:
            self._write_page(page, LEAF, above)
        return above

    def _write_branches(self, below: _Level) -> _Level:
        above, page = _Level(self._spool()), _Page()
        for name, number in _loaded(below.entries):
            # The first name of a page is never compared.
            node = _branch(number, name if page.nodes else b"")
            if not page.fits(node):
                self._write_page(page, BRANCH, above)
                page, node = _Page(), _branch(number, b"")
            page.add(node, name)
        self._write_page(page, BRANCH, above)
        return above

    def _write_page(self, page: _Page, kind: int, above: _Level) -> None:
        number = self._sink.position // PAGE
        self._sink.write(page.packed(number, kind))
        self._pages[kind] += 1
        above.add(page.first, number)


class _Level:
    """The pages of one level of the tree: the first name of each, and its number."""

    def __init__(self, entries: IO[bytes]) -> None:
        self.entries, self.count, self.last = entries, 0, 0

    def add(self, name: bytes, number: int) -> None:
        spill.dump((name, number), self.entries)
        self.count, self.last = self.count + 1, number


class _Page:
    """A page of the tree: pointers from its start, nodes from its end."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.first = b""
        self._upper = PAGE

    def fits(self, node: bytes) -> bool:
        lower = HEAD.size + 2 * (len(self.nodes) + 1)
        return self._upper - _even(len(node)) >= lower

    def add(self, node: bytes, name: bytes) -> int:
        """Add a node; return where it begins in the page."""
        if not self.nodes:
            self.first = name
        self.nodes.append(node)
        self._upper -= _even(len(node))
        return self._upper

    def packed(self, number: int, kind: int) -> bytes:
        pointers, at = [], PAGE
        for node in self.nodes:
            at -= _even(len(node))
            pointers.append(at)
        lower = HEAD.size + 2 * len(pointers)
        head = HEAD.pack(number, 0, kind, lower, at) + struct.pack(f"<{len(pointers)}H", *pointers)
        body = b"".join(each.ljust(_even(len(each)), b"\0") for each in reversed(self.nodes))
        return head + bytes(at - lower) + body


def _branch(number: int, name: bytes) -> bytes:
    return struct.pack("<IHH", number & 0xFFFFFFFF, number >> 32, len(name)) + name


def _even(size: int) -> int:
    return size + (size & 1)


def _loaded(spool: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    spool.seek(0)
    while True:
        try:
            yield spill.load(spool)
        except EOFError:
            return


def _refuse(name: bytes, size: int) -> None:
    why = ""
    if not 0 < len(name) <= MAX_NAME:
        why = f"it has {len(name):,} bytes, LMDB holds 1 to {MAX_NAME}"
    elif size > MAX_VALUE:
        why = f"its {size:,} bytes are more than LMDB holds in one value"
    if why:
        raise DataError(
            f"`{decode(name[:60])}` does not fit into LMDB", why=why, fix="--format tar"
        )
