"""The heads of array files, npy and idx: type, shape, and where the numbers begin. No numpy."""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Sequence
from math import prod
from typing import IO, NamedTuple

from stoker.errors import DataError

MAGIC = b"\x93NUMPY"
# A head is padded to a multiple of this, so that the numbers can be mapped.
ALIGNED = 64
MAX_HEAD = 1 << 20
# How idx calls its types; all are big endian.
IDX_TYPES = {8: "|u1", 9: "|i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# The types of whole numbers, as `struct` calls them.
INTEGERS = {"b1": "?", "u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q",
            "i8": "q"}  # fmt: skip


class Head(NamedTuple):
    """What an array file holds: `shape` with the first axis, and the offset of the numbers."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """The size of one sample."""
        return item_bytes(self.dtype) * prod(self.shape[1:])


def item_bytes(dtype: str) -> int:
    """Return the size of one number.

    >>> item_bytes("<f4"), item_bytes("|b1"), item_bytes("<U5")
    (4, 1, 20)
    """
    match = re.fullmatch(r"[<>|=]?([biufcmMSUV])(\d+)(\[\w+\])?", dtype)
    if match is None:
        raise ValueError(dtype)
    return int(match[2]) * (4 if match[1] == "U" else 1)


def npy_head(dtype: str, shape: Sequence[int]) -> bytes:
    """Return what stands before the numbers in a npy file."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": tuple(shape)}).encode()
    text += b" " * (-(len(text) + 11) % ALIGNED) + b"\n"
    return MAGIC + b"\x01\x00" + struct.pack("<H", len(text)) + text


def read_npy_head(file: IO[bytes], name: str) -> Head:
    """Read the head of a npy file from where the file is."""
    start = file.tell()
    begin = file.read(8)
    if begin[:6] != MAGIC or len(begin) < 8:
        raise _strange(name, "it does not begin as a npy file does")
    wide = begin[6] >= 2
    length = int.from_bytes(file.read(4 if wide else 2), "little")
    text = file.read(length) if length <= MAX_HEAD else b""
    try:
        found = ast.literal_eval(text.decode("utf-8" if begin[6] >= 3 else "latin-1"))
        dtype, shape = found["descr"], tuple(int(each) for each in found["shape"])
        is_fortran = bool(found["fortran_order"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise _strange(name, "its head cannot be read") from None
    if any(each < 0 for each in shape):
        raise _strange(name, f"its shape is {shape}")
    _refuse_kind(name, dtype)
    if is_fortran and len(shape) > 1:
        raise DataError(
            f"`{name}` is stored column by column",
            why="Fortran order: the numbers of one sample lie all over the file",
            fix="numpy.save(FILE, numpy.ascontiguousarray(array)), then again",
        )
    return Head(dtype, shape, file.tell() - start)


def read_idx_head(file: IO[bytes], name: str) -> Head:
    """Read the head of an idx file, as MNIST has them."""
    begin = file.read(4)
    if len(begin) < 4 or begin[:2] != b"\0\0" or begin[2] not in IDX_TYPES or not begin[3]:
        raise _strange(name, "it does not begin as an idx file does")
    sizes = file.read(4 * begin[3])
    if len(sizes) < 4 * begin[3]:
        raise _strange(name, "it ends within its head")
    shape = struct.unpack(f">{begin[3]}I", sizes)
    return Head(IDX_TYPES[begin[2]], shape, 4 + len(sizes))


def integers(data: bytes, dtype: str) -> list[int]:
    """Return whole numbers. Raises KeyError if they are none."""
    kind = INTEGERS[dtype.lstrip("<>|=")]
    order = ">" if dtype.startswith(">") else "<"
    return [int(each) for (each,) in struct.iter_unpack(order + kind, data)]


def _refuse_kind(name: str, dtype: object) -> None:
    why = None
    if not isinstance(dtype, str):
        why = "its numbers have several fields"
    elif "O" in dtype:
        why = "it holds Python objects, which are pickled: reading them may run any code"
    else:
        try:
            item_bytes(dtype)
        except ValueError:
            why = f"its type is `{dtype}`"
    if why:
        raise DataError(
            f"`{name}` is no array of numbers", why=why, fix="save it as an array of one plain type"
        )


def _strange(name: str, why: str) -> DataError:
    return DataError(f"`{name}` cannot be read", why=why, fix="copy or make it again")
