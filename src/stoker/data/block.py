"""Samples of one archive as columns: what packing notes of them, and what goes into the index."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from stoker.data.sample import decode, encode

# Of a sample without a label: no data set has this one.
NO_LABEL = -(2**31)
# As many samples as are written at once, or fewer of this many bytes.
BLOCK_SAMPLES, BLOCK_BYTES = 1024, 64 << 20
TIME_LIMIT = 2**63 - 1

# A part: extension, offset, size, checksum, whether packing added it, time of its file.
PartRow = tuple[str, int, int, int, bool, int]
# A sample: key, label, parts.
Row = tuple[str, int | None, list[PartRow]]


class Block(NamedTuple):
    """Some samples and their parts, in order.

    An offset is negative where a container knows it at its end only.
    """

    # Of each sample: its key, all of them in one; its label; how many parts it has.
    names: bytes
    name_sizes: array[int]
    labels: array[int]
    counts: array[int]
    # Extensions, and whether packing added such parts.
    kinds: list[tuple[str, bool]]
    # Of each part: which of the kinds it is, and where its bytes are.
    kind: array[int]
    offsets: array[int]
    sizes: array[int]
    crcs: array[int]
    times: array[int]

    @classmethod
    def load(cls, columns: Sequence[Any]) -> Block:
        """Return the block that was written as plain values, with bytes for its arrays."""
        names, name_sizes, labels, counts, kinds, *parts = columns
        return cls(
            names,
            array("I", name_sizes),
            array("i", labels),
            array("I", counts),
            kinds,
            *map(array, "IqQIq", parts),
        )

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Block:
        """Return samples as columns."""
        keys, labels, found = zip(*rows, strict=True)
        names = [encode(key) for key in keys]
        parts = [part for each in found for part in each]
        extensions, offsets, sizes, crcs, made, times = (
            zip(*parts, strict=True) if parts else [()] * 6
        )
        kinds = {
            each: at for at, each in enumerate(dict.fromkeys(zip(extensions, made, strict=True)))
        }
        return cls(
            b"".join(names),
            array("I", map(len, names)),
            array("i", [NO_LABEL if label is None else label for label in labels]),
            array("I", map(len, found)),
            list(kinds),
            array("I", [kinds[each] for each in zip(extensions, made, strict=True)]),
            array("q", offsets),
            array("Q", sizes),
            array("I", crcs),
            # Some file systems know later times than this.
            array("q", [min(each, TIME_LIMIT) for each in times]),
        )

    def rows(self) -> Iterator[Row]:
        """Yield sample after sample."""
        name = part = 0
        for size, label, count in zip(self.name_sizes, self.labels, self.counts, strict=True):
            key = decode(self.names[name : name + size])
            parts = [self._part(at) for at in range(part, part + count)]
            yield key, None if label == NO_LABEL else label, parts
            name, part = name + size, part + count

    def _part(self, at: int) -> PartRow:
        extension, made = self.kinds[self.kind[at]]
        return extension, self.offsets[at], self.sizes[at], self.crcs[at], made, self.times[at]

    def keys(self) -> Iterator[str]:
        """Yield the key of each sample."""
        ends = accumulate(self.name_sizes)
        for end, size in zip(ends, self.name_sizes, strict=True):
            yield decode(self.names[end - size : end])

    def is_made(self, part: int) -> bool:
        """Tell whether packing added a part."""
        return self.kinds[self.kind[part]][1]

    def cut(self, first: int, last: int) -> Block:
        """Return some of the samples."""
        names = slice(sum(self.name_sizes[:first]), sum(self.name_sizes[:last]))
        parts = slice(sum(self.counts[:first]), sum(self.counts[:last]))
        return Block(
            self.names[names],
            self.name_sizes[first:last],
            self.labels[first:last],
            self.counts[first:last],
            self.kinds,
            self.kind[parts],
            self.offsets[parts],
            self.sizes[parts],
            self.crcs[parts],
            self.times[parts],
        )

    def moved(self, by: int) -> Block:
        """Return the same with other offsets."""
        return self._replace(offsets=array("q", [each + by for each in self.offsets]))


def blocks_of(rows: Iterable[Row]) -> Iterator[Block]:
    """Yield samples as columns, some at a time."""
    held: list[Row] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum([part[2] for part in row[2]])
        if len(held) == BLOCK_SAMPLES or size >= BLOCK_BYTES:
            yield Block.of(held)
            held, size = [], 0
    if held:
        yield Block.of(held)
