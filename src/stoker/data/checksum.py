"""The checksum of a part's bytes: CRC-32, by the processor's own instructions where _intake.c is."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module

crc32: Callable[..., int]
try:
    crc32 = import_module("stoker.data.packing._intake").crc32
except ImportError:  # It was not compiled on this machine.
    crc32 = zlib.crc32
