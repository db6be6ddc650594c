"""Rules about the limits of partitions and nodes."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.check.findings import Hit, Subject, rule
from stoker.cluster.profile import Cluster, Partition
from stoker.errors import nearest
from stoker.units import plural, render_hours, render_mem, render_time


def _source(queue: Partition) -> str:
    return queue.source or "the profile of the cluster says so"


@rule("ST801", "error")
def unknown_partition(subject: Subject) -> Iterator[Hit]:
    """A partition that this cluster does not have."""
    cluster, name = subject.cluster, subject.script.value("partition")
    if cluster is None or name is None or not cluster.partition:
        return
    known = {queue.slurm_name for queue in cluster.partition.values()} - {""}
    if not known:
        return
    wrong = [part for part in name.split(",") if part not in known]
    if wrong:
        match = nearest(wrong[0], known)
        yield Hit(
            subject.script.line_of("partition"),
            f"{cluster.title} has no partition `{wrong[0]}` that we know",
            "known are: " + ", ".join(sorted(known)),
            f"--partition={match}" if match else f"stoker cluster show {cluster.name}",
        )


@rule("ST802", "error")
def over_time(subject: Subject) -> Iterator[Hit]:
    """A time limit above what the partition takes."""
    script = subject.script
    time_s, directive = script.time_s, script.last("time")
    limits = [queue.time_s for queue in subject.queues]
    if time_s is None or directive is None or not limits or None in limits:
        return
    most = max(limit for limit in limits if limit is not None)
    if time_s > most:
        yield Hit(
            directive.line,
            f"{render_hours(time_s)} is over the limit of {render_hours(most)}",
            f"{_source(subject.queues[0])}; the job is refused or never starts",
            f"--time={render_time(most)}, with checkpoints and a second job after it",
            (script.replace_value(directive, render_time(most)),),
        )


@rule("ST803", "error")
def over_nodes(subject: Subject) -> Iterator[Hit]:
    """More or fewer nodes than the partition takes."""
    nodes, queues = subject.script.nodes, subject.queues
    if nodes is None or not queues:
        return
    if all(queue.max_nodes is not None and nodes > queue.max_nodes for queue in queues):
        most = max(queue.max_nodes or 0 for queue in queues)
        yield Hit(
            subject.script.line_of("nodes"),
            f"{nodes} nodes, and `{queues[0].name}` takes at most {most}",
            _source(queues[0]),
            _other_queue(subject) or f"--nodes={most}",
        )
    elif all(queue.min_nodes is not None and nodes < queue.min_nodes for queue in queues):
        least = min(queue.min_nodes or 0 for queue in queues)
        yield Hit(
            subject.script.line_of("nodes"),
            f"{plural(nodes, 'node')}, and `{queues[0].name}` takes at least {least}",
            _source(queues[0]),
            f"--nodes={least}",
        )


def _other_queue(subject: Subject) -> str | None:
    """Return how to ask for an open queue that takes as many nodes and GPUs of this kind."""
    nodes = subject.script.nodes or 1
    total = (subject.script.gpus_per_node or 0) * nodes
    kinds = {gpu.name for gpu in subject.kinds}
    for queue in subject.cluster.partition.values() if subject.cluster else ():
        fits = (queue.min_gpus or 0) <= total <= (queue.max_gpus or total)
        fits = fits and nodes <= (queue.max_nodes or nodes)
        if (
            fits
            and kinds & set(queue.gpus)
            and not queue.test
            and not queue.access
            and queue.request
        ):
            return queue.request
    return None


@rule("ST804", "error")
def gpus_of_partition(subject: Subject) -> Iterator[Hit]:
    """More or fewer GPUs than the partition takes, or GPUs where there are none."""
    script, queues = subject.script, subject.queues
    gpu, each = script.gpu, script.gpus_per_node
    if gpu is None or not queues:
        return
    if all(queue.kind == "cpu" for queue in queues):
        yield Hit(
            gpu.line,
            f"partition `{queues[0].name}` has no GPUs",
            _source(queues[0]),
            _gpu_queue(subject.cluster) or "use a GPU partition",
        )
        return
    if each is None or each == 0:
        return
    total = each * (script.nodes or 1)
    if all(queue.max_gpus is not None and total > queue.max_gpus for queue in queues):
        most = max(queue.max_gpus or 0 for queue in queues)
        yield Hit(
            gpu.line,
            f"{total} GPUs, and `{queues[0].name}` takes at most {most}",
            _source(queues[0]),
            _other_queue(subject) or f"ask for {most}",
            severity="warning" if any(queue.disputed for queue in queues) else None,
        )
    elif all(queue.min_gpus is not None and total < queue.min_gpus for queue in queues):
        least = min(queue.min_gpus or 0 for queue in queues)
        yield Hit(
            gpu.line,
            f"{plural(total, 'GPU')}, and `{queues[0].name}` takes at least {least}",
            _source(queues[0]) + "; the whole node is billed all the same",
            _other_queue(subject) or f"ask for {least}",
            severity="warning" if queues[0].exclusive else "error",
        )


def _gpu_queue(cluster: Cluster | None) -> str | None:
    queues = cluster.partition.values() if cluster else ()
    return next((queue.request for queue in queues if queue.kind == "gpu" and queue.request), None)


@rule("ST805", "error")
def over_node(subject: Subject) -> Iterator[Hit]:
    """More GPUs, CPUs or memory than one node has."""
    script, kinds = subject.script, subject.kinds
    if not kinds:
        return
    title = subject.cluster.title if subject.cluster else ""
    gpus, cpus, mem = script.gpus_per_node, script.cpus_per_node, script.mem_gib
    if gpus and all(kind.per_node is not None and gpus > kind.per_node for kind in kinds):
        most = max(kind.per_node or 0 for kind in kinds)
        yield Hit(
            script.gpu.line if script.gpu else 1,
            f"{gpus} GPUs on one node; {kinds[0].name} nodes of {title} have {most}",
            kinds[0].source + "; GPUs are counted per node here, not per job",
            f"--nodes={-(-gpus // most)} with {most} GPUs each",
        )
    if cpus and all(kind.cpus_per_node is not None and cpus > kind.cpus_per_node for kind in kinds):
        most = max(kind.cpus_per_node or 0 for kind in kinds)
        yield Hit(
            script.line_of("cpus-per-task", "ntasks-per-node", "ntasks"),
            f"{cpus} CPUs on one node; {kinds[0].name} nodes of {title} have {most}",
            kinds[0].source + "; such a job never starts",
            f"at most {most} CPUs a node in all",
        )
    if mem and all(
        kind.mem_gib_per_node is not None and mem > kind.mem_gib_per_node for kind in kinds
    ):
        room = max(kind.mem_gib_per_node or 0 for kind in kinds)
        yield Hit(
            script.line_of("mem"),
            f"{render_mem(mem)} on one node; {kinds[0].name} nodes of {title} have {room:g} GiB to give",
            kinds[0].source + "; such a job never starts",
            f"--mem={render_mem(float(int(room)))}",
        )


@rule("ST806", "warning")
def over_share(subject: Subject) -> Iterator[Hit]:
    """More CPUs or memory than go with the GPUs, so that other GPUs of the node stay empty."""
    script, kinds = subject.script, subject.kinds
    gpus, cpus, mem = script.gpus_per_node, script.cpus_per_node, script.mem_gib
    if not kinds or not gpus or script.has("exclusive"):
        return
    if any(kind.per_node is None or gpus >= kind.per_node for kind in kinds):
        return
    if any(queue.exclusive for queue in subject.queues):
        return
    if cpus and all(kind.cpus_per_node is not None and kind.per_node for kind in kinds):
        most = max((kind.cpus_per_node or 0) / (kind.per_node or 1) for kind in kinds) * gpus
        if most < cpus <= max(kind.cpus_per_node or 0 for kind in kinds):
            yield Hit(
                script.line_of("cpus-per-task", "ntasks-per-node", "ntasks"),
                f"{cpus} CPUs for {plural(gpus, 'GPU')}; their share of the node is {most:g}",
                "the node's other GPUs are left without CPUs: nobody can use them",
                f"at most {int(most)} CPUs",
            )
    if mem and all(kind.mem_gib_per_node is not None and kind.per_node for kind in kinds):
        room = max((kind.mem_gib_per_node or 0) / (kind.per_node or 1) for kind in kinds) * gpus
        if room * 1.05 < mem <= max(kind.mem_gib_per_node or 0 for kind in kinds):
            yield Hit(
                script.line_of("mem"),
                f"{render_mem(mem)} for {plural(gpus, 'GPU')}; their share of the node is {room:.0f}G",
                "the node's other GPUs are left without memory: nobody can use them"
                + (", and memory is billed" if _bills_memory(subject.cluster) else ""),
                f"--mem={int(room)}G",
            )


def _bills_memory(cluster: Cluster | None) -> bool:
    return bool(cluster and cluster.billing.per_mem_gib_hour)


@rule("ST807", "warning")
def whole_node_memory(subject: Subject) -> Iterator[Hit]:
    """--mem=0 asks for a whole node's memory with a part of its GPUs."""
    script, kinds = subject.script, subject.kinds
    gpus = script.gpus_per_node
    if script.value("mem") != "0" or not kinds or not gpus or script.has("exclusive"):
        return
    if all(kind.per_node is not None and gpus < kind.per_node for kind in kinds):
        share = kinds[0].mem_share_gib
        yield Hit(
            script.line_of("mem"),
            f"--mem=0 takes all memory of the node for {plural(gpus, 'GPU')} of {kinds[0].per_node}",
            "it is billed, and the other GPUs cannot be used by anybody",
            f"--mem={render_mem(share * gpus)}" if share else "ask for a share",
        )


@rule("ST808", "warning")
def spread(subject: Subject) -> Iterator[Hit]:
    """GPUs are spread over more nodes than they need."""
    script, kinds = subject.script, subject.kinds
    nodes, gpus = script.nodes, script.gpus_per_node
    if not kinds or not nodes or nodes < 2 or not gpus or not subject.launches:
        return
    if any(kind.per_node is None or gpus >= kind.per_node for kind in kinds):
        return
    rooms = {kind.per_node or 0 for kind in kinds}
    room = min(rooms)
    fewer = -(-nodes * gpus // room)
    if fewer < nodes:
        yield Hit(
            script.line_of("nodes"),
            f"{nodes} nodes with {plural(gpus, 'GPU')} each; {nodes * gpus} fit on {plural(fewer, 'node')}",
            "GPUs of different nodes talk over the network, many times slower than inside a node",
            f"--nodes={fewer} with {min(room, nodes * gpus)} GPUs each",
        )


@rule("ST819", "warning")
def exclusive_without_memory(subject: Subject) -> Iterator[Hit]:
    """--exclusive without --mem where the memory does not come with the node."""
    script = subject.script
    for queue in subject.queues:
        if queue.default_mem_gib is None or not script.has("exclusive"):
            continue
        if script.has("mem", "mem-per-cpu", "mem-per-gpu"):
            continue
        kinds = subject.kinds
        room = kinds[0].mem_gib_per_node if kinds else None
        yield Hit(
            script.line_of("exclusive"),
            f"--exclusive brings {queue.default_mem_gib:g} GiB of memory only",
            f"it gives all CPUs and GPUs but not the memory ({queue.source})",
            f"#SBATCH --mem={render_mem(room)}" if room else "add --mem",
        )


@rule("ST820", "error")
def node_fraction(subject: Subject) -> Iterator[Hit]:
    """A number of GPUs per node that the site does not give, or several slices."""
    script, kinds = subject.script, subject.kinds
    gpus = script.gpus_per_node
    if not gpus or not kinds or script.gpu is None or subject.cluster is None:
        return
    if all(kind.counts and gpus not in kind.counts for kind in kinds) and kinds[0].slice_of is None:
        legal = " or ".join(str(count) for count in kinds[0].counts)
        yield Hit(
            script.gpu.line,
            f"{subject.cluster.title} gives {legal} GPUs of a node, not {gpus}",
            kinds[0].source,
            f"ask for {legal}",
        )
    elif all(kind.slice_of for kind in kinds) and gpus * (script.nodes or 1) > 1:
        yield Hit(
            script.gpu.line,
            f"{gpus} slices of a GPU in one job",
            f"a job gets one ({kinds[0].source})",
            f"one slice, or a whole {kinds[0].slice_of}",
        )


RULES = (
    unknown_partition,
    over_time,
    over_nodes,
    gpus_of_partition,
    over_node,
    over_share,
    whole_node_memory,
    spread,
    exclusive_without_memory,
    node_fraction,
)
