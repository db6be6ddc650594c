"""Takes a usual PNG apart, up to the point where its filters are to be undone: that is in C.

Usual is what most data sets have: grey or RGB of 8 bits a channel, not interlaced, nothing
transparent, and whole. Of anything else, and of whatever may be wrong, other libraries decide, so
nothing here is ever guessed.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

# What unusual bytes raise here, and in C.
UNUSUAL = (ValueError, struct.error, zlib.error)
# Signature, then size, name, body (width, height, bits, colours, three methods) and CRC of IHDR.
_HEADER = struct.Struct(">8sI4sIIBBBBBI")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK, _CRC = struct.Struct(">I4s"), struct.Struct(">I")
# How many channels a pixel has, by the number of its kind of colours.
_CHANNELS = {0: 1, 2: 3}
# Chunks that change no pixel, and the size that each must have, as Pillow looks into some.
_HARMLESS = {b"gAMA": 4, b"pHYs": 9, b"sRGB": 1, b"cHRM": 32, b"tIME": 7}
_TEXT = b"tEXt"
# Above this Pillow speaks of a bomb, or of too much text: it is to decide.
_MAX_PIXELS, _MAX_TEXT = 89478485, 1 << 16


class Picture(NamedTuple):
    """A picture whose lines are still filtered: before each there is a byte that says how."""

    height: int
    width: int
    channels: int
    lines: bytes


def read(data: memoryview, most: int) -> Picture:
    """Return a usual picture of at most so many channels. Raises one of UNUSUAL."""
    signature, size, name, width, height, *kind, crc = _HEADER.unpack_from(data)
    channels = _CHANNELS.get(kind[1], 4)
    if (signature, size, name) != (_SIGNATURE, 13, b"IHDR") or crc != zlib.crc32(data[12:29]):
        raise ValueError("it does not begin like a PNG")
    if channels > most or kind != [8, kind[1], 0, 0, 0]:
        raise ValueError("its pixels are not usual")
    if not 0 < width * height <= _MAX_PIXELS:
        raise ValueError("it has no pixels, or too many")
    lines = _inflate(_pixels(data), height * (width * channels + 1))
    return Picture(height, width, channels, lines)


def _pixels(data: memoryview) -> bytes | memoryview:
    """Return the bodies of the IDAT chunks, joined; every chunk is compared with its CRC."""
    found: list[memoryview] = []
    at, before, text = _HEADER.size, b"IHDR", 0
    while before != b"IEND":
        size, name = _CHUNK.unpack_from(data, at)
        end = at + 8 + size
        if zlib.crc32(data[at + 4 : end]) != _CRC.unpack_from(data, end)[0]:
            raise ValueError("a chunk is not what it was")
        if name == b"IDAT":
            if found and before != name:
                raise ValueError("its pixels are not in one place")
            found.append(data[at + 8 : end])
        elif name == _TEXT:
            text += size
        elif name != b"IEND" and _HARMLESS.get(name) != size:
            raise ValueError("a chunk is not known")
        at, before = end + 4, name
    if text > _MAX_TEXT:
        raise ValueError("it has much text")
    return found[0] if len(found) == 1 else b"".join(found)


def _inflate(packed: bytes | memoryview, size: int) -> bytes:
    """Return what is packed, if it is of this size; never makes more of it."""
    stream = zlib.decompressobj()
    # One byte more, or the end would not be reached, where the checksum is.
    lines = stream.decompress(packed, size + 1)
    if len(lines) != size or not stream.eof or stream.unused_data:
        raise ValueError("it has too few pixels, or too many")
    return lines
