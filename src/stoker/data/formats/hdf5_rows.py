"""HDF5 files of others: datasets with a row a sample, looked at with h5py, which is closed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, cast

from stoker.data.formats import damaged
from stoker.data.formats.hdf5_scan import Array, Arrays
from stoker.data.sample import CHUNK
from stoker.errors import DataError, FileError

# What a dataset of labels may be called.
LABEL_NAMES = ("label", "labels", "y", "target", "targets", "cls")


@contextmanager
def opened_arrays(path: Path) -> Iterator[Arrays]:
    """Give the datasets that have a row a sample, while the file is open."""
    try:
        import h5py  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise FileError(
            f"cannot look into `{path}`",
            why="h5py is not installed; what Stoker has packed or indexed is read without it",
            fix="pip install h5py",
        ) from None
    os.stat(path)  # noqa: PTH116  # Not there, or not allowed: the system says it best.
    try:
        # Locks are for those who write, and some shared file systems have none.
        with h5py.File(path, "r", locking=False) as file:
            yield _arrays(path, file, h5py)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        why = str(error).strip("'\"").partition("\n")[0]
        raise damaged(path, f"HDF5 says: {why}") from None


def _arrays(path: Path, file: Any, h5py: Any) -> Arrays:
    found: list[Any] = []
    file.visititems(lambda _, each: found.append(each) if isinstance(each, h5py.Dataset) else None)
    found = [each for each in found if each.shape]
    lengths = {each.name.strip("/"): len(each) for each in found}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count:,}" for name, count in list(lengths.items())[:6])
        raise _refused(path, f"its datasets have not one length: {told}", "one file for each")
    labels = [each for each in found if _is_label(each)]
    arrays = [_array(path, each) for each in found if each not in labels[:1]]
    arrays = [each for each in arrays if each.size]
    return Arrays(arrays, _reader(labels), len(found[0]) if arrays else 0)


def _reader(labels: list[Any]) -> Callable[[int, int], Sequence[int]] | None:
    if not labels:
        return None
    dataset = labels[0]
    return lambda start, end: cast("list[int]", dataset[start:end].tolist())


def _is_label(dataset: Any) -> bool:
    name = dataset.name.rpartition("/")[2].lower()
    return name in LABEL_NAMES and dataset.ndim == 1 and dataset.dtype.kind in "iu"


def _array(path: Path, dataset: Any) -> Array:
    name, dtype = dataset.name.strip("/"), dataset.dtype
    if dataset.chunks is not None or dataset.external or dataset.is_virtual:
        how = dataset.compression or "chunked, external or virtual"
        raise _refused(
            path,
            f"`{name}` is stored in pieces ({how}): its rows have no place in the file",
            f"h5repack -l CONTI -f NONE {path} plain.h5, then stoker index plain.h5",
        )
    if dtype.kind not in "biufcS":
        raise _refused(
            path,
            f"the values of `{name}` have no fixed size or are records ({dtype})",
            "h5py, to write them as numbers of one type",
        )
    place, size = dataset.id.get_offset(), dtype.itemsize * prod(dataset.shape[1:])
    if place is None and size and len(dataset):
        raise _refused(path, f"`{name}` was never written, or lies in its header", "write it anew")
    place = place or 0
    if place + size * len(dataset) > path.stat().st_size:
        raise damaged(path, f"it ends within `{name}`")
    _compare(path, dataset, place, size)
    return Array(name.replace("/", "."), dtype.str, tuple(dataset.shape[1:]), place, size)


def _compare(path: Path, dataset: Any, place: int, size: int) -> None:
    """Be sure that the first and the last row lie where they should."""
    if not len(dataset) or not size or size > CHUNK:
        return
    with path.open("rb", buffering=0) as file:
        for row in (0, len(dataset) - 1):
            if os.pread(file.fileno(), size, place + row * size) != dataset[row].tobytes():
                raise damaged(path, f"the rows of `{dataset.name}` are not where HDF5 says")


def _refused(path: Path, why: str, fix: str) -> DataError:
    return DataError(f"`{path}` cannot be indexed", why=why, fix=fix)
