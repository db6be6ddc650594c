"""Samples that Python gives: items of a data set, and what each value in them becomes.

Nothing is imported for them: what is of numpy, PyTorch or Pillow is known by what it can do.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from stoker.data.npy import npy_head
from stoker.data.sample import LABEL_LIMIT, Content, Sample
from stoker.data.sources.datasets import LABELS, File, as_file
from stoker.errors import DataError

KEY = "__key__"
# What is not of the sample: its key, and where WebDataset found it.
NO_PARTS = (KEY, "__url__", "__local_path__")
# How files of these formats are called; others by the name of the format.
IMAGE_EXTENSIONS = {"JPEG": "jpg", "TIFF": "tif", "MPO": "jpg"}
# What no name of a part may have in it.
NO_NAME = re.compile(r"[\x00-\x1f/\x7f]")
MAGICS = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n": "png", b"GIF8": "gif", b"RIFF": "riff"}
RIFF = {b"WEBP": "webp", b"WAVE": "wav"}
SAME = {"jpg": ("jpg", "jpeg")}


class Array(NamedTuple):
    """A value that is an array."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def npy(self) -> bytes:
        """Return it as a file."""
        return npy_head(self.dtype, self.shape) + self.data


class Json(NamedTuple):
    """A value that is JSON already."""

    data: bytes


class Item(NamedTuple):
    """A sample: its parts by their extensions."""

    key: str
    parts: dict[str, bytes | Array]
    label: int | None
    has_own_key: bool = False

    @property
    def is_arrays(self) -> bool:
        """Whether there is nothing else in it."""
        return bool(self.parts) and all(isinstance(each, Array) for each in self.parts.values())

    def shapes(self) -> list[tuple[str, str, tuple[int, ...], bool]]:
        """Return what must be the same in all samples for them to be one array."""
        has_label = self.label is not None
        return [
            (name, each.dtype, each.shape, has_label)
            for name, each in self.parts.items()
            if isinstance(each, Array)
        ]

    def contents(self) -> tuple[Content, ...]:
        """Return the parts as bytes."""
        found = []
        for name, value in self.parts.items():
            data = value.npy() if isinstance(value, Array) else value
            found.append(Content(name, len(data), data, crc=zlib.crc32(data)))
        return tuple(found)

    def sample(self) -> Sample:
        """Return what it is called."""
        return Sample(self.key, (), self.label)


def items(
    dataset: Any, order: Iterator[int] | None = None, label_column: str | None = None
) -> Iterator[Item]:
    """Yield the items of anything with a length and items, or that can be iterated."""
    numbered = enumerate(dataset) if order is None else ((each, dataset[each]) for each in order)
    for number, value in numbered:
        yield read_item(value, number, label_column)


def read_item(value: Any, number: int, label_column: str | None = None) -> Item:
    """Return the sample that an item is: a dict, a tuple, or one value.

    Its label is in the column of that name, or, without one, in the first that sounds like it.
    """
    key, label = f"{number:08d}", None
    parts: dict[str, bytes | Array] = {}
    named = _children(value, "") if isinstance(value, Mapping | list | tuple) else [("", value)]
    own = next((each for name, each in named if name == KEY and isinstance(each, str)), None)
    labels = ("", *LABELS) if label_column is None else (_clean(label_column),)
    for name, each in _leaves(named, number):
        if each is None or name in NO_PARTS:
            continue
        whole = _whole(each)
        if whole is not None and label is None and name in labels:
            label = whole
            continue
        extension, data = _part(each, name, number)
        parts[_free(_joined(name, extension), parts)] = data
    if not parts:  # Every sample has something in the archive.
        parts = {"json": b"null"} if label is None else {"cls": b"%d" % label}
    return Item(key if own is None else _checked(own, number), parts, label, own is not None)


def _leaves(named: list[tuple[str, Any]], number: int) -> Iterator[tuple[str, Any]]:
    """Yield the values that become parts, and their names.

    A list or dict is one if JSON can hold it. Otherwise, as with pictures or tensors in it, what
    it holds is, by names such as `target.boxes`.
    """
    for name, value in named:
        if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U"):
            value = value.tolist()  # noqa: PLW2901  lists of texts, or of arrays of several lengths
        if not isinstance(value, Mapping | list | tuple) or as_file(value):
            yield name, value
        elif (text := _json(value, name, number)) is not None:
            yield name, text
        else:
            yield from _leaves(_children(value, name), number)


def _children(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], name: str) -> Any:
    before = f"{name}." if name else ""
    if isinstance(value, Mapping):
        return [(before + _clean(str(each)), inner) for each, inner in value.items()]
    return [(f"{before}{at}" if name else "", inner) for at, inner in enumerate(value)]


def _clean(name: str) -> str:
    return NO_NAME.sub("_", name).strip(".")


def _checked(key: str, number: int) -> str:
    steps = key.split("/")
    if "\0" in key or "." in steps[-1] or any(each in ("", ".", "..") for each in steps):
        raise DataError(
            f"item {number} has the `{KEY}` {key!r}",
            why="a key is a path without what follows the first dot, as in WebDataset",
            fix="a key such as `a/0001`, or none",
        )
    return key


def _whole(value: Any) -> int | None:
    """Return a whole number, also one of numpy's or PyTorch's."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, int) and abs(value) < LABEL_LIMIT:
        return int(value)
    return None


def _part(value: Any, name: str, number: int) -> tuple[str, bytes | Array]:
    """Return the extension of a value, and its bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return _sniffed(data, name), data
    if isinstance(value, str):
        return "txt", value.encode("utf-8", "surrogateescape")
    if isinstance(value, Json):
        return "json", value.data
    if hasattr(value, "tobytes") and hasattr(value, "getbands"):
        return _picture(value)
    if hasattr(value, "detach"):
        value = _from_torch(value, number)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return "npy", _array(value, number)
    file = as_file(value)
    if file is not None:
        return _stored(file)
    text = _json(value, name, number)
    if text is None:
        raise _cannot_be_packed(value, name, number)
    return "json", text.data


def _json(value: Any, name: str, number: int) -> Json | None:
    """Return a value as JSON; None if it or something in it is none of JSON's."""
    try:
        return Json(json.dumps(value, default=_plain).encode())
    except TypeError:
        return None
    except (ValueError, RecursionError):  # It holds itself.
        raise _cannot_be_packed(value, name, number) from None


def _plain(value: Any) -> Any:
    """Return a number of numpy or PyTorch, a time or an exact number as JSON can hold it."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError


def _cannot_be_packed(value: Any, name: str, number: int) -> DataError:
    return DataError(
        f"item {number} has a value that cannot be packed",
        why=f"{name + ': ' if name else ''}it is a {type(value).__name__}",
        fix="give pictures, arrays, tensors, numbers, texts, bytes, or lists and dicts of them",
    )


def _array(value: Any, number: int) -> Array:
    dtype = value.dtype.str
    if value.dtype.names:
        raise DataError(
            f"item {number} has an array that cannot be packed",
            why=f"its type is {value.dtype}",
            fix="an array of one plain type",
        )
    return Array(dtype, tuple(value.shape), value.tobytes())


def _from_torch(value: Any, number: int) -> Any:
    try:
        return value.detach().cpu().numpy()
    except TypeError as error:
        raise DataError(
            f"item {number} has a tensor that cannot be packed",
            why=str(error),
            fix="convert it: tensor.float() or tensor.half()",
        ) from None


def _picture(image: Any) -> tuple[str, bytes]:
    """Return a picture's own bytes if it was not touched since it was opened, else a PNG."""
    kind = getattr(image, "format", None) or ""
    if getattr(image, "tile", None) and kind:
        extension = IMAGE_EXTENSIONS.get(kind, kind.lower())
        path, file = getattr(image, "filename", ""), getattr(image, "fp", None)
        if path and Path(path).is_file():
            return extension, Path(path).read_bytes()
        if isinstance(file, io.BytesIO):
            return extension, file.getvalue()
    out = io.BytesIO()
    try:
        image.save(out, "PNG")
    except OSError:  # PNG has no such colours.
        out = io.BytesIO()
        image.save(out, "TIFF")
        return "tif", out.getvalue()
    return "png", out.getvalue()


def _stored(file: File) -> tuple[str, bytes]:
    """Return a file's extension, and its bytes."""
    data = file.read()
    return file.extension or _sniffed(data, ""), data


def _sniffed(data: bytes, name: str) -> str:
    """Return the extension of bytes: what the name says, what they begin like, or `bin`."""
    last = name.rpartition(".")[2]
    found = next((kind for magic, kind in MAGICS.items() if data.startswith(magic)), "")
    if found == "riff":
        found = RIFF.get(data[8:12], "")
    if last and (not found or last.lower() in SAME.get(found, (found,))) and not last.isdigit():
        return last
    return found or "bin"


def _joined(name: str, extension: str) -> str:
    if not name:
        return extension
    return name if name.rpartition(".")[2] == extension else f"{name}.{extension}"


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that no other part has: `png`, `2.png`, `3.png`."""
    if name not in taken:
        return name
    return next(each for n in range(2, 1 << 20) if (each := f"{n}.{name}") not in taken)
