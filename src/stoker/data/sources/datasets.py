"""Data sets of PyTorch, torchvision and Hugging Face: what they know of their items.

Nothing is imported for them: each is known by its class, or by what it can do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.errors import DataError, UsageError

# What a whole number is called in an item if it is the number of a class.
LABELS = ("label", "labels", "cls", "class", "target", "y", "fine_label", "category")
# Files that `stoker.open` decodes: others are decoded by the data set, and become PNG.
KEPT = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def is_mapped(dataset: Any) -> bool:
    """Tell whether a data set has items by number."""
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def refuse_no_dataset(dataset: Any) -> None:
    """Raise UsageError for what has no samples, or has them in sets or batches."""
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        names = [str(each) for each in dataset]
        raise UsageError(
            f"a {kind} is no data set",
            why=f"it holds several by name: {', '.join(names[:5])}" if names else "it is empty",
            fix=f'pack each by itself: stoker.pack(data["{(names or ["train"])[0]}"], OUT)',
        )
    if kind == "DataLoader" and getattr(dataset, "batch_sampler", None) is not None:
        raise UsageError(
            "a DataLoader is no data set",
            why="it gives batches, and each would become one sample",
            fix="pack what it reads: stoker.pack(loader.dataset, OUT)",
        )
    if not is_mapped(dataset) and not hasattr(dataset, "__iter__"):
        raise UsageError(
            f"a {kind} is no data set",
            why="it has neither a length and items, nor can it be iterated",
            fix="give a path, a list, or a data set of torchvision or Hugging Face",
        )


def undecoded(dataset: Any) -> Any:
    """Return a data set that gives pictures as the files that they are, where nothing is lost."""
    if _is_subset(dataset):
        dataset = copy.copy(dataset)
        dataset.dataset = undecoded(dataset.dataset)
    elif _is_chain(dataset):
        dataset = copy.copy(dataset)
        dataset.datasets = [undecoded(each) for each in dataset.datasets]
    elif _loads_files(dataset):
        dataset = copy.copy(dataset)
        dataset.loader = _file_loader(dataset.loader)
    elif _features(dataset) and hasattr(dataset, "cast_column"):
        dataset = _stored(dataset)
    return dataset


def label_column(dataset: Any) -> str | None:
    """Return the column that Hugging Face's features say has the classes, if one does."""
    inner = next(_inner(dataset), None)
    if inner is not None:
        return label_column(inner)
    named = [name for name, each in _features(dataset).items() if hasattr(each, "names")]
    return next((each for each in named if each in LABELS), next(iter(named), None))


def label_names(dataset: Any) -> list[str]:
    """Return what a data set calls its classes, if it does."""
    inner = [label_names(each) for each in _inner(dataset)]
    if inner:
        return inner[0] if all(each == inner[0] for each in inner) else []
    found = getattr(dataset, "classes", None)
    column = label_column(dataset)
    if column is not None:
        found = _features(dataset)[column].names
    if isinstance(found, list | tuple) and all(isinstance(each, str) for each in found):
        return list(found)
    return []


@dataclass(frozen=True)
class File:
    """A file that an item has: its bytes, or where they are."""

    path: str
    data: bytes | None = None

    @property
    def extension(self) -> str:
        """How it is called after its last dot: `jpg`."""
        return Path(self.path.partition("::")[0]).suffix.lower().lstrip(".")

    def read(self) -> bytes:
        """Return its bytes."""
        if self.data is not None:
            return self.data
        return _fetch(self.path) if "://" in self.path else Path(self.path).read_bytes()


def _fetch(path: str) -> bytes:
    """Read a file in an archive or on a server: `zip://a.jpg::/data/a.zip`."""
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise DataError(
            f"cannot read `{path}`",
            why="`fsspec` is not installed in this Python",
            fix="pip install fsspec, or give the bytes",
        ) from None
    with fsspec.open(path, "rb") as file:
        return bytes(file.read())


def as_file(value: Any) -> File | None:
    """Return the file that a value is, also as Hugging Face has it: a dict of bytes and path."""
    if isinstance(value, File):
        return value
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:
        return File(value["path"] or "", value["bytes"])
    return None


class StoredRows:
    """Rows of Hugging Face as they are stored: pictures in lists and dicts are not decoded."""

    def __init__(self, dataset: Any) -> None:
        self._tables = dataset.with_format("arrow")

    def __getitem__(self, number: int) -> Any:
        return _with_files(self._tables[number].to_pylist()[0])


def _with_files(value: Any) -> Any:
    """Return a row whose files are files: of a path alone, JSON would have nothing but the path."""
    file = as_file(value)
    if file is not None:
        return file
    if isinstance(value, Mapping):
        return {name: _with_files(each) for name, each in value.items()}
    return [_with_files(each) for each in value] if isinstance(value, list) else value


def _stored(dataset: Any) -> Any:
    """Return a Hugging Face data set that gives its files as they are stored."""
    shape = getattr(dataset, "format", None) or {}
    kind = shape.get("type")
    if kind in ("arrow", "pandas", "polars"):  # Each row would be a table.
        dataset, kind = dataset.select_columns(shape["columns"]).with_format(None), None
    if kind == "custom":  # A transform of the user's, which wants what it always gets.
        return dataset
    features = _features(dataset)
    for name, feature in features.items():
        if getattr(feature, "decode", False):
            dataset = dataset.cast_column(name, _not_decoding(feature))
    if any(_decodes_inside(each) for each in features.values()):
        if hasattr(dataset, "decode"):
            return map(_with_files, dataset.decode(False))
        return StoredRows(dataset) if kind is None else dataset
    arrays = [name for name, each in features.items() if type(each).__name__.startswith("Array")]
    if arrays and kind is None and is_mapped(dataset):  # Else they come as lists of lists.
        dataset = dataset.with_format("numpy", columns=arrays, output_all_columns=True)
    return dataset


def _not_decoding(feature: Any) -> Any:
    feature = copy.copy(feature)
    feature.decode = False
    return feature


def _decodes_inside(feature: Any) -> bool:
    children: list[Any] = []
    if isinstance(feature, Mapping):
        children = list(feature.values())
    elif isinstance(feature, list | tuple):
        children = list(feature)
    elif hasattr(feature, "feature"):
        children = [feature.feature]
    return any(getattr(each, "decode", False) or _decodes_inside(each) for each in children)


def _features(dataset: Any) -> Mapping[str, Any]:
    found = getattr(dataset, "features", None)
    return found if isinstance(found, Mapping) else {}


def _inner(dataset: Any) -> Iterator[Any]:
    if _is_subset(dataset):
        yield dataset.dataset
    elif _is_chain(dataset):
        yield from dataset.datasets


def _is_subset(dataset: Any) -> bool:
    return _is_of_torch(dataset, "Subset")


def _is_chain(dataset: Any) -> bool:
    return _is_of_torch(dataset, "ConcatDataset")


def _is_of_torch(dataset: Any, name: str) -> bool:
    kind = type(dataset)
    return kind.__name__ == name and kind.__module__ == "torch.utils.data.dataset"


def _loads_files(dataset: Any) -> bool:
    """Tell whether torchvision would decode files and do nothing else to them."""
    loader = getattr(dataset, "loader", None)
    together = getattr(dataset, "transforms", None)
    reads = getattr(type(dataset), "__getitem__", None)
    return (
        getattr(loader, "__module__", "") == "torchvision.datasets.folder"
        and getattr(loader, "__name__", "") in ("default_loader", "pil_loader")
        and getattr(reads, "__module__", "").startswith("torchvision.datasets.")
        and getattr(dataset, "transform", None) is None
        and (together is None or type(together).__name__ == "StandardTransform")
    )


def _file_loader(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def file(path: Any) -> Any:
        is_kept = Path(path).suffix.lower() in KEPT
        return File(str(path)) if is_kept else load(path)

    return file
