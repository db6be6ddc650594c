"""Which rank of how many this process is."""

from __future__ import annotations

import os
import sys

from stoker.engine.task import read_task
from stoker.errors import UsageError


def place(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return our rank and how many there are: as told, of torch.distributed, or of the launcher."""
    if rank is not None and world is not None:
        return rank, world
    if rank is not None or world is not None:
        raise UsageError(
            "rank and world belong together",
            why=f"rank is {rank}, world is {world}",
            fix="give both, or neither",
        )
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    names = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if names[0].isdecimal() and names[1].isdecimal():
        return int(names[0]), int(names[1])
    task = read_task(os.environ)
    return (task.rank, task.world) if task else (0, 1)
