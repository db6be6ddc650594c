"""Samples of fixed shape, all of them in memory: of the host, pinned, or of the GPU."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.data.loading.columns import divided, shaped
from stoker.data.loading.dataset import Dataset
from stoker.data.pictures.decode import library
from stoker.errors import DataError, UsageError, nearest

PLACES = ("host", "pinned", "cuda")
# How much is gathered at once while memory is filled.
CHUNK_BYTES = 16 << 20


class Resident:
    """All samples of a data set as one array a part; a batch is one selection of rows."""

    is_plain = True

    @property
    def is_on_device(self) -> bool:
        """Whether making a batch needs a GPU: also pinned memory does."""
        return self.where != "host"

    def __init__(self, dataset: Dataset, where: str = "host") -> None:
        _check(dataset, where)
        self.where, self.sample_bytes = where, dataset.sample_bytes
        self._length, self._asked = len(dataset), dataset.view.parts
        _check_room(len(dataset) * dataset.sample_bytes, where)
        self.columns = _filled(dataset, where)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> Any:
        place = range(self._length)[at]
        return self._shaped({name: each[place] for name, each in self.columns.items()})

    def __getitems__(self, samples: Iterable[int]) -> list[Any]:
        """Return many samples."""
        return [self[each] for each in samples]

    def batches(self, groups: Sequence[Sequence[int]]) -> list[Any]:
        """Return several batches, selected at once: what a sample is, of columns instead of values."""
        numpy = library("numpy", "arrays")
        numbers = numpy.concatenate([numpy.array(each, dtype="int64") for each in groups])
        return [self._shaped(each) for each in divided(self._selected(numbers), groups)]

    def _selected(self, numbers: Any) -> dict[str, Any]:
        if self.where == "host":
            return {name: each[numbers] for name, each in self.columns.items()}
        chosen = import_module("torch").from_numpy(numbers)
        if self.where == "cuda":
            there = next(iter(self.columns.values())).device
            chosen = chosen.pin_memory().to(there, non_blocking=True)
        return {name: _selected(each, chosen, self.where) for name, each in self.columns.items()}

    def _shaped(self, parts: dict[str, Any]) -> Any:
        return shaped(parts, self._asked)


def _selected(column: Any, chosen: Any, where: str) -> Any:
    torch = import_module("torch")
    if where == "cuda":
        return torch.index_select(column, 0, chosen)
    shape = (len(chosen), *column.shape[1:])
    out = torch.empty(shape, dtype=column.dtype, pin_memory=True)
    return torch.index_select(column, 0, chosen, out=out)


def _filled(dataset: Dataset, where: str) -> dict[str, Any]:
    """Return a column a part, filled piece by piece."""
    numpy = library("numpy", "arrays")
    columns: dict[str, Any] = {}
    step = max(1, CHUNK_BYTES // max(1, dataset.sample_bytes))
    for start in range(0, len(dataset), step):
        numbers = array("Q", range(start, min(len(dataset), start + step)))
        for name, values in dataset.columns(numbers).items():
            piece = numpy.asarray(values)
            if not piece.dtype.isnative:
                piece = piece.astype(piece.dtype.newbyteorder("="))
            if name not in columns:
                columns[name] = _empty((len(dataset), *piece.shape[1:]), piece, where)
            _fill(columns[name], start, piece, where)
    return columns


def _empty(shape: tuple[int, ...], like: Any, where: str) -> Any:
    if where == "host":
        return library("numpy", "arrays").empty(shape, like.dtype)
    torch = import_module("torch")
    kind = torch.from_numpy(like[:0].copy()).dtype
    if where == "pinned":
        return torch.empty(shape, dtype=kind, pin_memory=True)
    return torch.empty(shape, dtype=kind, device="cuda")


def _fill(column: Any, start: int, piece: Any, where: str) -> None:
    values = piece if where == "host" else import_module("torch").from_numpy(piece.copy())
    column[start : start + len(piece)] = values


def _check(dataset: Dataset, where: str) -> None:
    if where not in PLACES:
        match = nearest(where, PLACES) or "host"
        raise UsageError(
            f"samples cannot be kept in `{where}`",
            why=f"the places are {', '.join(PLACES)}",
            fix=f"resident({match!r})",
        )
    shapeless = [name for name in dataset.names if not dataset.has_fixed_shape(name)]
    if shapeless or not dataset.is_plain:
        raise DataError(
            f"`{dataset.path}` cannot be kept in memory as one array",
            why=f"the part `{shapeless[0]}` has no fixed shape"
            if shapeless
            else "a transform makes each sample anew",
            fix="stoker.open(…, parts=…) with labels and arrays of fixed shape, without transform",
        )
    if where != "host":
        try:
            torch = import_module("torch")
            why = "" if torch.cuda.is_available() else "torch finds no GPU in this process"
        except ImportError:
            why = "`torch` is not installed in this Python"
        if why:
            raise DataError(
                f'samples cannot be kept in "{where}" memory', why=why, fix='resident("host")'
            )


def _check_room(size: int, where: str) -> None:
    room = import_module("torch").cuda.mem_get_info()[0] if where == "cuda" else _available()
    if room is not None and size > room:
        raise DataError(
            f"{size:,} bytes of samples do not fit into memory",
            why=f"{room:,} bytes are free",
            fix="read them with stoker.Loader(stoker.open(…)) as they are needed",
        )


def _available() -> int | None:
    """Return how much memory the kernel can give to programs."""
    try:
        found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
