"""In which order an epoch visits the samples, and which of them are whose.

The order of an epoch is a permutation that is computed, not stored: the sample at any position
is known at once, so that a billion samples, other ranks and resuming cost no memory and no time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any

from stoker.data import gather
from stoker.errors import UsageError

ROUNDS = 8


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = blake2b(f"{seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return tuple(int.from_bytes(digest[at : at + 8], "little") for at in range(0, 8 * ROUNDS, 8))


@dataclass(frozen=True)
class Order:
    """The samples of one epoch in their order, the same on every rank."""

    length: int
    seed: int = 0
    epoch: int = 0
    is_shuffled: bool = True

    def take(self, start: int, count: int, step: int = 1) -> array[int]:
        """Return the samples at `count` positions from `start`; past the end it begins again."""
        positions = range(start, start + count * step, step)
        if count and positions[-1] >= self.length:
            return array("Q", (self._sample(each % self.length) for each in positions))
        if not self.is_shuffled:
            return array("Q", positions)
        keys = _keys(self.seed, self.epoch)
        found = array("Q", bytes(8 * count))
        gather.engine.permute(self.length, array("Q", keys), start, step, found)
        return found

    def _sample(self, position: int) -> int:
        return self.take(position, 1)[0]


@dataclass(frozen=True)
class Share:
    """What one rank of a world takes of an epoch, in batches.

    In each step the world takes the next `world * batch_size` positions; a rank takes every
    `world`th of them. After any step it is therefore one number that says what has been taken,
    and a world of another size goes on from there.
    """

    rank: int = 0
    world: int = 1
    batch_size: int = 1
    drop_last: bool = False
    pad: bool = False
    # How much one step takes over all ranks.
    step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", self.world * self.batch_size)
        if self.batch_size < 1:
            raise UsageError(
                f"a batch of {self.batch_size} samples cannot be made",
                why="`batch_size` must be at least 1",
                fix="give for example batch_size=64",
            )
        if not 0 <= self.rank < self.world:
            raise UsageError(
                f"rank {self.rank} is not one of {self.world}",
                why="ranks count from 0 to one less than the size of the world",
                fix="give rank and world as the launcher does, or neither of them",
            )
        if self.drop_last and self.pad:
            raise UsageError(
                "`drop_last` and `pad` exclude each other",
                why="one leaves the last samples out, the other fills the last batch up",
                fix="give one of them",
            )

    def num_samples(self, left: int) -> int:
        """Return how many samples this rank takes of those that are left of the epoch."""
        if self.drop_last:
            return left // self.step * self.batch_size
        if self.pad:
            return -(-left // self.world)
        return max(0, -(-(left - self.rank) // self.world))

    def num_batches(self, left: int) -> int:
        """Return how many batches this rank makes of what is left of the epoch."""
        return -(-self.num_samples(left) // self.batch_size)

    def is_even(self, left: int) -> bool:
        """Say whether all ranks make the same number of batches."""
        return self.drop_last or self.pad or not 0 < left % self.step < self.world

    def batch(self, order: Order, start: int, number: int) -> array[int]:
        """Return the samples of a batch, counted from where `start` positions were taken."""
        left = order.length - start
        count = min(self.batch_size, self.num_samples(left) - number * self.batch_size)
        first = start + number * self.step + self.rank
        return order.take(first, max(0, count), self.world)

    def taken(self, length: int, start: int, batches: int) -> int:
        """Return how many positions of the epoch are taken after so many batches of each rank."""
        return min(length, start + batches * self.step)


@dataclass(frozen=True)
class Epoch:
    """The batches that one rank makes of an epoch, from where it was left."""

    order: Order
    share: Share
    start: int = 0

    def __len__(self) -> int:
        return self.share.num_batches(self.order.length - self.start)

    def batches(self) -> Iterator[array[int]]:
        """Yield the samples of each batch."""
        return (self.share.batch(self.order, self.start, each) for each in range(len(self)))

    def taken(self, batches: int) -> int:
        """Return how far the epoch is after so many of these batches on each rank."""
        return self.share.taken(self.order.length, self.start, batches)

    @property
    def is_even(self) -> bool:
        """Whether all ranks make the same number of batches."""
        return self.share.is_even(self.order.length - self.start)


@dataclass(frozen=True)
class SampledEpoch:
    """The batches of a sampler of the user's own, which knows about ranks, or of none."""

    sampler: Any
    # `None`: what the sampler yields are batches already.
    batch_size: int | None
    drop_last: bool = False
    start: int = 0
    is_even = True

    def __len__(self) -> int:
        left = max(0, len(self.sampler) - self.start)
        if self.batch_size is None:
            return left
        return left // self.batch_size if self.drop_last else -(-left // self.batch_size)

    def batches(self) -> Iterator[array[int]]:
        """Yield the samples of each batch."""
        chosen = islice(iter(self.sampler), self.start, None)
        if self.batch_size is None:
            yield from (array("Q", each) for each in chosen)
            return
        while batch := array("Q", islice(chosen, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def taken(self, batches: int) -> int:
        """Return how much of the sampler has been used after so many of these batches."""
        return self.start + batches * (self.batch_size or 1)
