"""Choose the GPU kind, the nodes and the queue, or refuse with the nearest request that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.cluster.profile import Cluster, Gpu, Partition
from stoker.errors import ClusterError, SpecError, nearest
from stoker.plan.plan import Choice, Notice, Shape
from stoker.plan.spec import Spec
from stoker.units import parse_time, plural, render_hours, render_time

# Long enough to see a few epochs, short enough to be scheduled into gaps.
DEFAULT_TIME_S = 3600


@dataclass(frozen=True)
class Sized:
    """A shape, its time limit, and why."""

    shape: Shape
    time_s: int
    choices: tuple[Choice, ...]
    notices: tuple[Notice, ...]


@dataclass(frozen=True)
class _Misfit:
    """Why a request does not fit into a queue, and what would."""

    why: str
    fix: str


def choose_shape(spec: Spec, cluster: Cluster) -> Sized:
    """Return nodes, GPUs per node and queue for what was asked."""
    gpu = _choose_gpu(spec, cluster)
    nodes, gpus_per_node, reason = _choose_nodes(spec, cluster, gpu)
    bare = Shape(nodes, gpus_per_node, gpu, None)
    partition, time_s, notices = _choose_partition(spec, cluster, bare)
    shape = Shape(nodes, gpus_per_node, gpu, partition)
    source = gpu.source if gpu else None
    choices = [Choice("nodes", str(nodes), reason, source)]
    if gpu:
        choices.append(
            Choice("gpus per node", str(gpus_per_node), _gpu_reason(spec, cluster, gpu), source)
        )
    if partition:
        choices.append(_partition_choice(spec, partition))
    choices.append(_time_choice(spec, cluster, partition, time_s))
    return Sized(shape, time_s, tuple(choices), (*_kind_notices(cluster, shape, spec), *notices))


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
    queues = _named(spec, cluster) if spec.partition else list(cluster.partition.values())
    if spec.test:
        queues = [queue for queue in queues if queue.test] or queues
    served = {name for queue in queues for name in queue.gpus}
    for gpu in [*kinds, *cluster.gpu.values()]:
        if gpu.name in served:
            return gpu
    return next(iter(cluster.gpu.values()))


def _choose_nodes(spec: Spec, cluster: Cluster, gpu: Gpu | None) -> tuple[int, int, str]:
    """Return nodes, GPUs per node, and the reason."""
    if gpu is None:
        return spec.nodes or 1, 0, "as asked for" if spec.nodes else "a CPU job on one node"
    nodes, per_node, total = spec.nodes, spec.gpus_per_node, spec.gpus
    room = gpu.per_node
    if nodes is None and per_node is not None:
        nodes = max(1, (total or per_node) // per_node)
    if nodes is None and total is not None and room and total > room:
        if total % room:
            raise _uneven(gpu, total, room)
        nodes = total // room
        reason = f"{total} GPUs; a node has {room}, and beyond one node whole nodes are taken"
    elif nodes is None:
        nodes = 1
        reason = (
            f"up to {plural(room, 'GPU')} fit on one node"
            if room
            else "GPUs per node are not known here; one node is assumed"
        )
    else:
        reason = "as asked for"
    if per_node is None:
        if total is None:
            total = nodes * (room or 1) if nodes > 1 else 1
        if total % nodes:
            raise _uneven(gpu, total, nodes)
        per_node = total // nodes
    if total is not None and nodes * per_node != total:
        raise SpecError(
            f"{total} GPUs are not {plural(nodes, 'node')} with {per_node} GPUs each",
            why=f"--gpus counts the whole job: {nodes} x {per_node} = {nodes * per_node}",
            fix=f"--gpus {nodes * per_node}, or leave --gpus out",
        )
    _check_node(cluster, gpu, nodes, per_node)
    return nodes, per_node, reason


def _uneven(gpu: Gpu, total: int, parts: int) -> SpecError:
    low, high = total // parts * parts, -(-total // parts) * parts
    offers = [f"--gpus {count}" for count in (low, high) if count]
    return SpecError(
        f"{total} GPUs do not fill whole nodes",
        why=f"a {gpu.name} node has {gpu.per_node} GPUs, and jobs on several nodes take whole ones",
        fix=" or ".join(offers),
    )


def _check_node(cluster: Cluster, gpu: Gpu, nodes: int, per_node: int) -> None:
    """Refuse what no node of this kind can give."""
    room, total = gpu.per_node, nodes * per_node
    if gpu.slice_of is not None and total > 1:
        raise SpecError(
            f"{total} slices of `{gpu.name}`",
            why="a job gets one slice of a GPU",
            fix=f"--gpu {gpu.slice_of} --gpus 1, or --gpu {gpu.name} --gpus 1",
        )
    if room is not None and per_node > room:
        fits = -(-total // room)
        raise SpecError(
            f"{cluster.title} has no {gpu.name} node with {per_node} GPUs",
            why=f"its nodes have {room} ({gpu.source})",
            fix=f"--nodes {fits} --gpus-per-node {room}",
        )
    if gpu.counts and per_node not in gpu.counts:
        legal = " or ".join(str(count) for count in gpu.counts)
        above = min((count for count in gpu.counts if count >= per_node), default=max(gpu.counts))
        raise SpecError(
            f"{cluster.title} does not give {per_node} GPUs of a node",
            why=f"a job takes {legal} GPUs of each node ({gpu.source})",
            fix=f"--nodes {nodes} --gpus-per-node {above}",
        )
    if nodes > 1 and room is not None and per_node < room and cluster.slurm.full_nodes:
        fix = f"--nodes 1 --gpus {total}" if total <= room else f"--gpus {-(-total // room) * room}"
        raise SpecError(
            f"{nodes} nodes with {per_node} of {room} GPUs each",
            why="jobs on several nodes take whole nodes: spread GPUs talk slowly and block others",
            fix=fix + " (or --set slurm.full_nodes=false if the site allows it)",
        )


def _named(spec: Spec, cluster: Cluster) -> list[Partition]:
    """Return the queues that the user's --partition (or --qos) means."""
    found = [
        queue
        for queue in cluster.partition.values()
        if spec.partition in (queue.name, queue.partition or queue.name)
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


def _choose_partition(
    spec: Spec, cluster: Cluster, shape: Shape
) -> tuple[Partition | None, int, list[Notice]]:
    """Return the first queue into which the request fits, and the time limit."""
    if not cluster.partition:
        return None, spec.time_s or DEFAULT_TIME_S, []
    queues = _named(spec, cluster) if spec.partition else _candidates(spec, cluster, shape)
    notices: list[Notice] = []
    if spec.test and not any(queue.test for queue in queues):
        notices.append(
            Notice(
                f"{cluster.title} has no test partition that we know",
                "its profile marks none",
                "the ordinary queue is used; a short --time starts sooner",
            )
        )
    misfits: list[tuple[Partition, list[_Misfit]]] = []
    for queue in queues:
        time_s = _time(spec, cluster, queue)
        wrong = list(_misfits(shape, time_s, queue))
        if not wrong:
            return queue, time_s, notices + _access_notices(cluster, queue)
        misfits.append((queue, wrong))
    if not misfits:
        raise SpecError(
            f"no partition of {cluster.title} has {shape.gpu.name if shape.gpu else 'CPU'} nodes",
            why="its profile lists none for this kind of job",
            fix=f"stoker cluster show {cluster.name}",
        )
    # The queue that could give most of what was asked for has the nearest request.
    queue, wrong = max(misfits, key=lambda each: (_room(shape, each[0]), -len(each[1])))
    raise SpecError(
        f"the request does not fit into partition `{queue.name}` of {cluster.title}",
        why="; ".join(each.why for each in wrong) + f" ({queue.source})",
        fix=" and ".join(each.fix for each in wrong if each.fix),
    )


def _room(shape: Shape, queue: Partition) -> int:
    """Return how many nodes (GPUs, where there are some) of the request a queue takes."""
    nodes = min(shape.nodes, queue.max_nodes or shape.nodes)
    if not shape.gpu:
        return nodes
    return min(nodes * shape.gpus_per_node, queue.max_gpus or shape.gpus)


def _candidates(spec: Spec, cluster: Cluster, shape: Shape) -> list[Partition]:
    """Return the queues to try, in order: test ones only if asked for, open ones first."""
    kind = "gpu" if shape.gpu else "cpu"
    fitting = [
        queue
        for queue in cluster.partition.values()
        if queue.kind == kind and (shape.gpu is None or shape.gpu.name in queue.gpus)
    ]
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


def _misfits(shape: Shape, time_s: int, queue: Partition) -> Iterable[_Misfit]:
    limit = queue.time_s
    if limit is not None and time_s > limit:
        yield _Misfit(
            f"{render_hours(time_s)} is over its limit of {render_hours(limit)}",
            f"--time {render_time(limit)} (with --requeue and checkpoints a run can go on after it)",
        )
    room = _room(shape, queue)
    fewer = f"--gpus {room}" if shape.gpu else f"--nodes {room}"
    if queue.max_nodes is not None and shape.nodes > queue.max_nodes:
        why = f"it takes at most {plural(queue.max_nodes, 'node')} a job, not {shape.nodes}"
        yield _Misfit(why, fewer)
    elif queue.max_gpus is not None and shape.gpus > queue.max_gpus:
        why = f"it takes at most {plural(queue.max_gpus, 'GPU')} a job, not {shape.gpus}"
        yield _Misfit(why, fewer)
    if queue.min_nodes is not None and shape.nodes < queue.min_nodes:
        yield _Misfit(
            f"it takes at least {plural(queue.min_nodes, 'node')} a job",
            f"--nodes {queue.min_nodes}",
        )
    if queue.min_gpus is not None and shape.gpu and shape.gpus < queue.min_gpus:
        yield _Misfit(
            f"it takes at least {plural(queue.min_gpus, 'GPU')} a job", f"--gpus {queue.min_gpus}"
        )
    full = shape.gpu.per_node if shape.gpu else None
    if queue.exclusive and full and shape.gpus_per_node < full == queue.min_gpus:
        yield _Misfit("it gives whole nodes only", f"--gpus {full}")


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


def _kind_notices(cluster: Cluster, shape: Shape, spec: Spec) -> Iterable[Notice]:
    gpu = shape.gpu
    if cluster.is_retired:
        since = f" since {cluster.retired}" if cluster.retired else ""
        yield Notice(
            f"{cluster.title} is retired{since}",
            cluster.source,
            f"stoker plan --cluster {cluster.successor} …" if cluster.successor else "ask the site",
        )
    if cluster.slurm.login:
        yield Notice(
            f"{cluster.title} does not take jobs from everywhere",
            f"{cluster.slurm.login} ({cluster.slurm.source})",
            "submit from there",
        )
    if gpu and (not gpu.available or gpu.access):
        yield Notice(
            f"`{gpu.name}` of {cluster.title} is not open to everybody",
            gpu.access or gpu.note or "its profile says that it is not available",
            "name another kind with --gpu",
        )
    if gpu and gpu.arch and gpu.arch != "x86_64":
        yield Notice(
            f"the {gpu.name} nodes of {cluster.title} are {gpu.arch}",
            "environments and containers built on x86 machines do not run there",
            "build them on a login node of the same kind",
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
