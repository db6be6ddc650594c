"""`stoker.pack`: what `stoker pack` does, for data sets that are Python objects."""

from __future__ import annotations

import os
import random
import shutil
import struct
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import IO, Any

from stoker.data.formats import parse_format
from stoker.data.index import Shard
from stoker.data.npy import Head
from stoker.data.packing import journal
from stoker.data.packing.fill import Filler, RowFiller, SampleFiller
from stoker.data.packing.journal import open_journal, read_blocks
from stoker.data.packing.order import (
    DEFAULT_SHARD_BYTES,
    Order,
    Progress,
    Settings,
    parse_shard_bytes,
)
from stoker.data.packing.pack import (
    Packed,
    Packer,
    index_facts,
    pack_order,
    refusing,
    rows_path,
    write_index,
)
from stoker.data.packing.reading import Read
from stoker.data.packing.stripe import stripe
from stoker.data.sample import first_repeated
from stoker.data.sources import datasets, objects
from stoker.data.sources.arrays import ArraySource, Column, Held
from stoker.data.sources.objects import Array, Item
from stoker.errors import DataError, FileError, UsageError

ANEW = "then pack it again: it begins anew"
LABEL = struct.Struct("<q")


def pack(  # noqa: PLR0913  all but two by name
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    format: str = "tar",
    shard_size: str | int = DEFAULT_SHARD_BYTES,
    shuffle: int | None = None,
    label_names: Sequence[str] | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Packed:
    """Pack a data set into a folder: a path, or anything with items or that can be iterated.

    An item is a dict, a tuple such as `(image, label)`, or one value. Pictures keep their own
    bytes if they were not touched, and become PNG otherwise; arrays and tensors of one shape
    become one array; a whole number is the label; texts, bytes, lists and dicts are parts too.
    """
    size = shard_size if isinstance(shard_size, int) else parse_shard_bytes(shard_size)
    settings = Settings(parse_format(format), max(1, size), shuffle)
    if isinstance(dataset, str | os.PathLike):
        return pack_order(Order(Path(dataset), Path(out), settings, tell=progress))
    order = Order(Path(f"<{type(dataset).__name__}>"), Path(out), settings, tell=progress)
    datasets.refuse_no_dataset(dataset)
    names = list(label_names) if label_names is not None else datasets.label_names(dataset)
    return _pack(_items(dataset, shuffle), order, names)


def _items(dataset: Any, seed: int | None) -> Iterator[Item]:
    column, stored = datasets.label_column(dataset), datasets.undecoded(dataset)
    if not datasets.is_mapped(dataset):
        if seed is not None:
            raise UsageError(
                "what can only be iterated cannot be shuffled",
                why="its items come in its own order, and only once",
                fix="pack it as it is, then pack the result: stoker.pack(OUT, OUT2, shuffle=SEED)",
            )
        return objects.items(stored, label_column=column)
    numbers = list(range(len(dataset)))
    if seed is not None:
        random.Random(seed).shuffle(numbers)
    return objects.items(stored, iter(numbers), column)


def _pack(items: Iterator[Item], order: Order, names: list[str]) -> Packed:
    """Pack items from the first on: what an interrupted run has left cannot be known again."""
    facts = {**order.facts(), "source": str(order.source)}
    with (
        refusing(order.out, ANEW),
        open_journal(order.out, facts) as folder,
        ExitStack() as stack,
    ):
        for path in (*folder.glob("*.rows"), *order.out.glob("shard-*")):
            path.unlink()
        stripe(order.out)
        spool = stack.enter_context(closing(_Spool(folder)))
        rest = spool.take(items)
        source: ArraySource | None = None
        if rest is None and spool.count:
            source = spool.source()
            rows = range(spool.count)
            filler: Filler = RowFiller(
                source, rows, order.settings.container, order.settings.shard_bytes
            )
        else:
            filler = _sample_filler(rest or iter(()), order.settings)
        packer = Packer(order, folder)
        with closing(filler):
            shards, _ = packer.run(filler)
        _refuse_none(order.source, shards)
        paths = [rows_path(folder, number) for number, _ in enumerate(shards)]
        _refuse_repeated(order.source, paths)
        found = index_facts(order.settings, source)
        samples = write_index(order.out, paths, shards, names, found)
    shutil.rmtree(order.out / journal.NAME, ignore_errors=True)
    return _packed(samples, shards)


def _packed(samples: int, shards: list[Shard]) -> Packed:
    return Packed(samples, sum(each.size for each in shards), len(shards), 0, 0)


def _sample_filler(items: Iterator[Item], settings: Settings) -> SampleFiller:
    def reads(_at: int, _only_sizes: bool) -> Generator[Read, None, None]:
        for item in items:
            yield Read(item.sample(), item.contents())

    return SampleFiller(reads, settings.container, settings.shard_bytes)


def _refuse_none(source: Path, shards: list[Shard]) -> None:
    if not shards:
        raise FileError(
            f"`{source}` has no samples",
            why="it gave no item; what is iterated gives its items once only",
            fix="a data set that has items",
        )


def _refuse_repeated(source: Path, paths: list[Path]) -> None:
    def keys() -> Iterator[str]:
        for path in paths:
            for block in read_blocks(path, {}):
                yield from block.keys()

    key = first_repeated(keys)
    if key is not None:
        raise DataError(
            f"`{key}` is there twice in {source}",
            why="`__key__` is the name of one sample",
            fix="give each item another `__key__`, or none",
        )


class _Spool:
    """Arrays of one shape, collected until all items are seen: a file for each part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._shapes: list[tuple[str, str, tuple[int, ...], bool]] = []
        # The numbers that the items have in their data set: 8 bytes each.
        self._numbers = array("Q")

    @property
    def count(self) -> int:
        """How many items were collected."""
        return len(self._numbers)

    def take(self, items: Iterator[Item]) -> Iterator[Item] | None:
        """Collect all items; return all of them again if they are not arrays of one shape."""
        first = next(items, None)
        if first is None:
            return None
        if not first.is_arrays or first.has_own_key:
            return chain([first], items)
        self._shapes = first.shapes()
        for item in chain([first], items):
            if not item.is_arrays or item.has_own_key or item.shapes() != self._shapes:
                return chain(self._again(), [item], items)
            self._add(item)
        return None

    def source(self) -> ArraySource:
        """Return what was collected."""
        columns = {
            name: self._column(name, dtype, (self.count, *shape))
            for name, dtype, shape, _ in self._shapes
        }
        labels = self._column("", "<i8", (self.count,)) if self._shapes[0][3] else None
        return ArraySource(columns, labels, self._numbers)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _add(self, item: Item) -> None:
        for name, value in item.parts.items():
            assert isinstance(value, Array)
            self._file(name).write(value.data)
        if item.label is not None:
            self._file("").write(LABEL.pack(item.label))
        self._numbers.append(int(item.key))

    def _again(self) -> Iterator[Item]:
        source = self.source() if self.count else None
        for row in range(self.count):
            assert source is not None
            parts: dict[str, bytes | Array] = {
                name: Array(dtype, shape, source.read(name, range(row, row + 1)))
                for name, dtype, shape, _ in self._shapes
            }
            yield Item(source.key(row), parts, source.label(row))

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            path = self._folder / f"spool-{len(self._files)}"
            self._files[name] = path.open("w+b", buffering=1 << 20)
        return self._files[name]

    def _column(self, name: str, dtype: str, shape: tuple[int, ...]) -> Column:
        file = self._file(name)
        file.flush()
        path = Path(file.name)
        stat = path.stat()
        return Column(path, Held(file), Head(dtype, shape, 0), 0, (stat.st_size, stat.st_mtime_ns))
