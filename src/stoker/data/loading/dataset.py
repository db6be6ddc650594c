"""`stoker.open`: packed samples as a data set that any loader can use.

It can be pickled, forked, sliced and read from many threads. It never writes.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.data import gather, plain
from stoker.data.block import NO_LABEL
from stoker.data.formats import format_of_name
from stoker.data.gather import Shards
from stoker.data.index import Index, index_of
from stoker.data.loading.columns import divided, shaped, stacked
from stoker.data.pictures import device
from stoker.data.pictures.crop import Crop
from stoker.data.pictures.decode import (
    JPEG,
    Decoder,
    Room,
    array_decoder,
    decoder,
    is_picture,
)
from stoker.data.pictures.picture import read_cropped
from stoker.data.sample import LABEL
from stoker.errors import DataError, FileError, StokerError, UsageError, nearest

if TYPE_CHECKING:
    from stoker.data.loading.resident import Resident
    from stoker.data.loading.slots import Rooms
    from stoker.data.loading.stream import Stream

# True or "rgb", "gray", "cuda", False, or decoders by extension.
Decode = bool | str | Mapping[str, Decoder]


class View(NamedTuple):
    """How the samples of a data set are to be seen."""

    parts: str | tuple[str, ...] | None = None
    decode: Decode = True
    crop: Crop | None = None
    transform: Callable[[Any], Any] | None = None
    verify: bool = False
    mapped: bool | None = None


def open(  # noqa: PLR0913  each is a choice of its own
    path: str | os.PathLike[str],
    *,
    parts: str | Sequence[str] | None = None,
    decode: Decode = True,
    crop: Crop | None = None,
    transform: Callable[[Any], Any] | None = None,
    verify: bool = False,
    mapped: bool | None = None,
) -> Dataset:
    """Return the samples of a packed folder or of one archive, as a map-style data set.

    A sample is a dict of its parts by extension; with `parts=("jpg", "cls")` a tuple of these,
    with `parts="jpg"` that one. `decode=False` leaves bytes; a dict adds decoders by extension;
    `"cuda"` decodes JPEGs on the GPU. `crop` is what is wanted of each picture, which is then not
    decoded larger than needed. `verify` checks the index, and each part that is read against its
    checksum. `mapped` chooses between mapping the archives and reading them.
    """
    named = parts if parts is None or isinstance(parts, str) else tuple(parts)
    _check_decode(decode, crop)
    _check_there(Path(path))
    return Dataset(Path(path), View(named, decode, crop, transform, verify, mapped))


def _check_there(path: Path) -> None:
    if index_of(path).exists():
        return
    if not path.exists():
        raise FileError(f"`{path}` does not exist", why="no such file", fix="check the name")
    from stoker.data.packing.journal import refuse_interrupted

    refuse_interrupted(path)
    is_archive = not path.is_dir() and format_of_name(path.name) not in (None, "compressed")
    raise FileError(
        f"`{path}` is no packed data set" if not is_archive else f"`{path}` has no index",
        why=f"there is no `{index_of(path)}`",
        fix=f"stoker index {path}" if is_archive else f"stoker pack {path} OUT",
    )


def _check_decode(decode: object, crop: Crop | None) -> None:
    if decode == "cuda":
        device.check()
    elif isinstance(decode, str) and decode not in ("rgb", "gray"):
        raise UsageError(
            f"`decode={decode!r}` is not known",
            why='it is True or "rgb", "gray", "cuda", False, or a dict of decoders by extension',
            fix='decode="rgb"',
        )
    if crop is not None and decode is False:
        raise UsageError(
            "a picture that is not decoded cannot be cropped",
            why="`decode` is False and `crop` is given",
            fix="leave one of them out",
        )


class Dataset:
    """Packed samples, in their order."""

    def __init__(self, path: Path, view: View, rows: range | None = None) -> None:
        self.path, self.view = path, view
        self.index = Index.open(index_of(path))
        if view.verify:
            self.index.check_columns()
        self.shards = Shards(self.index, view.mapped)
        self._rows = range(len(self.index)) if rows is None else rows
        self._kinds: dict[str, list[int]] = {}
        for kind, name in enumerate(self.index.extensions):
            self._kinds.setdefault(name, []).append(kind)
        labels = self.index.labels
        # Without names of labels, the first sample tells whether there are any; where it has none,
        # those of others may be parts, or in the index alone.
        self._has_labels = (
            bool(self.index.label_names)
            or bool(len(labels) and labels[0] != NO_LABEL)
            or (LABEL not in self._kinds and self.index.header.get("has_labels", False))
        )
        self._names = self._choose_parts()
        self._decoders = {name: self._choose_decoder(name) for name in self._names}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return Dataset(self.path, self.view, self._rows[at])
        return self._samples(array("Q", [self._row(at)]), is_copied=False)[0]

    def __getitems__(self, samples: Iterable[int]) -> list[Any]:
        """Return many samples, read at once; PyTorch's loader asks for a batch like this."""
        return self.samples(samples)

    def samples(
        self,
        samples: Iterable[int],
        chances: Sequence[Random] | None = None,
        rooms: Rooms | None = None,
    ) -> list[Any]:
        """Return many samples; what is random in the crop of each is drawn from its own chance.

        `rooms` gives memory for their pictures.
        """
        is_copied = not self.shards.is_mapped
        return self._samples(self._rows_of(samples), is_copied, chances, rooms)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self.path.absolute(), self.view, self._rows)

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {', '.join(self._names)} in {self.path}>"

    def key(self, at: int) -> str:
        """Return the name of a sample: its path without what follows the first dot."""
        return self.index.key(self._row(at))

    def label(self, at: int) -> int | None:
        """Return the label of a sample, without reading the sample; `None` if it has none."""
        return self.index.label(self._row(at))

    def find(self, key: str) -> int:
        """Return which sample has this key. Raises KeyError."""
        row = self.index.find(key)
        if row not in self._rows:
            raise KeyError(key)
        return self._rows.index(row)

    @property
    def label_names(self) -> list[str]:
        """What the labels stand for: the class folders."""
        return self.index.label_names

    @property
    def metadata(self) -> dict[str, Any]:
        """What the index tells of the whole data set."""
        return {
            key: each for key, each in self.index.header.items() if key not in ("columns", "made")
        }

    # -- other forms

    def resident(self, where: str = "host") -> Resident:
        """Return all samples in memory: of the "host", "pinned", or of the GPU ("cuda")."""
        from stoker.data.loading.resident import Resident

        return Resident(self, where)

    def stream(self, **how: Any) -> Stream:
        """Return the samples to be iterated over, each by one rank and one worker of a loader."""
        from stoker.data.loading.stream import make_stream

        return make_stream(self, **how)

    def to_tf(self, batch_size: int = 1, **how: Any) -> Any:
        """Return a `tf.data.Dataset` of batches; it takes what `Loader` takes."""
        from stoker.data.loading.tf_data import make_tf

        return make_tf(self, batch_size, **how)

    # -- what a loader asks

    @property
    def is_random(self) -> bool:
        """Whether a sample is not the same each time it is read."""
        return self.view.crop is not None and self.view.crop.is_random

    def check_archives(self) -> None:
        """Raise DataError if a mapped archive is not what it was: before it is read once more."""
        if self.shards.is_mapped:
            self.index.check_shards()

    def use_memory(self, pool: Any) -> None:
        """Gather batches into memory that this pool gives."""
        self.shards._pool = pool

    @property
    def is_on_device(self) -> bool:
        """Whether pictures are decoded by the GPU, which wants many at a time."""
        return self.view.decode == "cuda"

    # -- batches that need nothing done to single samples

    @cached_property
    def is_plain(self) -> bool:
        """Whether a batch can be gathered as a whole: bytes, labels and arrays of fixed shape."""
        if self.view.transform is not None:
            return False
        return all(
            self._is_label(name) or name in self.arrays or self._decoders[name] is None
            for name in self._names
        )

    @cached_property
    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The parts that are arrays of one shape in all samples: their type and shape."""
        if self.view.decode is False:
            return {}
        found: dict[str, Any] = self.index.header.get("arrays", {})
        return {name: (each["dtype"], tuple(each["shape"])) for name, each in found.items()}

    @cached_property
    def sample_bytes(self) -> int:
        """About how many bytes of the archives a sample takes."""
        return sum(each.size for each in self.index.shards) // max(1, len(self.index))

    def batches(self, groups: Sequence[Sequence[int]], threads: int = 1) -> list[Any]:
        """Return several batches of plain samples, gathered at once.

        A batch is what a sample is (dict, tuple or one value), of columns instead of values:
        labels as an array of int64, arrays with one more dimension, bytes as a `Gathered`.
        """
        samples = array("Q")
        for group in groups:
            samples.extend(group)
        columns = self.columns(samples, threads)
        return [self._shaped(each) for each in divided(columns, groups)]

    def columns(self, samples: array[int], threads: int = 1) -> dict[str, Any]:
        """Return each part of many plain samples, gathered."""
        rows = self._rows_of(samples)
        return {name: self._column(name, rows, threads) for name in self._names}

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that a sample has, in their order."""
        return self._names

    def has_fixed_shape(self, name: str) -> bool:
        """Say whether a part is a label or an array of one shape in all samples."""
        return self._is_label(name) or name in self.arrays

    def _column(self, name: str, rows: array[int], threads: int) -> Any:
        if self._is_label(name):
            return self._labels(rows)
        parts, missing = self._parts(name, rows)
        if missing:
            raise self._lacks(rows[parts.index(plain.NONE)], name)
        gathered = self.shards.read(parts, threads)
        if self.view.verify:
            self.shards.check(parts, gathered)
        if name not in self.arrays:
            return gathered
        try:
            if not gathered.is_even:
                raise ValueError("the sizes differ")
            return stacked(gathered.buffer, len(rows), *self.arrays[name])
        except (ValueError, TypeError) as error:
            why = f"the part `{name}` of a sample is not {self.arrays[name]}: {error}"
            raise gather.damaged(self.index, why) from None

    # -- single samples

    def _samples(
        self,
        rows: array[int],
        is_copied: bool,
        chances: Sequence[Random] | None = None,
        rooms: Rooms | None = None,
    ) -> list[Any]:
        columns = [
            list(self._values(name, rows, is_copied, chances, rooms)) for name in self._names
        ]
        found = []
        for at, values in enumerate(zip(*columns, strict=True) if columns else [()] * len(rows)):
            parts = dict(zip(self._names, values, strict=True))
            if self.view.parts is None:
                parts = {name: value for name, value in parts.items() if value is not None}
            elif any(each is None for each in values):
                raise self._lacks(rows[at], next(name for name in parts if parts[name] is None))
            sample = self._shaped(parts)
            found.append(self._transformed(sample, rows[at]) if self.view.transform else sample)
        return found

    def _values(
        self,
        name: str,
        rows: array[int],
        is_copied: bool,
        chances: Sequence[Random] | None,
        rooms: Rooms | None,
    ) -> Iterator[Any]:
        """Yield this part of each sample, decoded; `None` where a sample has none."""
        if self._is_label(name):
            yield from (None if each == NO_LABEL else each for each in map(self._label, rows))
            return
        parts, _ = self._parts(name, rows)
        there = array("Q", (part for part in parts if part != plain.NONE))
        # The GPU's decoder wants memory that can be written to.
        is_copied = is_copied or (self.is_on_device and is_picture(name, JPEG))
        read = self.shards.read(there) if is_copied else map(self.shards.view, there)
        pieces: Iterable[memoryview] = list(read) if self.view.verify else read
        if self.view.verify:
            self.shards.check(there, pieces)
        there_at = [at for at, part in enumerate(parts) if part != plain.NONE]
        made = self._made(
            name,
            pieces,
            [rows[at] for at in there_at],
            [chances[at] if chances else None for at in there_at],
            [rooms(name, at) if rooms else None for at in there_at],
        )
        yield from (None if part == plain.NONE else next(made) for part in parts)

    def _made(
        self,
        name: str,
        pieces: Iterable[memoryview],
        rows: Sequence[int],
        chances: Sequence[Random | None],
        rooms: Sequence[Room | None],
    ) -> Iterator[Any]:
        """Yield what becomes of the bytes of these samples."""
        decode, crop = self._decoders[name], self.view.crop
        if decode is None:
            yield from pieces
            return
        if self.is_on_device and is_picture(name, JPEG):
            yield from self._on_device(name, list(pieces), rows, chances)
            return
        own = decode if decode is not decoder(name, mode=self._mode) else None
        for row, piece, chance, room in zip(rows, pieces, chances, rooms, strict=True):
            read: Decoder = decode
            if is_picture(name) and crop is not None:
                read = partial(
                    read_cropped,
                    crop=crop,
                    chance=chance,
                    name=name,
                    mode=self._mode,
                    decode=own,
                    room=room,
                )
            elif is_picture(name) and own is None and room is not None:
                read = partial(_read_into, decode, room)
            yield self._decoded(read, piece, row, name)

    def _on_device(
        self,
        name: str,
        pieces: list[memoryview],
        rows: Sequence[int],
        chances: Sequence[Random | None],
    ) -> Iterator[Any]:
        try:
            pictures = device.decode(pieces)
        except StokerError:
            raise
        except Exception:  # One by one tells which it is.
            pictures = [
                self._decoded(device.decode_one, piece, row, name)
                for row, piece in zip(rows, pieces, strict=True)
            ]
        crop = self.view.crop
        yield from pictures if crop is None else device.cropped(pictures, crop, chances)

    def _transformed(self, sample: Any, row: int) -> Any:
        assert self.view.transform is not None
        try:
            return self.view.transform(sample)
        except (StokerError, MemoryError):
            raise
        except Exception as error:
            raise failed(self.index.key(row), error) from error

    def _decoded(self, decode: Decoder, piece: memoryview, row: int, name: str) -> Any:
        try:
            return decode(piece)
        except (StokerError, MemoryError):
            raise
        except Exception as error:
            raise DataError(
                f"cannot decode `{self.index.key(row)}.{name}`",
                why=f"{type(error).__name__}: {error}",
                fix=f"stoker verify {self.path} tells whether its bytes are as they were packed",
            ) from error

    # -- what is asked for

    def _choose_parts(self) -> tuple[str, ...]:
        legal = list(self._kinds) + [LABEL] * (self._has_labels and LABEL not in self._kinds)
        asked = self.view.parts
        if asked is None:
            return tuple(legal)
        names = (asked,) if isinstance(asked, str) else asked
        for name in names:
            if name not in legal:
                match = nearest(name, legal)
                raise DataError(
                    f"no sample of `{self.path}` has a part `{name}`",
                    why=f"the parts are {', '.join(legal) or 'none'}",
                    fix=f"parts={match!r}" if match else "name one of them",
                )
        return names

    def _choose_decoder(self, name: str) -> Decoder | None:
        if self.view.decode is False:
            return None
        more = self.view.decode if isinstance(self.view.decode, Mapping) else {}
        if name in self.arrays and name not in more:
            return array_decoder(*self.arrays[name])
        return decoder(name, more, self._mode)

    @property
    def _mode(self) -> str:
        return "gray" if self.view.decode == "gray" else "rgb"

    def _is_label(self, name: str) -> bool:
        """Whether a part need not be read, as the index has it."""
        return name == LABEL and self._has_labels

    def _label(self, row: int) -> int:
        label: int = self.index.labels[row]
        return label

    def _labels(self, rows: array[int]) -> Any:
        """Return the labels as integers of 64 bits; with numpy in a third of the time."""
        numpy = sys.modules.get("numpy")
        if numpy:
            found = numpy.frombuffer(self.index.labels, "<i4")[numpy.frombuffer(rows, "u8")]
            is_lacking = bool(rows) and int(found.min()) == NO_LABEL
            made = found.astype("i8")
        else:
            labels = self.index.labels
            made = array("q", [labels[row] for row in rows])
            is_lacking = NO_LABEL in made
        if is_lacking:
            raise self._lacks(rows[list(made).index(NO_LABEL)], LABEL)
        return made

    def _row(self, at: int) -> int:
        try:
            return self._rows[at]
        except IndexError:
            raise IndexError(f"sample {at:,} of {len(self):,}") from None
        except TypeError:
            raise TypeError(
                f"samples are counted: data[data.find({at!r})] is that of a key"
            ) from None

    def _rows_of(self, samples: Iterable[int]) -> array[int]:
        if self._rows == range(len(self.index)) and isinstance(samples, array):
            return samples
        rows = self._rows
        return array("Q", [rows[each] for each in samples])

    def _parts(self, name: str, rows: array[int]) -> tuple[array[int], int]:
        """Return this part of each sample, and how many samples have none."""
        index = self.index
        found = array("Q", bytes(8 * len(rows)))
        first, *others = self._kinds.get(name) or [1 << 16]
        try:
            missing = gather.engine.select(index.first, index.extension, rows, first, found)
            for kind in others if missing else ():
                more = array("Q", bytes(8 * len(rows)))
                gather.engine.select(index.first, index.extension, rows, kind, more)
                found = array("Q", map(min, found, more))
                missing = found.count(plain.NONE)
        except ValueError:
            raise gather.damaged(index, "a sample has parts that are not there") from None
        return found, missing

    def _shaped(self, parts: dict[str, Any]) -> Any:
        return shaped(parts, self.view.parts)

    def _lacks(self, row: int, name: str) -> DataError:
        return DataError(
            f"the sample `{self.index.key(row)}` has no part `{name}`",
            why="every sample of a batch must have the same parts",
            fix="stoker.open(…, parts=…) with parts that all samples have",
        )


def _read_into(decode: Callable[..., Any], room: Room, data: memoryview) -> Any:
    return decode(data, room)


def failed(key: str, error: Exception) -> DataError:
    """Return the error of a transform of the user's own, to be raised from `error`."""
    return DataError(
        f"the transform failed on the sample `{key}`",
        why=f"{type(error).__name__}: {error}",
        fix="the traceback above shows where",
    )
