"""Filling archives: one after the other, each with as many samples as belong into it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from stoker.data.block import Block, PartRow, Row, blocks_of
from stoker.data.checksum import crc32
from stoker.data.formats import OWN_LABELS, Place, Writer
from stoker.data.npy import npy_head
from stoker.data.packing.reading import Read
from stoker.data.sample import CHUNK, LABEL, Content, read_label
from stoker.data.sources.arrays import Rows
from stoker.errors import DataError

# The labels of all samples of an archive, where these are one array.
LABELS = "labels.npy"
# What a container needs for each part besides its bytes: as much as a tar does.
BLOCK = 512
# What it may need besides: the label, and the end of a tar.
SPARE = 4 * BLOCK


class Filler(Protocol):
    """Puts the samples of a source into archives, in their order."""

    def is_same(self, blocks: Iterable[Block]) -> bool:
        """Tell whether the next samples are those that an archive has already."""

    def begin(self, at: int) -> None:
        """Go to a sample, from which on archives are made."""

    def has_more(self) -> bool:
        """Tell whether there is another sample."""

    def fill(self, out: Writer, name: str) -> Iterator[Block]:
        """Write the samples of one archive."""

    def stamp(self) -> list[Any]:
        """Return what tells whether the source as a whole has changed."""

    def close(self) -> None:
        """Give back what it holds."""


class SampleFiller:
    """Of samples with parts of any size: each part is a file of its own in the archive."""

    def __init__(
        self,
        reads: Callable[[int, bool], Generator[Read, None, None]],
        container: str,
        shard_bytes: int,
    ) -> None:
        # Yields samples from a number on; only their sizes, if so asked.
        self._reads = reads
        self._has_label_part, self._shard_bytes = container not in OWN_LABELS, shard_bytes
        self._known: Generator[Read, None, None] | None = None
        self._rest: Generator[Read, None, None] | None = None
        self._next: Read | None = None

    def is_same(self, blocks: Iterable[Block]) -> bool:
        """Compare keys, labels, sizes and times."""
        if self._known is None:
            self._known = self._reads(0, True)
        for key, label, parts in chain.from_iterable(block.rows() for block in blocks):
            read = next(self._known, None)
            if read is None or read.sample.key != key:
                return False
            told = [(each[0], each[2], each[5]) for each in parts if not each[4]]
            found = [(each.extension, each.size, each.mtime_ns) for each in read.contents]
            # A part may have told the label.
            has_part = any(each[0] == LABEL and not each[4] for each in parts)
            if told != found or (read.sample.label != label and not has_part):
                return False
        return True

    def begin(self, at: int) -> None:
        """Read from a sample on."""
        self.close()
        self._rest = self._reads(at, False)
        self._next = next(self._rest, None)

    def has_more(self) -> bool:
        """Tell whether a sample waits."""
        return self._next is not None

    def fill(self, out: Writer, name: str) -> Iterator[Block]:
        """Write samples until the archive is as large as it should be."""
        return blocks_of(self._fill(out))

    def _fill(self, out: Writer) -> Iterator[Row]:
        assert self._rest is not None
        end = 0
        read, is_first = self._next, True
        while read is not None and (
            is_first or self._fits([each.size for each in read.contents], end)
        ):
            row = self._add(out, read)
            # Some containers know where things are at their end only.
            end = max(
                [end + sum([each[2] for each in row[2]]), *(each[1] + each[2] for each in row[2])]
            )
            yield row
            read, is_first = next(self._rest, None), False
        self._next = read

    def _fits(self, sizes: Iterable[int], end: int) -> bool:
        """Tell whether an archive may have one more sample: with what a tar needs for it."""
        needed = sum([-(-size // BLOCK) * BLOCK + BLOCK for size in sizes])
        return end + needed + SPARE <= self._shard_bytes

    def _add(self, out: Writer, read: Read) -> Row:
        contents, label = self._with_label(read)
        places = out.add(read.sample.key, contents, label)
        _check(read, places)
        return (
            read.sample.key,
            label,
            [
                (each.extension, *place, each.made, each.mtime_ns)
                for each, place in zip(contents, places, strict=True)
            ],
        )

    def stamp(self) -> list[Any]:
        """Each sample has its own."""
        return []

    def close(self) -> None:
        """End the threads that read."""
        for each in (self._known, self._rest):
            if each is not None:
                each.close()
        self._known = self._rest = None

    def _with_label(self, read: Read) -> tuple[tuple[Content, ...], int | None]:
        """Return the parts, with one for the label where WebDataset would look for it."""
        contents, label = read.contents, read.sample.label
        own = next((each for each in contents if each.extension == LABEL), None)
        if own is not None:
            if label is None and own.size < 12:
                label = read_label(b"".join(own.chunks()))
        elif label is not None and self._has_label_part:
            text = b"%d" % label
            when = contents[0].mtime_ns if contents else 0
            made = Content(LABEL, len(text), text, None, when, True, crc32(text))
            contents = (*contents, made)
        return contents, label


class RowFiller:
    """Of samples of one shape: they lie in the archive one after the other, as one array."""

    def __init__(
        self, source: Rows, order: Sequence[int], container: str, shard_bytes: int
    ) -> None:
        self._source, self._order, self._container = source, order, container
        self._sizes = {name: len(source.read(name, order[:1])) for name in source.arrays}
        self._per_shard = max(1, shard_bytes // max(1, sum(self._sizes.values())))
        self._known = self._at = 0

    def is_same(self, blocks: Iterable[Block]) -> bool:
        """Compare names and labels; the stamp tells of the bytes."""
        for key, label, _ in chain.from_iterable(block.rows() for block in blocks):
            if self._known >= len(self._order):
                return False
            row = self._order[self._known]
            if (key, label) != (self._source.key(row), self._source.label(row)):
                return False
            self._known += 1
        return True

    def begin(self, at: int) -> None:
        """Go to a row."""
        self._at = at

    def has_more(self) -> bool:
        """Tell whether there are rows left."""
        return self._at < len(self._order)

    def fill(self, out: Writer, name: str) -> Iterator[Block]:
        """Write as many rows as fit."""
        return blocks_of(self._fill(out, name))

    def _fill(self, out: Writer, name: str) -> Iterator[Row]:
        rows = self._order[self._at : self._at + self._per_shard]
        self._at += len(rows)
        if hasattr(out, "add_array"):
            yield from self._fill_arrays(out, rows)
        elif self._container in ("tar", "zip"):
            yield from self._fill_members(out, name, rows)
        else:
            yield from self._fill_records(out, rows)

    def stamp(self) -> list[Any]:
        """Return what tells whether the arrays have changed."""
        return self._source.stamp()

    def close(self) -> None:
        """Hold nothing."""

    def _fill_members(self, out: Writer, name: str, rows: Sequence[int]) -> Iterator[Row]:
        """Write one npy file for each array: whoever opens the archive can load it."""
        contents, crcs, heads = [], {}, {}
        for part, (dtype, shape) in self._source.arrays.items():
            heads[part] = npy_head(dtype, (len(rows), *shape))
            crcs[part] = array("I")
            size = len(heads[part]) + len(rows) * self._sizes[part]
            stream = self._stream(part, rows, heads[part], crcs[part])
            contents.append(Content(part, size, stream=stream))
        labels = self._labels(rows)
        if labels is not None:
            head = npy_head("<i8", (len(rows),))
            contents.append(Content(LABELS, len(head) + 8 * len(rows), head + labels))
        places = out.add(name, contents, None)
        starts = {
            part: place.offset + len(heads[part])
            for part, place in zip(heads, places, strict=False)
        }
        yield from self._rows(rows, starts, crcs)

    def _fill_arrays(self, out: Any, rows: Sequence[int]) -> Iterator[Row]:
        """Write one data set for each array, in a container that has arrays of its own."""
        starts, crcs = {}, {}
        for part, (dtype, shape) in self._source.arrays.items():
            crcs[part] = array("I")
            chunks = self._stream(part, rows, b"", crcs[part])()
            starts[part] = out.add_array(part, dtype, shape, len(rows), chunks)
        labels = self._labels(rows)
        if labels is not None:
            out.add_array("labels", "<i8", (), len(rows), iter([labels]))
        yield from self._rows(rows, starts, crcs)

    def _fill_records(self, out: Writer, rows: Sequence[int]) -> Iterator[Row]:
        """Write each sample by itself, each part as a small npy file."""
        heads = {part: npy_head(*each) for part, each in self._source.arrays.items()}
        for row in rows:
            found = {part: self._source.read(part, (row,)) for part in heads}
            contents = [
                Content(part, len(head) + len(found[part]), head + found[part])
                for part, head in heads.items()
            ]
            key, label = self._source.key(row), self._source.label(row)
            parts: list[PartRow] = []
            for (part, head), place in zip(
                heads.items(), out.add(key, contents, label), strict=True
            ):
                # What is known at the end only is counted from -1 down.
                offset = place.offset + len(head) if place.offset >= 0 else -1 - len(head)
                data = found[part]
                parts.append((part, offset, len(data), crc32(data), False, 0))
            yield key, label, parts

    def _stream(
        self, part: str, rows: Sequence[int], head: bytes, crcs: array[int]
    ) -> Callable[[], Iterator[bytes]]:
        size = self._sizes[part]
        step = max(1, CHUNK // max(1, size))

        def stream() -> Iterator[bytes]:
            del crcs[:]
            if head:
                yield head
            for start in range(0, len(rows), step):
                data = self._source.read(part, rows[start : start + step])
                view = memoryview(data)
                crcs.extend(
                    [crc32(view[at : at + size]) for at in range(0, len(data), size)]
                    if size
                    else [0] * len(rows[start : start + step])
                )
                yield data

        return stream

    def _labels(self, rows: Sequence[int]) -> bytes | None:
        if not len(rows) or self._source.label(rows[0]) is None:
            return None
        return array("q", [self._source.label(row) or 0 for row in rows]).tobytes()

    def _rows(
        self, rows: Sequence[int], starts: dict[str, int], crcs: dict[str, array[int]]
    ) -> Iterator[Row]:
        sizes = [(part, starts[part], self._sizes[part], crcs[part]) for part in starts]
        for at, row in enumerate(rows):
            parts: list[PartRow] = [
                (part, start + at * size, size, crc[at], False, 0)
                for part, start, size, crc in sizes
            ]
            yield self._source.key(row), self._source.label(row), parts


def _check(read: Read, places: list[Place]) -> None:
    """Compare with the checksum that the source had of its bytes."""
    for file, place in zip(read.sample.files, places, strict=False):
        if file.crc is not None and file.crc != place.crc:
            raise DataError(
                f"`{read.sample.key}` in `{file.path}` is damaged",
                why=f"the checksum of its part `{file.extension}` is wrong",
                fix=f"stoker verify {file.path}, which names all that are",
            )
