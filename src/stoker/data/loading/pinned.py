"""Memory that the GPU copies from directly, for batches that are gathered.

PyTorch itself keeps such memory for the next use. It alone knows when a copy to the GPU has ended
that was begun with `non_blocking=True`, so batches must be views of tensors that it made.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def can_pin() -> bool:
    """Say whether this program uses PyTorch with a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


class PinnedPool:
    """Gives out pinned buffers; each is free again when no tensor views it and no copy runs."""

    def take(self, size: int) -> memoryview:
        """Return a writable buffer of this size; what is in it is not defined."""
        torch = sys.modules["torch"]
        made = torch.empty(max(1, size), dtype=torch.uint8, pin_memory=True)
        return memoryview(made.numpy())[:size]


def pinned_view(values: Any) -> Any | None:
    """Return an array as a view of the pinned tensor that it lies in; None if it lies in none."""
    torch, numpy = sys.modules["torch"], sys.modules["numpy"]
    base = values
    while not isinstance(base, torch.Tensor):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
        if base is None:
            return None
    start = values.ctypes.data - base.data_ptr()
    kind = torch.from_numpy(numpy.empty(0, values.dtype)).dtype
    # Its numbers need not lie in the order of its axes: a batch may have been transposed.
    steps = [each // values.itemsize for each in values.strides]
    return base[start : start + values.nbytes].view(kind).as_strided(values.shape, steps)


def pinned(batch: Any) -> Any:
    """Return a batch with its tensors in pinned memory; those that are there stay."""
    if type(batch) is dict:
        return {name: pinned(each) for name, each in batch.items()}
    if type(batch) is tuple:  # PyTorch would make a list of it.
        return tuple(map(pinned, batch))
    return import_module("torch.utils.data._utils.pin_memory").pin_memory(batch)
