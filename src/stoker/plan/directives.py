"""The sbatch options of a plan, in the order in which people read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stoker.cluster.profile import Cluster
from stoker.errors import UsageError, nearest
from stoker.plan.plan import Launch, Shape
from stoker.plan.spec import Spec
from stoker.units import (
    parse_count,
    parse_memory,
    parse_name,
    parse_positive,
    parse_time,
    render_mem,
    render_time,
)

Directives = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Numbers:
    """What the request asks for on each node."""

    cpus_per_task: int
    mem_gib: float | None
    disk_gb: int | None
    time_s: int
    account: str | None


def make_directives(
    spec: Spec, cluster: Cluster, shape: Shape, launch: Launch, numbers: Numbers
) -> Directives:
    """Return option names and values; `None` for an option without one."""
    if cluster.scheduler == "none":
        return ()
    options: dict[str, str | None] = {"job-name": spec.job_name or job_name(spec)}
    if numbers.account:
        options["account"] = numbers.account
    options.update(_queue(spec, cluster, shape))
    options["nodes"] = str(shape.nodes)
    options["ntasks-per-node"] = str(launch.tasks_per_node)
    options["cpus-per-task"] = str(numbers.cpus_per_task)
    if numbers.mem_gib is not None:
        options["mem"] = render_mem(numbers.mem_gib)
    options.update(_gres(cluster, shape, numbers.disk_gb))
    if numbers.disk_gb is not None and cluster.disk.option == "tmp":
        options["tmp"] = f"{numbers.disk_gb}G"
    options["time"] = render_time(numbers.time_s)
    survival = spec.survival
    if survival.requeue:
        options["requeue"] = None
        options["open-mode"] = "append"
    if survival.requeue or (spec.staging.results is not None and cluster.disk.exists):
        options["signal"] = f"B:{survival.signal}@{survival.grace_s}"
    return _amend(options, spec)


# sbatch options that the planner has its own for, and how their values are read.
_OWN: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nodes": ("nodes", parse_positive),
    "time": ("time_s", parse_time),
    "mem": ("mem_gib", parse_memory),
    "cpus-per-task": ("cpus_per_task", parse_positive),
    "gpus": ("gpus", parse_count),
    "gpus-per-node": ("gpus_per_node", parse_positive),
    "partition": ("partition", parse_name),
    "account": ("account", parse_name),
    "qos": ("qos", parse_name),
    "job-name": ("job_name", parse_name),
}
# Asking for one of these takes the place of the others.
_EXCLUSIVE = ("mem", "mem-per-cpu", "mem-per-gpu")


def take_over(spec: Spec) -> Spec:
    """Turn passed-through options that the planner knows into what they ask for."""
    kept = []
    for text in spec.add:
        option, equals, value = text.lstrip("-").partition("=")
        if option in _OWN and equals:
            field, read = _OWN[option]
            spec = replace(spec, **{field: read(value)})
        else:
            kept.append(text)
    return replace(spec, add=tuple(kept))


def job_name(spec: Spec) -> str:
    """Return a name that squeue shows well: `../a b/train.py` → `train`."""
    stem = spec.script.rsplit("/", 1)[-1].removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-") or "job"


def _queue(spec: Spec, cluster: Cluster, shape: Shape) -> dict[str, str]:
    queue = shape.partition
    options: dict[str, str] = {}
    partition, qos = spec.partition, spec.qos
    if queue is not None and not queue.automatic:
        partition = queue.slurm_name if partition in (None, queue.name) else partition
        qos = qos or queue.qos
    if partition:
        options["partition"] = partition
    if qos:
        options["qos"] = qos
    constraint = (shape.gpu.constraint if shape.gpu else None) or cluster.slurm.constraint
    if constraint and shape.gpu:
        options["constraint"] = constraint
    return options


def _gres(cluster: Cluster, shape: Shape, disk_gb: int | None) -> dict[str, str]:
    gres: list[str] = []
    options: dict[str, str] = {}
    gpu, count = shape.gpu, shape.gpus_per_node
    if gpu is not None and cluster.slurm.gpu_option != "none":
        typed = gpu.type if cluster.slurm.gpu_type != "never" else None
        request = f"{typed}:{count}" if typed else str(count)
        if cluster.slurm.gpu_option == "gres":
            gres.append(f"gpu:{request}")
        else:
            options["gpus-per-node"] = request
    if disk_gb is not None and cluster.disk.gres:
        gres.append(f"{cluster.disk.gres}:{disk_gb}")
    if gres:
        options["gres"] = ",".join(gres)
    return options


def _amend(options: dict[str, str | None], spec: Spec) -> Directives:
    """Add and remove what the user passes through to sbatch."""
    for text in spec.add:
        name, equals, value = text.lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", name):
            raise UsageError(
                f"`--sbatch {text}` is not an sbatch option",
                why="it is a long option's name, with =VALUE if it takes one",
                fix="write for example --sbatch=--mail-type=END",
            )
        if name in _EXCLUSIVE:
            options = {key: old for key, old in options.items() if key not in _EXCLUSIVE}
        options[name] = value if equals else None
    for name in spec.drop:
        bare = name.lstrip("-")
        near = nearest(bare, options)
        if (
            bare not in options
            and near is not None
            and near[0] == bare[0]
            and near not in ("mem", "tmp")
        ):
            raise UsageError(
                f"there is no --{bare} to leave out",
                why="the header has: " + ", ".join(options),
                fix=f"--no-sbatch={near}",
            )
        options.pop(bare, None)
    for name, each in options.items():
        if each is not None and re.search(r"[\n\r\0]", each):
            raise UsageError(
                f"the value of --{name} has a line break in it",
                why="an #SBATCH line cannot hold one",
                fix="give a value on one line",
            )
    return tuple(options.items())
