"""The samples of a data set to be iterated over, each by one rank and one worker of a loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker.data.loading.order import Order, Share
from stoker.data.loading.rank import place
from stoker.errors import UsageError

if TYPE_CHECKING:
    from stoker.data.loading.dataset import Dataset

# How many samples are read at once.
BLOCK = 64


class Stream:
    """Samples in the order of an epoch; `set_epoch` says of which.

    In a worker of PyTorch's DataLoader it yields this worker's part of this rank's part.
    """

    def __init__(  # noqa: PLR0913  the names that `Loader` has
        self,
        dataset: Dataset,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        self.dataset, self.shuffle, self.seed, self.epoch = dataset, shuffle, seed, 0
        # Known here: a worker process may not know.
        self._share = Share(*place(rank, world), 1, drop_last, pad)

    def __len__(self) -> int:
        """Return how many samples this rank has, over all workers."""
        return self._share.num_samples(len(self.dataset))

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        order = Order(len(self.dataset), self.seed, self.epoch, self.shuffle)
        mine = range(worker, len(self), workers)
        step = self._share.world * workers
        for at in range(0, len(mine), BLOCK):
            block = mine[at : at + BLOCK]
            first = self._share.rank + self._share.world * block[0]
            yield from self.dataset.__getitems__(order.take(first, len(block), step))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self) is not Stream, self.__dict__)

    def set_epoch(self, epoch: int) -> None:
        """Say of which epoch the order is."""
        self.epoch = epoch


def make_stream(dataset: Dataset, **how: Any) -> Stream:
    """Return a stream; one that PyTorch knows as iterable, in a program that uses PyTorch."""
    if len(dataset) == 0 and how.get("pad"):
        raise UsageError(
            "no samples cannot be padded", why=f"`{dataset.path}` is empty", fix="leave out pad"
        )
    return _kind("torch" in sys.modules)(dataset, **how)


@lru_cache(maxsize=2)
def _kind(is_torch: bool) -> type[Stream]:
    if not is_torch:
        return Stream
    return type("TorchStream", (Stream, import_module("torch.utils.data").IterableDataset), {})


def _restored(is_torch: bool, values: dict[str, Any]) -> Stream:
    kind = _kind(is_torch)
    made = kind.__new__(kind)
    made.__dict__.update(values)
    return made


def _worker() -> tuple[int, int]:
    torch = sys.modules.get("torch.utils.data")
    info = torch.get_worker_info() if torch else None
    return (0, 1) if info is None else (info.id, info.num_workers)
