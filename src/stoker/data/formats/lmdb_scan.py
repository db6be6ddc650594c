"""Reading LMDB: where each value of an environment lies, found by walking through its pages."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data.formats import Member, damaged
from stoker.data.formats.lmdb import (
    BIG,
    BRANCH,
    HEAD,
    LAST,
    LEAF,
    MAGIC,
    META,
    METAPAGE,
    NODE,
    NONE,
    OVERFLOW,
    TREE,
    VERSION,
)  # fmt: skip
from stoker.data.sample import decode, split_name
from stoker.errors import DataError

# Values that are databases of their own; several values for one name.
SUB, DUPLICATE = 2, 4
MAX_DEPTH = 32


class _Tree(NamedTuple):
    """One database of an environment."""

    flags: int
    depth: int
    entries: int
    root: int


class _Environment(NamedTuple):
    path: Path
    file: IO[bytes]
    size: int
    page: int


def scan_lmdb(path: Path) -> Iterator[Member]:
    """Yield the values of an environment in the order of their names."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        environment, tree = _read_meta(path, file, size)
        yield from _walk(environment, tree, "")


def _read_meta(path: Path, file: IO[bytes], size: int) -> tuple[_Environment, _Tree]:
    found, page, why = [], 0, "it has no page that says where its tree begins"
    for start in (0, *(1 << shift for shift in range(9, 17))):
        head = os.pread(file.fileno(), 160, start)
        if len(head) < 152:
            break
        _, _, flags, _, _ = HEAD.unpack_from(head)
        magic, version, _, _ = META.unpack_from(head, 16)
        if not flags & METAPAGE or magic != MAGIC:
            continue
        free, main = TREE.unpack_from(head, 40), TREE.unpack_from(head, 88)
        last, transaction = LAST.unpack_from(head, 136)
        if version != VERSION:
            why = f"it has LMDB's format {version}, only {VERSION} is known"
        elif free[0] not in {1 << shift for shift in range(9, 17)} or start not in (0, free[0]):
            why = "the size of its pages is none that LMDB has"
        elif (last + 1) * free[0] > size:
            why = f"it has {size:,} bytes instead of {(last + 1) * free[0]:,}"
        else:
            page = free[0]
            found.append((transaction, _Tree(main[1], main[2], main[6], main[7])))
    if not found:
        raise damaged(path, why)
    return _Environment(path, file, size, page), max(found, key=lambda each: each[0])[1]


def _walk(environment: _Environment, tree: _Tree, prefix: str) -> Iterator[Member]:
    if tree.flags & DUPLICATE:
        raise _refused(environment.path, "it has several values for one name")
    if tree.entries > environment.size // NODE.size:
        raise damaged(environment.path, f"it has no room for {tree.entries:,} names")
    count, last = 0, None
    for name, node in _leaves(environment, tree):
        if last is not None and name <= last and not tree.flags:
            raise damaged(environment.path, f"`{decode(name)}` is not where its name belongs")
        last, count = name, count + 1
        if count > tree.entries:  # Or the tree may lead back into itself.
            break
        if node.flags & DUPLICATE:
            raise _refused(environment.path, f"`{decode(name)}` has several values")
        if node.flags & SUB:
            if prefix or node.size != TREE.size:
                raise damaged(environment.path, f"`{decode(name)}` is no database")
            data = os.pread(environment.file.fileno(), node.size, node.offset)
            fields = TREE.unpack(data)
            inner = _Tree(fields[1], fields[2], fields[6], fields[7])
            yield from _walk(environment, inner, decode(name) + "/")
        else:
            yield Member(*split_name(prefix + decode(name)), node.offset, node.size)
    if count != tree.entries:
        raise damaged(environment.path, f"it has not the {tree.entries:,} names that it should")


class _Node(NamedTuple):
    flags: int
    offset: int
    size: int


def _leaves(environment: _Environment, tree: _Tree) -> Iterator[tuple[bytes, _Node]]:
    """Yield the nodes of all leaves in their order."""
    if tree.root == NONE:
        return
    waiting = [iter((tree.root,))]
    while waiting:
        number = next(waiting[-1], None)
        if number is None:
            waiting.pop()
            continue
        data, is_leaf, pointers = _page(environment, number)
        if is_leaf != (len(waiting) == tree.depth) or len(waiting) > MAX_DEPTH:
            raise damaged(environment.path, f"page {number:,} is on the wrong level of the tree")
        if is_leaf:
            for at in pointers:
                yield _leaf(environment, number, data, at)
        else:
            waiting.append(iter([_child(data, at) for at in pointers]))


def _page(environment: _Environment, number: int) -> tuple[bytes, bool, tuple[int, ...]]:
    size = environment.page
    if (number + 1) * size <= environment.size:
        data = os.pread(environment.file.fileno(), size, number * size)
        own, _, flags, lower, upper = HEAD.unpack_from(data)
        count = (lower - HEAD.size) // 2
        if own == number and flags & ~0x10 in (BRANCH, LEAF) and 0 < count <= size // 2:
            pointers = struct.unpack_from(f"<{count}H", data, HEAD.size)
            if all(lower <= upper <= at <= size - NODE.size for at in pointers):
                return data, bool(flags & LEAF), pointers
    raise damaged(environment.path, f"page {number:,} is no page of a tree")


def _child(data: bytes, at: int) -> int:
    low, high, _ = struct.unpack_from("<IHH", data, at)
    return int(low | high << 32)


def _leaf(environment: _Environment, number: int, data: bytes, at: int) -> tuple[bytes, _Node]:
    low, high, flags, name_size = NODE.unpack_from(data, at)
    size, begin = low | high << 16, at + NODE.size + name_size
    name = data[at + NODE.size : begin]
    if flags & BIG and begin + 8 <= len(data):
        (page,) = struct.unpack_from("<Q", data, begin)
        start = page * environment.page
        if start + HEAD.size + size <= environment.size:
            own, _, kind, *_ = HEAD.unpack(os.pread(environment.file.fileno(), HEAD.size, start))
            if own == page and kind & OVERFLOW:
                return name, _Node(flags, start + HEAD.size, size)
    elif not flags & BIG and begin + size <= len(data):
        return name, _Node(flags, number * environment.page + begin, size)
    raise damaged(environment.path, f"the bytes of `{decode(name)}` are not in it")


def _refused(path: Path, why: str) -> DataError:
    return DataError(
        f"`{path}` cannot be indexed", why=why, fix="write it anew, with one value for each name"
    )
