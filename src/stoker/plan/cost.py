"""What a request costs in the site's own unit, by the site's published formula."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from stoker.cluster.profile import Billing, Cluster
from stoker.plan.plan import Cost, Shape
from stoker.units import GIB_PER_GB


@dataclass(frozen=True)
class NodeRequest:
    """What is reserved on each node beside the GPUs."""

    cpus: int
    mem_gib: float
    disk_gb: int = 0


def make_cost(cluster: Cluster, shape: Shape, node: NodeRequest, time_s: int) -> Cost | None:
    """Return the cost of a job.

    `None` when the site's formula is not known.
    """
    billing = cluster.billing
    # The published formulas of GPU partitions do not hold for CPU jobs.
    if billing.unit is None or shape.gpu is None:
        return None
    per_node_hour = billing.per_node_hour
    exclusive = shape.partition is not None and shape.partition.exclusive
    if per_node_hour is not None and exclusive:
        per_hour = per_node_hour * shape.nodes
        formula = f"{per_node_hour:g} x {shape.nodes} nodes: the partition bills whole nodes"
    else:
        terms = _terms(billing, shape, node)
        if terms is None:
            return None
        each, text = terms
        per_hour = each * shape.nodes
        formula = text if shape.nodes == 1 else f"{shape.nodes} nodes x ({text})"
    return Cost(billing.unit, per_hour, per_hour * time_s / 3600, formula, billing.source)


def _terms(billing: Billing, shape: Shape, node: NodeRequest) -> tuple[float, str] | None:
    """Return the cost of one node for an hour, and how it comes about."""
    gpu, gpus, cpus, mem_gib = shape.gpu, shape.gpus_per_node, node.cpus, node.mem_gib
    gpu_rate = gpu.rate if gpu and gpu.rate is not None else billing.per_gpu_hour
    cpu_rate = gpu.cpu_rate if gpu and gpu.cpu_rate is not None else billing.per_cpu_hour
    mem_rate = gpu.mem_rate if gpu and gpu.mem_rate is not None else billing.per_mem_gib_hour
    if gpu_rate is None and (gpus or cpu_rate is None):
        return None
    gpu_rate = gpu_rate or 0.0
    if billing.rule == "slots":
        slots = max(
            gpus,
            ceil(cpus / billing.slot_cpus) if billing.slot_cpus else 0,
            ceil(mem_gib / billing.slot_mem_gib) if billing.slot_mem_gib else 0,
        )
        why = f"{gpus} GPUs, {cpus} cores, {mem_gib:g} GiB"
        return gpu_rate * slots, f"{gpu_rate:g} x {slots} slots for {why}"
    disk_gib = node.disk_gb * GIB_PER_GB
    terms = [
        (gpu_rate * gpus, f"{gpu_rate:g} x {gpus} GPUs"),
        ((cpu_rate or 0) * cpus, f"{cpu_rate or 0:.4g} x {cpus} cores"),
        ((mem_rate or 0) * mem_gib, f"{mem_rate or 0:.4g} x {mem_gib:g} GiB memory"),
    ]
    disk = (billing.per_disk_gib_hour or 0) * disk_gib
    if billing.rule == "max":
        value, text = max(terms)
        return value + disk, f"the largest share, {text}"
    terms.append((disk, f"{billing.per_disk_gib_hour or 0:g} x {disk_gib:.0f} GiB local disk"))
    return sum(value for value, _ in terms), " + ".join(text for value, text in terms if value)
