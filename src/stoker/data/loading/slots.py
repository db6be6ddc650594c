"""Places in the memory of a batch, for decoders to write to: no picture is copied once more.

Which shape pictures have is known when the first one is decoded. One of another shape gets memory
of its own, and the batch is put together from copies, or refused.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stoker.data.pictures.decode import Room


class Slots:
    """A slot for each sample of a batch, in memory that `take` gives."""

    def __init__(self, count: int, take: Callable[[int], memoryview]) -> None:
        self._count, self._take = count, take
        self._arrays: dict[str, Any] = {}
        self._lock = threading.Lock()

    def rooms(self, start: int) -> Rooms:
        """Return what gives room to the samples from this one on."""
        return lambda name, at: partial(self._room, name, start + at)

    def whole(self, samples: Sequence[Any]) -> Any:
        """Return these arrays as one, if each is in its slot; otherwise None."""
        for array in self._arrays.values():
            if len(samples) == self._count and all(map(_is_same, samples, array)):
                return array
        return None

    def _room(self, name: str, at: int, shape: tuple[int, ...]) -> Any:
        """Return the slot of a sample; None if it has another shape than the first one."""
        with self._lock:
            array = self._arrays.get(name)
            if array is None:
                memory = self._take(self._count * math.prod(shape))
                array = sys.modules["numpy"].frombuffer(memory, "u1").reshape(self._count, *shape)
                self._arrays[name] = array
        return array[at] if array.shape[1:] == shape else None


# Gives room to one part of one sample, by its name and the sample's number in the batch.
Rooms = Callable[[str, int], Room]


def _is_same(one: Any, other: Any) -> bool:
    return bool(
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.strides == other.strides
        and one.__array_interface__["data"] == other.__array_interface__["data"]
    )
