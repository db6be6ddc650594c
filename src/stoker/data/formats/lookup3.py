"""The checksum of HDF5's headers: Bob Jenkins' lookup3, of bytes."""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
# How far each step rotates: for every twelve bytes, and at the end.
_MIX, _FINAL = (4, 6, 8, 16, 19, 4), (14, 11, 25, 16, 4, 14, 24)


def lookup3(data: bytes) -> int:
    """Return the checksum.

    >>> hex(lookup3(b"Four score and seven years ago"))
    '0x17770551'
    """
    a = b = c = 0xDEADBEEF + len(data) & _MASK
    if not data:
        return c
    whole = (len(data) - 1) // 12 * 12
    for at in range(0, whole, 12):
        x, y, z = struct.unpack_from("<3I", data, at)
        a, b, c = _mix(a + x & _MASK, b + y & _MASK, c + z & _MASK)
    x, y, z = struct.unpack("<3I", data[whole:].ljust(12, b"\0"))
    return _final(a + x & _MASK, b + y & _MASK, c + z & _MASK)


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _MASK


# The three words change places after each step, so that each step is the same.


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for by in _MIX:
        a, b, c = b, c + b & _MASK, (a - c & _MASK) ^ _rotated(c, by)
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    for by in _FINAL:
        a, b, c = b, (c ^ b) - _rotated(b, by) & _MASK, a
    return b
