"""What PyTorch's allocator has taken of a GPU's memory, as it counts it itself."""

from __future__ import annotations

from typing import Any

GIB = 2**30


def read_memory(torch: Any) -> dict[str, object] | None:
    """Return the counts of the GPU that this process holds the most of; None if it holds none.

    The allocator's own counts: nothing is asked of the device, and none is woken up by it.
    """
    if not torch.cuda.is_initialized():
        return None
    devices = range(torch.cuda.device_count())
    counts = {index: torch.cuda.memory_stats_as_nested_dict(index) for index in devices}
    peaks = {index: each["reserved_bytes"]["all"]["peak"] for index, each in counts.items() if each}
    if not peaks:
        return None
    index = max(peaks, key=lambda each: peaks[each])
    most = counts[index]
    return {
        "total_gib": torch.cuda.get_device_properties(index).total_memory / GIB,
        "tensors_gib": most["allocated_bytes"]["all"]["peak"] / GIB,
        "taken_gib": most["reserved_bytes"]["all"]["peak"] / GIB,
        # How often nothing was left, and it gave back what it keeps for later, and tried again.
        "retries": most["num_alloc_retries"],
    }
