"""CRC-32C, the checksum of TFRecord, masked as TensorFlow does.

By the compiled part if it is there, else by google_crc32c, else by a table: slow, and always there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from stoker.data import plain
from stoker.data.gather import engine


def extend(crc: int, data: bytes | memoryview) -> int:
    """Return the checksum of what came before and `data`; begin with 0.

    >>> hex(extend(0, b"123456789"))
    '0xe3069283'
    """
    return _extend()(crc, data)


def masked(crc: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(maxsize=1)
def _extend() -> Callable[[int, bytes | memoryview], int]:
    compiled: Callable[[bytes | memoryview, int], int] | None = getattr(engine, "crc32c", None)
    if compiled is not None and engine is not plain:
        return lambda crc, data: compiled(data, crc)
    try:
        import google_crc32c  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return _extend_slowly
    fast: Callable[[int, bytes | memoryview], int] = google_crc32c.extend
    return fast


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return tuple(table)


def _extend_slowly(crc: int, data: bytes | memoryview) -> int:
    table = _table()
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
