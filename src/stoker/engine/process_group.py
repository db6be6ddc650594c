"""PyTorch's process group: started once, with what every rank must agree on."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from stoker.engine.group import Group, GroupError, meet
from stoker.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.engine.context import Context
    from stoker.engine.place import Place


def start(
    context: Context, place: Place, backend: str | None, timeout_s: float
) -> tuple[Group, bool]:
    """Return the group of all ranks, and whether we have started it."""
    torch = _torch(place)
    dist = torch.distributed
    if dist.is_initialized():
        return _join(dist, place), False
    _set_missing(place)
    store = meet(torch, place, timeout_s)
    if context.device != "cpu":
        torch.cuda.set_device(context.device)
        if (backend or context.backend) == "nccl":
            take_gpu(store, place, _gpu(torch, context.device))
    dist.init_process_group(
        backend or context.backend,
        store=dist.PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
    )
    return Group(store, place), True


def take_gpu(store: Any, place: Place, gpu: str) -> None:
    """Say that this GPU is ours; refuse one that another rank has, which NCCL cannot share."""
    first = int(store.compare_set(f"gpu/{gpu}", "", str(place.rank)))
    if first == place.rank:
        return
    raise GroupError(
        f"ranks {first} and {place.rank} are on the same GPU of {os.uname().nodename}",
        why=f"NCCL needs one for each of the {place.local_size} ranks of this machine",
        fix="start one process for each GPU, or share it with init(backend='gloo')",
    )


def _gpu(torch: Any, device: str) -> str:
    """Return what tells a GPU from all others, whatever its number in this process is."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return str(uuid) if uuid else f"{os.uname().nodename} {seen} {device}"


def end() -> None:
    """End the process group, if it is there."""
    dist = import_module("torch.distributed")
    if dist.is_initialized():
        dist.destroy_process_group()


def _torch(place: Place) -> Any:
    try:
        torch, dist = import_module("torch"), import_module("torch.distributed")
    except ImportError:
        raise StokerError(
            "there is no PyTorch in this Python",
            why="init() starts PyTorch's process group; "
            + (
                "TensorFlow starts its own from TF_CONFIG"
                if place.launcher == "tensorflow"
                else "rank, world_size and the rest need none"
            ),
            fix="install torch in the environment of the script, or leave init() out",
        ) from None
    if not dist.is_available():
        raise StokerError(
            "this PyTorch cannot train with several processes",
            why="it was built without torch.distributed",
            fix="install a build of PyTorch that has it",
        )
    return torch


def _join(dist: Any, place: Place) -> Group:
    """Return the ranks of a process group that somebody else has started."""
    if (dist.get_rank(), dist.get_world_size()) != place[:2]:
        raise GroupError(
            f"the process group says rank {dist.get_rank()} of {dist.get_world_size()}, "
            f"the launcher rank {place.rank} of {place.world_size}",
            why="the script started the group itself, with other numbers than its launcher's",
            fix="call stoker.context().init() in place of init_process_group",
        )
    store = dist.distributed_c10d._get_default_store()
    return Group(dist.PrefixStore("stoker", store), place)


def _set_missing(place: Place) -> None:
    """Tell other libraries in this process what we know."""
    if place.world_size == 1:
        return
    known = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": place.master_port,
    }
    for name, value in known.items():
        if value is not None:
            os.environ.setdefault(name, str(value))
