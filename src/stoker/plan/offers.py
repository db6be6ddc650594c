"""Find the nearest request that can be had, by trying: what is offered has been planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from stoker.cluster.profile import Cluster, Gpu
from stoker.errors import StokerError
from stoker.plan.plan import Shape
from stoker.plan.refusal import Refused
from stoker.plan.shape import find_gpu
from stoker.plan.spec import Spec
from stoker.units import render_time

# More sizes than this between what was asked for and what fits means that nothing near does.
MAX_TRIES = 400


Attempt = Callable[[Spec], Shape]


def find_offers(spec: Spec, cluster: Cluster, attempt: Attempt) -> list[str]:
    """Return the changes to the command line that make it work, nearest first.

    `attempt` plans a whole request, or raises.
    """
    for partition in dict.fromkeys((spec.partition, None)):
        base = replace(spec, partition=partition)
        for time_s in _times(spec, cluster):
            same = _try(replace(base, time_s=time_s), attempt)
            if same is not None:
                return [_change(spec, replace(base, time_s=time_s), same)]
        for time_s in _times(spec, cluster):
            found = _nearest_sizes(replace(base, time_s=time_s), cluster, attempt)
            if found:
                return [_change(spec, each, shape) for each, shape in found]
    return []


def _times(spec: Spec, cluster: Cluster) -> list[int | None]:
    """Return the time asked for, and the limits below it, longest first."""
    limits = {queue.time_s for queue in cluster.partition.values()} - {None}
    asked = spec.time_s
    shorter = sorted((each for each in limits if each and asked and each < asked), reverse=True)
    return [asked, *shorter]


def _nearest_sizes(spec: Spec, cluster: Cluster, attempt: Attempt) -> list[tuple[Spec, Shape]]:
    """Return the nearest smaller and the nearest larger size that fit."""
    asked = _asked(spec, cluster)
    below: tuple[Spec, Shape] | None = None
    above: tuple[Spec, Shape] | None = None
    sizes = sorted(
        set(_sizes(spec, cluster)), key=lambda each: (abs(each[0] * each[1] - asked), each[0])
    )
    for nodes, each in sizes[:MAX_TRIES]:
        total = nodes * each
        if (below and total <= asked) or (above and total > asked):
            continue
        changed = replace(
            spec, nodes=nodes, gpus_per_node=each or None, gpus=total if each else spec.gpus
        )
        shape = _try(changed, attempt)
        if shape is None:
            continue
        if total <= asked:
            below = (changed, shape)
            if total == asked:
                return [below]
        else:
            above = (changed, shape)
    return [each for each in (below, above) if each is not None]


def _sizes(spec: Spec, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield (nodes, GPUs on each) that might fit."""
    most = max([queue.max_nodes or 0 for queue in cluster.partition.values()], default=0)
    least = [queue.min_nodes or 1 for queue in cluster.partition.values()]
    asked = spec.nodes or 1
    if spec.gpus == 0:
        yield from ((nodes, 0) for nodes in {1, most or 1, *least, *range(1, min(asked, 64))})
        return
    for gpu in _kinds(spec, cluster):
        room = gpu.per_node or 1
        near = _asked(spec, cluster) // room
        caps = [(queue.max_gpus or 0) // room for queue in cluster.partition.values()]
        yield from ((1, each) for each in range(1, room + 1))
        counts = {near, near + 1, most, asked, *caps, *least, *range(1, 17)}
        yield from ((nodes, room) for nodes in counts if nodes > 0)


def _asked(spec: Spec, cluster: Cluster) -> int:
    """Return the GPUs that a request means in all; several nodes mean whole ones."""
    rooms = [gpu.per_node or 1 for gpu in _kinds(spec, cluster)] or [1]
    each = spec.gpus_per_node or (rooms[0] if (spec.nodes or 1) > 1 else 1)
    return spec.gpus if spec.gpus is not None else (spec.nodes or 1) * each


def _kinds(spec: Spec, cluster: Cluster) -> list[Gpu]:
    return [find_gpu(cluster, spec.gpu)] if spec.gpu else list(cluster.gpu.values())


def _try(spec: Spec, attempt: Attempt) -> Shape | None:
    try:
        return attempt(spec)
    except (Refused, StokerError):
        return None


def _change(asked: Spec, changed: Spec, shape: Shape) -> str:
    """Write what differs as options that win when they are added to the command line."""
    parts = []
    queue = shape.partition
    if asked.partition != changed.partition and queue is not None:
        parts.append(f"--partition {queue.name}")
    nodes, each = shape.nodes, shape.gpus_per_node
    if (asked.nodes, asked.gpus_per_node, asked.gpus) != (
        changed.nodes,
        changed.gpus_per_node,
        changed.gpus,
    ):
        if asked.nodes is None and asked.gpus_per_node is None:
            parts.append(f"--gpus {nodes * each}")
        elif shape.gpu is None:
            parts.append(f"--nodes {nodes}")
        else:
            parts.append(f"--nodes {nodes} --gpus-per-node {each} --gpus {nodes * each}")
    if asked.time_s != changed.time_s and changed.time_s is not None:
        parts.append(f"--time {render_time(changed.time_s)}")
        return " ".join(parts) + " (with --requeue and checkpoints a run can go on after it)"
    return " ".join(parts)
