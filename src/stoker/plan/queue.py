"""Choose the queue: the first of the profile into which the request fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.cluster.profile import Cluster, Partition
from stoker.errors import ClusterError, nearest
from stoker.plan.plan import Notice, Shape
from stoker.plan.refusal import Refused
from stoker.plan.spec import Spec
from stoker.units import parse_time, plural, render_hours, render_mem

# Long enough to see a few epochs, short enough to be scheduled into gaps.
DEFAULT_TIME_S = 3600


@dataclass(frozen=True)
class Queued:
    """A queue (none where the profile knows none), the time limit, and what to know about it."""

    partition: Partition | None
    time_s: int
    notices: tuple[Notice, ...] = ()


def choose_queue(spec: Spec, cluster: Cluster, shape: Shape) -> Queued:
    """Return the first queue into which the request fits, and the time limit."""
    if not cluster.partition:
        return Queued(None, spec.time_s or DEFAULT_TIME_S)
    queues = named_queues(spec, cluster) if spec.partition else _candidates(spec, cluster, shape)
    if not queues:
        kind = shape.gpu.name if shape.gpu else "CPU"
        raise Refused(
            f"no partition of {cluster.title} has {kind} nodes",
            "its profile lists none for this kind of job",
        )
    misfits: list[tuple[Partition, list[str]]] = []
    for queue in queues:
        time_s = _time(spec, cluster, queue)
        wrong = list(_misfits(spec, shape, time_s, queue))
        if not wrong:
            notices = (*_test_notices(spec, cluster, queues), *_access_notices(cluster, queue))
            return Queued(queue, time_s, notices)
        misfits.append((queue, wrong))
    # The queue that could give most of what was asked for explains the refusal best.
    queue, wrong = max(misfits, key=lambda each: (_room(shape, each[0]), -len(each[1])))
    raise Refused(
        f"the request does not fit into partition `{queue.name}` of {cluster.title}",
        "; ".join(wrong) + f" ({queue.source})",
    )


def named_queues(spec: Spec, cluster: Cluster) -> list[Partition]:
    """Return the queues that the user's --partition means."""
    found = [
        queue
        for queue in cluster.partition.values()
        if spec.partition in (queue.name, queue.slurm_name)
        and (spec.qos is None or queue.qos in (None, spec.qos))
    ]
    if found:
        return found
    match = nearest(spec.partition or "", cluster.partition)
    raise ClusterError(
        f"{cluster.title} has no partition `{spec.partition}`",
        why="it has: " + (", ".join(cluster.partition) or "none that we know"),
        fix=f"--partition {match}" if match else f"stoker cluster show {cluster.name}",
    )


def _candidates(spec: Spec, cluster: Cluster, shape: Shape) -> list[Partition]:
    """Return the queues to try, in order: test ones only if asked for, open ones first."""
    kind = "gpu" if shape.gpu else "cpu"
    fitting = [
        queue
        for queue in cluster.partition.values()
        if queue.kind == kind and (shape.gpu is None or shape.gpu.name in queue.gpus)
    ]
    if spec.qos is not None:
        fitting = [queue for queue in fitting if queue.qos == spec.qos] or fitting
    wanted = [queue for queue in fitting if queue.test == spec.test] or fitting
    return sorted(wanted, key=lambda queue: queue.access is not None)


def _time(spec: Spec, cluster: Cluster, queue: Partition) -> int:
    """Return the time limit: as asked, cut to the limit of a test partition."""
    time_s = spec.time_s
    if time_s is None:
        least = cluster.slurm.min_time
        time_s = max(DEFAULT_TIME_S, parse_time(least) if least else 0)
        return min(time_s, queue.time_s) if queue.time_s else time_s
    if spec.test and queue.test and queue.time_s:
        return min(time_s, queue.time_s)
    return time_s


def _room(shape: Shape, queue: Partition) -> int:
    """Return how many GPUs (nodes, for a CPU job) of the request a queue takes."""
    nodes = min(shape.nodes, queue.max_nodes or shape.nodes)
    if not shape.gpu:
        return nodes
    return min(nodes * shape.gpus_per_node, queue.max_gpus or shape.gpus)


def _misfits(spec: Spec, shape: Shape, time_s: int, queue: Partition) -> Iterable[str]:
    """Yield every reason why a request does not fit into a queue."""
    limit, gpu = queue.time_s, shape.gpu
    if gpu is not None and gpu.name not in queue.gpus:
        yield f"it has no {gpu.name} nodes"
        return
    if limit is not None and time_s > limit:
        yield f"{render_hours(time_s)} is over its limit of {render_hours(limit)}"
    if queue.max_nodes is not None and shape.nodes > queue.max_nodes:
        yield f"it takes at most {plural(queue.max_nodes, 'node')} a job, not {shape.nodes}"
    elif queue.max_gpus is not None and shape.gpus > queue.max_gpus:
        yield f"it takes at most {plural(queue.max_gpus, 'GPU')} a job, not {shape.gpus}"
    if queue.min_nodes is not None and shape.nodes < queue.min_nodes:
        yield f"it takes at least {plural(queue.min_nodes, 'node')} a job"
    if queue.min_gpus is not None and gpu is not None and shape.gpus < queue.min_gpus:
        yield f"it takes at least {plural(queue.min_gpus, 'GPU')} a job"
    room = queue.mem_gib_per_node
    if gpu is None and room is not None and (spec.mem_gib or 0) > room:
        yield f"its nodes have {room:g} GiB, not {render_mem(spec.mem_gib or 0)}"
    cpus = (spec.cpus_per_task or 1) * shape.nodes
    if gpu is None and queue.max_cpus is not None and cpus > queue.max_cpus:
        yield f"it takes at most {queue.max_cpus} CPUs a job, not {cpus}"


def _test_notices(spec: Spec, cluster: Cluster, queues: list[Partition]) -> list[Notice]:
    if not spec.test or any(queue.test for queue in queues):
        return []
    return [
        Notice(
            f"{cluster.title} has no test partition that we know",
            "its profile marks none",
            "the ordinary queue is used; a short --time starts sooner",
        )
    ]


def _access_notices(cluster: Cluster, queue: Partition) -> list[Notice]:
    if queue.access is None:
        return []
    return [
        Notice(
            f"partition `{queue.name}` of {cluster.title} is not open to everybody",
            queue.access,
            "ask the site for access, or ask for less",
        )
    ]
