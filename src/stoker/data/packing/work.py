"""A source in the order in which it is packed: as it comes, shuffled, or a share of it."""

from __future__ import annotations

import json
import marshal
import os
import random
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate, islice
from pathlib import Path

from stoker.data.index import replacing
from stoker.data.packing import bulk, journal
from stoker.data.packing.bulk import BulkFiller
from stoker.data.packing.fill import Filler, RowFiller, SampleFiller
from stoker.data.packing.order import Order
from stoker.data.packing.reading import Read, read_ahead
from stoker.data.sample import File, Sample, first_repeated
from stoker.data.sources.arrays import Rows
from stoker.data.sources.source import Source
from stoker.errors import DataError, UsageError

# So many samples wait for their sizes.
SIZED = 4096
# The size of what is kept of a sample that is shuffled, and what most of them fit into.
NAME_SIZE, NAME_READ = struct.Struct("<I"), 512


class Work:
    """A source in the order in which it is packed."""

    def __init__(self, source: Source | Rows, order: Order, folder: Path, stack: ExitStack) -> None:
        self._order, seed = order, order.settings.shuffle
        self._rows: Rows | None = None
        # The keys of the first sample of a share, and of the first one after it.
        self.first: str | None = None
        self.following: str | None = None
        if isinstance(source, Rows):
            self._rows, self._row_order = source, _shuffled_rows(len(source), seed)
            return
        self._source, self._samples = source, source.samples
        if seed is not None:
            _refuse_shuffle(source, order)
            self._samples = _shuffled(source.samples(), seed, folder, stack)

    def filler(self, start: int = 0, stop: int | None = None) -> Filler:
        """Return what fills archives with the samples from one number to another."""
        settings = self._order.settings
        if self._rows is not None:
            rows = self._row_order[start:stop]
            return RowFiller(self._rows, rows, settings.container, settings.shard_bytes)

        def samples(at: int) -> Iterator[Sample]:
            self.following = None
            for number, sample in enumerate(islice(self._samples(), start + at, None), start + at):
                if number == start:
                    self.first = sample.key
                if number == stop:
                    self.following = sample.key
                    return
                yield sample

        def reads(at: int, only_sizes: bool) -> Generator[Read, None, None]:
            return read_ahead(samples(at), self._order.workers, only_sizes=only_sizes)

        if (
            settings.container == "tar"
            and bulk.intake is not None
            and getattr(self._source, "is_files", False)
        ):
            return BulkFiller(samples, reads, settings.shard_bytes, self._order.workers)
        return SampleFiller(reads, settings.container, settings.shard_bytes)

    def refuse_repeated(self) -> None:
        """Raise DataError if a key is there twice."""
        if self._rows is None and self._source.may_repeat:
            _refuse_repeated(self._source, self._order.source)

    def bounds(self, folder: Path, count: int) -> list[int]:
        """Return where the shares begin and end, by size; found out once, then read."""
        found = journal.read_json(folder / journal.SHARES)
        if found is not None:
            return list(found["bounds"])
        self.refuse_repeated()
        bounds = self._find_bounds(count)
        with replacing(folder / journal.SHARES) as file:
            file.write(json.dumps({"bounds": bounds}).encode())
        return bounds

    def _find_bounds(self, count: int) -> list[int]:
        if self._rows is not None:
            return [len(self._rows) * each // count for each in range(count + 1)]
        # 8 bytes of memory a sample.
        ends = array("Q", accumulate(_sizes(self._samples(), self._order.workers)))
        total = ends[-1] if ends else 0
        inner = [bisect_left(ends, total * each // count) for each in range(1, count)]
        return [0, *inner, len(ends)]


def _sizes(samples: Iterable[Sample], workers: int) -> Iterator[int]:
    """Yield the size of each sample; threads ask the file system."""

    def size(files: tuple[File, ...]) -> int:
        return sum(os.stat(each.path).st_size if each.offset is None else each.size  # noqa: PTH116
                   for each in files)  # fmt: skip

    rest = iter(samples)
    with ThreadPoolExecutor(workers) as pool:
        while block := [each.files for each in islice(rest, SIZED)]:
            yield from pool.map(size, block, chunksize=64)


def _shuffled_rows(count: int, seed: int | None) -> Sequence[int]:
    if seed is None:
        return range(count)
    rows = array("Q", range(count))
    random.Random(seed).shuffle(rows)
    return rows


def _shuffled(
    samples: Iterable[Sample], seed: int, folder: Path, stack: ExitStack
) -> Callable[[], Iterator[Sample]]:
    """Return what yields the samples in an order that the seed alone decides.

    They wait in a file without a name; memory holds 8 bytes of each.
    """
    file = stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
    places, at = array("Q"), 0
    for key, files, label in samples:
        data = marshal.dumps((key, [each[:] for each in files], label))
        places.append(at)
        at += file.write(NAME_SIZE.pack(len(data)) + data)
    file.flush()
    random.Random(seed).shuffle(places)

    def shuffled() -> Iterator[Sample]:
        number, head = file.fileno(), NAME_SIZE.size
        for place in places:
            data = os.pread(number, NAME_READ, place)
            size = head + NAME_SIZE.unpack_from(data)[0]
            if size > len(data):
                data = os.pread(number, size, place)
            key, files, label = marshal.loads(memoryview(data)[head:])
            yield Sample(key, tuple([File(*each) for each in files]), label)

    return shuffled


def _refuse_repeated(source: Source, path: Path) -> None:
    def names() -> Iterator[str]:
        for sample in source.samples():
            yield sample.key
            if len(sample.files) == 1:
                continue
            extensions = [each.extension for each in sample.files]
            yield from (
                f"{sample.key}\0{each}"
                for each in extensions
                for _ in range(extensions.count(each) - 1)
            )

    key = first_repeated(names)
    if key is not None:
        raise DataError(
            f"`{key.partition(chr(0))[0]}` is there twice in `{path}`",
            why="a key is a name up to its first dot, and stands for one sample",
            fix="keep the parts of a sample together, and each file once; of an archive, "
            f"stoker index {path} brings them together",
        )


def _refuse_shuffle(source: Source, order: Order) -> None:
    if not getattr(source, "can_shuffle", True):
        raise UsageError(
            f"`{order.source}` cannot be shuffled",
            why="it is compressed: it can be read from its start to its end only",
            fix=f"stoker pack {order.source} OUT, then stoker pack OUT {order.out} --shuffle SEED",
        )
