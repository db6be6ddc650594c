"""Columns: each part of many samples in one piece, and batches that are cut out of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from stoker.data.pictures.decode import library

# Without numpy: what a memoryview calls the types.
_FORMATS = {
    "u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q",
    "f4": "f", "f8": "d", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I",
    "int32": "i", "uint64": "Q", "int64": "q", "float32": "f", "float64": "d", "b1": "?",
}  # fmt: skip


def shaped(parts: dict[str, Any], asked: str | tuple[str, ...] | None) -> Any:
    """Return what was asked for: all parts by their names, some as a tuple, or one alone."""
    if asked is None:
        return parts
    return parts[asked] if isinstance(asked, str) else tuple(parts[name] for name in asked)


def divided(
    columns: Mapping[str, Any], groups: Iterable[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each of several batches that lie one after the other."""
    start = 0
    for group in groups:
        end = start + len(group)
        yield {name: each[start:end] for name, each in columns.items()}
        start = end


def stacked(buffer: memoryview, count: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return bytes that lie one after the other as one array; without numpy, as a memoryview."""
    try:
        numpy = import_module("numpy")
    except ImportError:
        kind = _FORMATS.get(dtype.lstrip("<|="))
        if kind is None:
            library("numpy", f"arrays of type `{dtype}`")
        return buffer.cast("B").cast(kind, (count, *shape))  # type: ignore[call-overload]
    return numpy.frombuffer(buffer, dtype).reshape(count, *shape)
