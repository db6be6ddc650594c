"""How samples become a batch: read, transformed and put together, as PyTorch would do it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any

from stoker.data.loading.dataset import Dataset, failed
from stoker.data.loading.pinned import pinned_view
from stoker.data.loading.slots import Rooms, Slots
from stoker.errors import DataError, StokerError


@dataclass(frozen=True)
class Work:
    """Makes batches of samples, in any thread; it can be sent to another process."""

    dataset: Any
    transform: Callable[[Any, Random], Any] | None
    collate: Callable[[list[Any]], Any]
    seed: int

    def __call__(self, task: tuple[array[int], int]) -> Any:
        """Return a whole batch, in a process of its own."""
        numbers, epoch = task
        _seed_all(Random(f"{self.seed} {epoch} {numbers[:1].tolist()}").getrandbits(32))
        return self.collate(self.samples(numbers, epoch))

    def samples(self, numbers: array[int], epoch: int, rooms: Rooms | None = None) -> list[Any]:
        """Return some samples. What is chance in them follows from seed, epoch and sample."""
        dataset = self.dataset
        if not isinstance(dataset, Dataset):
            samples = self._read(numbers.tolist())
            return samples if self.transform is None else self._changed(samples, numbers, epoch)
        if self.transform is None and not dataset.is_random:
            return dataset.samples(numbers, rooms=rooms)
        chances = [self._chance(epoch, each) for each in numbers]
        samples = dataset.samples(numbers, chances, rooms)
        if self.transform is None:
            return samples
        return self._changed(samples, numbers, epoch, chances)

    def _read(self, numbers: list[int]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(numbers))
        return [self.dataset[each] for each in numbers]

    def _changed(
        self,
        samples: list[Any],
        numbers: array[int],
        epoch: int,
        chances: list[Random] | None = None,
    ) -> list[Any]:
        assert self.transform is not None
        changed = []
        for at, (sample, number) in enumerate(zip(samples, numbers, strict=True)):
            chance = chances[at] if chances else self._chance(epoch, number)
            try:
                changed.append(self.transform(sample, chance))
            except (StokerError, MemoryError):
                raise
            except Exception as error:
                raise failed(self._name(number), error) from error
        return changed

    def _chance(self, epoch: int, number: int) -> Random:
        return Random(f"{self.seed} {epoch} {number}")

    def _name(self, number: int) -> str:
        return self.dataset.key(number) if isinstance(self.dataset, Dataset) else str(number)


def _seed_all(seed: int) -> None:
    """Seed what a transform may draw from: in worker processes it depends on the batch alone."""
    import random

    random.seed(seed)
    if "numpy" in sys.modules:
        import_module("numpy.random").seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def as_tensors(batch: Any) -> Any:
    """Return a gathered batch as PyTorch would have it, in a program that uses PyTorch."""
    if isinstance(batch, dict):
        return {name: as_tensors(each) for name, each in batch.items()}
    if isinstance(batch, tuple):
        return tuple(as_tensors(each) for each in batch)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(batch, array):
        if torch:
            return torch.tensor(batch, dtype=torch.int64)
        return batch.tolist()
    if torch and numpy and isinstance(batch, numpy.ndarray):
        if not batch.dtype.isnative:  # PyTorch knows one order of bytes only.
            batch = batch.astype(batch.dtype.newbyteorder("="))
        pinned = pinned_view(batch)
        return torch.from_numpy(batch) if pinned is None else pinned
    return batch


def stack(
    samples: list[Any],
    take: Callable[[int], memoryview],
    rest: Callable[[list[Any]], Any],
    slots: Slots | None = None,
) -> Any:
    """Make one batch of samples, with arrays in memory that `take` gives: pinned or used again.

    Fresh memory costs more than the copy, as the kernel clears it. What is in its slot already
    is not copied. What is no array, or not of one shape, goes to `rest`.
    """
    first = samples[0]
    if type(first) is dict:
        _check_parts(samples)
        return {name: stack([each[name] for each in samples], take, rest, slots) for name in first}
    if type(first) is tuple:
        return tuple(stack(list(each), take, rest, slots) for each in zip(*samples, strict=True))
    _check_shapes(samples)
    numpy = sys.modules.get("numpy")
    if not numpy or not isinstance(first, numpy.ndarray) or first.dtype.hasobject:
        return rest(samples)
    if not first.nbytes or any(each.dtype != first.dtype for each in samples):
        return rest(samples)
    whole = slots.whole(samples) if slots else None
    if whole is not None:
        return whole
    room = numpy.frombuffer(take(len(samples) * first.nbytes), first.dtype)
    return numpy.stack(samples, out=room.reshape(len(samples), *first.shape))


def _check_parts(samples: list[dict[Any, Any]]) -> None:
    """Refuse what would be lost without a word, where only the first sample lacks it."""
    every = {name: None for each in samples for name in each}
    lacking = next((name for name in every for each in samples if name not in each), None)
    if lacking is not None:
        raise DataError(
            f"a sample of a batch has no part `{lacking}`",
            why="every sample of a batch must have the same parts",
            fix="stoker.open(…, parts=…) with parts that all samples have, or a collate_fn of "
            "your own",
        )


def _check_shapes(samples: list[Any]) -> None:
    shapes = {tuple(each.shape) for each in samples if hasattr(each, "shape")}
    if len(shapes) > 1:
        one, other, *_ = sorted(shapes)
        raise DataError(
            "arrays of different shapes cannot be one batch",
            why=f"one is {one}, another is {other}",
            fix="stoker.open(…, crop=…) for pictures, or a collate_fn of your own",
        )


def fresh(size: int) -> memoryview:
    """Return memory that nobody has used; where the batch is sent to another process at once."""
    return memoryview(sys.modules["numpy"].empty(size, "uint8"))


def default_collate() -> Callable[[list[Any]], Any]:
    """Return PyTorch's own way to make a batch, in a program that uses PyTorch."""
    if "torch" not in sys.modules:
        return collate
    found: Callable[[list[Any]], Any] = import_module("torch.utils.data").default_collate
    return found


def collate(samples: list[Any]) -> Any:
    """Make one batch of samples without PyTorch: arrays are stacked, the rest is listed.

    In a program that uses numpy, numbers become an array.

    >>> collate([{"id": "1", "at": ("2", "3")}, {"id": "4", "at": ("5", "6")}])
    {'id': ['1', '4'], 'at': (['2', '5'], ['3', '6'])}
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: collate([each[name] for each in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(collate(list(each)) for each in zip(*samples, strict=True))
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(first, numpy.ndarray):
        return numpy.stack(samples)
    if numpy and isinstance(first, (bool, int, float)):
        return numpy.array(samples)
    return samples
