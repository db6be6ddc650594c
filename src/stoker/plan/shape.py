"""Choose the GPU kind, the nodes and the queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.cluster.profile import Cluster, Gpu, Partition
from stoker.errors import ClusterError, SpecError, nearest
from stoker.plan.plan import Choice, Notice, Shape
from stoker.plan.queue import Queued, choose_queue, named_queues
from stoker.plan.refusal import Refused
from stoker.plan.spec import Spec
from stoker.units import parse_time, plural, render_hours, render_time


@dataclass(frozen=True)
class Sized:
    """A shape, its time limit, and why."""

    shape: Shape
    time_s: int
    choices: tuple[Choice, ...]
    notices: tuple[Notice, ...]


def choose_shape(spec: Spec, cluster: Cluster) -> Sized:
    """Return nodes, GPUs per node and queue for what was asked; raises `Refused`."""
    gpu = _choose_gpu(spec, cluster)
    nodes, gpus_per_node = _choose_nodes(spec, cluster, gpu)
    queued = choose_queue(spec, cluster, Shape(nodes, gpus_per_node, gpu, None))
    shape = Shape(nodes, gpus_per_node, gpu, queued.partition)
    choices = tuple(_choices(spec, cluster, shape, queued))
    return Sized(shape, queued.time_s, choices, queued.notices)


def _choices(spec: Spec, cluster: Cluster, shape: Shape, queued: Queued) -> Iterable[Choice]:
    gpu = shape.gpu
    source = gpu.source if gpu else None
    yield Choice("nodes", str(shape.nodes), _node_reason(spec, shape), source)
    if gpu:
        yield Choice(
            "gpus per node", str(shape.gpus_per_node), _gpu_reason(spec, cluster, gpu), source
        )
    if queued.partition:
        yield _partition_choice(spec, queued.partition)
    yield _time_choice(spec, cluster, queued.partition, queued.time_s)


def _node_reason(spec: Spec, shape: Shape) -> str:
    room = shape.gpu.per_node if shape.gpu else None
    if spec.nodes is not None or spec.gpus_per_node is not None:
        return "as asked for"
    if shape.gpu is None:
        return "a CPU job on one node"
    if room is None:
        return "GPUs per node are not known here; one node is assumed"
    if shape.nodes > 1:
        return f"{shape.gpus} GPUs; a node has {room}, and beyond one node whole nodes are taken"
    return f"up to {plural(room, 'GPU')} fit on one node"


def find_gpu(cluster: Cluster, name: str) -> Gpu:
    """Return the GPU kind that goes by this name, type or alias."""
    folded = name.casefold()
    for gpu in cluster.gpu.values():
        if folded in {each.casefold() for each in (gpu.name, gpu.type or gpu.name, *gpu.aliases)}:
            return gpu
    match = nearest(name, cluster.gpu)
    raise ClusterError(
        f"{cluster.title} has no GPU called `{name}`",
        why="it has: " + (", ".join(cluster.gpu) or "no GPUs"),
        fix=f"--gpu {match}" if match else f"stoker cluster show {cluster.name}",
    )


def _choose_gpu(spec: Spec, cluster: Cluster) -> Gpu | None:
    on_laptop = cluster.scheduler == "none" and not cluster.gpu
    if spec.gpus == 0 or (on_laptop and spec.gpus is None and spec.gpu is None):
        return None
    if spec.gpu is not None:
        return find_gpu(cluster, spec.gpu)
    if not cluster.gpu:
        successor = f"--cluster {cluster.successor}, its successor" if cluster.successor else None
        raise SpecError(
            f"{cluster.title} has no GPUs",
            why=f"its profile lists none ({cluster.source})",
            fix=" or ".join(filter(None, [successor, "--gpus 0 for a CPU job"])),
        )
    kinds = [gpu for gpu in cluster.gpu.values() if gpu.available and not gpu.access]
    queues = named_queues(spec, cluster) if spec.partition else list(cluster.partition.values())
    if spec.test:
        queues = [queue for queue in queues if queue.test] or queues
    served = {name for queue in queues for name in queue.gpus}
    for gpu in [*kinds, *cluster.gpu.values()]:
        if gpu.name in served:
            return gpu
    return next(iter(cluster.gpu.values()))


def _choose_nodes(spec: Spec, cluster: Cluster, gpu: Gpu | None) -> tuple[int, int]:
    """Return nodes and GPUs per node."""
    if cluster.scheduler == "none" and (spec.nodes or 1) > 1:
        raise Refused(
            f"{spec.nodes} nodes on one machine", "there is no scheduler here, only this machine"
        )
    if gpu is None:
        return spec.nodes or 1, 0
    nodes, each = _divide(spec, gpu)
    _check_node(cluster, gpu, nodes, each)
    return nodes, each


def _divide(spec: Spec, gpu: Gpu) -> tuple[int, int]:
    """Divide what was asked for into nodes and GPUs on each."""
    nodes, each, total, room = spec.nodes, spec.gpus_per_node, spec.gpus, gpu.per_node
    if nodes is None and each is None:
        total = total or 1
        each = min(total, room or total)
    if nodes is None and each is not None:
        nodes = (total or each) // each or 1
    if nodes is not None and each is None:
        each = total // nodes if total else (room or 1) if nodes > 1 else 1
    nodes, each = nodes or 1, each or 1
    if total is not None and nodes * each != total:
        raise Refused(
            f"{plural(total, 'GPU')} cannot be divided evenly",
            f"every node gets as many; a {gpu.name} node has {room or 'an unknown number of'} GPUs, and "
            "jobs on several nodes take whole ones",
        )
    return nodes, each


def _check_node(cluster: Cluster, gpu: Gpu, nodes: int, each: int) -> None:
    """Refuse what no node of this kind can give."""
    room, total = gpu.per_node, nodes * each
    if gpu.slice_of is not None and total > 1:
        raise Refused(f"{total} slices of `{gpu.name}`", "a job gets one slice of a GPU")
    if room is not None and each > room:
        raise Refused(
            f"{cluster.title} has no {gpu.name} node with {each} GPUs",
            f"its nodes have {room} ({gpu.source})",
        )
    if gpu.counts and each not in gpu.counts:
        legal = " or ".join(str(count) for count in gpu.counts)
        raise Refused(
            f"{cluster.title} does not give {each} GPUs of a node",
            f"a job takes {legal} GPUs of each node ({gpu.source})",
        )
    if nodes > 1 and room is not None and each < room and cluster.slurm.full_nodes:
        raise Refused(
            f"{nodes} nodes with {each} of {room} GPUs each",
            "jobs on several nodes take whole nodes: spread GPUs talk slowly and block others "
            "(--set slurm.full_nodes=false if the site allows it)",
        )


def _gpu_reason(spec: Spec, cluster: Cluster, gpu: Gpu) -> str:
    title = gpu.title or gpu.name
    if spec.gpu is None and len(cluster.gpu) > 1:
        others = [each.name for each in cluster.gpu.values() if each.name != gpu.name]
        return f"{title}; --gpu names another kind ({', '.join(others)})"
    return title


def _partition_choice(spec: Spec, queue: Partition) -> Choice:
    limits = [
        f"up to {render_hours(queue.time_s)}" if queue.time_s else "",
        f"up to {plural(queue.max_gpus, 'GPU')}" if queue.max_gpus else "",
        f"up to {plural(queue.max_nodes, 'node')}" if queue.max_nodes else "",
    ]
    known = ", ".join(each for each in limits if each) or "its limits are not known"
    why = "as asked for" if spec.partition else "the site's short test queue" if queue.test else ""
    if queue.automatic:
        return Choice(
            "partition", "none", f"the site picks it from time and size; {known}", queue.source
        )
    return Choice("partition", queue.name, "; ".join(filter(None, [why, known])), queue.source)


def _time_choice(spec: Spec, cluster: Cluster, queue: Partition | None, time_s: int) -> Choice:
    source = queue.source if queue else None
    if spec.time_s is None:
        reason = "no --time was given; a short limit starts sooner"
    elif spec.time_s != time_s:
        reason = f"cut from {render_hours(spec.time_s)} to the limit of the test partition"
    else:
        reason = "as asked for"
    least = cluster.slurm.min_time
    if least and time_s < parse_time(least) and not spec.test:
        reason += f"; the site asks for at least {render_hours(parse_time(least))} a job"
    return Choice("time", render_time(time_s), reason, source)
