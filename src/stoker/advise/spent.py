"""What a run has cost, in the site's own unit where it is known, and what part of it bought nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.advise.verdict import held_gpus
from stoker.cluster.load import load_cluster, names
from stoker.cluster.profile import Cluster, Gpu, Partition
from stoker.plan.cost import NodeRequest, make_cost
from stoker.plan.plan import Shape
from stoker.units import plural, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Summary

HOUR_S = 3600
MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Spent:
    """An amount of a unit, the part of it that bought nothing, and how both were found."""

    unit: str
    total: float
    wasted: float
    how: str


def find_spent(summary: Summary) -> Spent | None:
    """Return what was spent; None where neither cores nor GPUs are known, or no time has passed."""
    hours = summary.wall_s / HOUR_S
    if not hours > 0:
        return None
    idle = _idle_gpu_share(summary)
    if idle is None:
        return _core_hours(summary, hours)
    gpus = len(held_gpus(summary))
    unused = f"GPUs were idle {render_share(idle)} of the time, by their load"
    site = _site_cost(summary, gpus)
    if site is not None:
        return Spent(site.unit, site.total, idle * site.total, f"{site.formula}; {unused}")
    how = f"{plural(gpus, 'GPU')} for {hours:.3g} h; {unused}"
    return Spent("GPU-hours", gpus * hours, idle * gpus * hours, how)


def _idle_gpu_share(summary: Summary) -> float | None:
    """Return how much of the time of all GPUs nothing ran on them; their load overstates use."""
    busy = []
    for machine in summary.machines:
        for number in machine.gpus():
            duty = machine.stats.get(f"gpu.{number}.duty_pct")
            if duty is None:
                return None
            busy.append(min(100.0, max(0.0, duty.mean)) / 100)
    return 1 - sum(busy) / len(busy) if busy else None


def _core_hours(summary: Summary, hours: float) -> Spent | None:
    cores, busy = 0.0, 0.0
    for machine in summary.machines:
        allowed, used = (
            known_number(machine.facts.get("cores_allowed")),
            machine.stats.get("cpu.cores"),
        )
        if not allowed or used is None:
            return None
        cores += allowed
        busy += min(allowed, used.mean)
    if not cores:
        return None
    idle = 1 - busy / cores
    how = f"{cores:g} cores for {hours:.3g} h; cores were idle {render_share(idle)} of the time"
    return Spent("core-hours", cores * hours, idle * cores * hours, how)


@dataclass(frozen=True)
class _Site:
    unit: str
    total: float
    formula: str


def _site_cost(summary: Summary, gpus: int) -> _Site | None:
    """Return the cost by the formula of the site that the job ran at."""
    told = summary.run.get("environment")
    environment: Mapping[str, object] = told if isinstance(told, dict) else {}
    name = str(environment.get("SLURM_CLUSTER_NAME") or "").lower()
    if name not in names():
        return None
    cluster = load_cluster(name)
    partition = _partition(cluster, str(environment.get("SLURM_JOB_PARTITION") or ""))
    gpu = _gpu(cluster, partition, summary)
    nodes = len(summary.machines)
    if gpu is None or not nodes or gpus % nodes:
        return None
    cores = known_number(summary.machines[0].facts.get("cores_allowed"))
    memory = _number(environment.get("SLURM_MEM_PER_NODE"))
    if cores is None or memory is None:
        return None
    shape = Shape(nodes, gpus // nodes, gpu, partition)
    node = NodeRequest(cpus=int(cores), mem_gib=memory / MIB_PER_GIB)
    cost = make_cost(cluster, shape, node, int(summary.wall_s))
    return None if cost is None else _Site(cost.unit, cost.total, cost.formula)


def _partition(cluster: Cluster, wanted: str) -> Partition | None:
    found = [each for each in cluster.partition.values() if each.slurm_name == wanted]
    return found[0] if found else None


def _gpu(cluster: Cluster, partition: Partition | None, summary: Summary) -> Gpu | None:
    """Return the kind of GPU: the partition's only one, or the one that the card's name holds."""
    kinds = partition.gpus if partition is not None and partition.gpus else tuple(cluster.gpu)
    if len(kinds) == 1:
        return cluster.gpu[kinds[0]]
    cards = [str(each.get("name", "")).lower() for machine in summary.machines[:1]
             for each in machine.facts.get("gpus") or () if isinstance(each, dict)]  # fmt: skip
    matches = [kind for kind in kinds if cards and kind in cards[0]]
    return cluster.gpu[matches[0]] if len(matches) == 1 else None


def _number(value: object) -> float | None:
    text = str(value or "")
    return float(text) if text.isdecimal() else None
