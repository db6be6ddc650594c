"""Cluster profiles as text for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

from stoker.cluster.profile import Cluster, Gpu, Partition
from stoker.report.table import MAX_WIDTH, render_table, width

FORMAT = 1
UNKNOWN = "unknown"


def render_clusters(clusters: Iterable[Cluster]) -> str:
    """Return one line a cluster: name, state, GPUs, operator."""
    rows: list[tuple[str, ...]] = [("name", "status", "operator", "GPUs per node")]
    for cluster in clusters:
        kinds = [
            f"{each.per_node or '?'}×{each.name}"
            for each in cluster.gpu.values()
            if not each.slice_of
        ]
        if not kinds:
            kinds = ["as on this machine" if cluster.scheduler == "none" else "none"]
        operator = (cluster.operator or "").split(",")[0]
        rows.append((cluster.name, _status(cluster), operator, ", ".join(kinds)))
    if width() < MAX_WIDTH:
        rows = [(name, status, gpus) for name, status, _, gpus in rows]
    return render_table(rows)


def _status(cluster: Cluster) -> str:
    if not cluster.is_retired:
        return cluster.status
    since = f" {cluster.retired}" if cluster.retired else ""
    return f"retired{since}" + (f", now {cluster.successor}" if cluster.successor else "")


def render_cluster(cluster: Cluster) -> str:
    """Return everything that is known about one cluster, and from where."""
    parts = [
        f"{cluster.title} ({cluster.operator or 'operator unknown'}): {_status(cluster)}",
        f"checked {cluster.checked or UNKNOWN}; {cluster.source}",
        "",
        "GPUs",
        render_table([_gpu_head(), *(_gpu_row(gpu) for gpu in cluster.gpu.values())])
        if cluster.gpu
        else "  none",
        "",
        "queues",
        render_table([_queue_head(), *(_queue_row(each) for each in cluster.partition.values())])
        if cluster.partition
        else "  none",
    ]
    for title, value in (
        ("Slurm", cluster.slurm),
        ("local disk", cluster.disk),
        ("billing", cluster.billing),
        ("network", cluster.network),
    ):
        parts += ["", title, _facts(value)]
    for software in cluster.software.values():
        parts += ["", f"software: {software.name}", _facts(software)]
    for title, lines in (("notes", cluster.notes), ("sources disagree", cluster.conflicts)):
        if lines:
            parts += ["", title, *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def _known(value: object, unit: str = "") -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}{unit}"
    return f"{value}{unit}"


def _gpu_head() -> tuple[str, ...]:
    return ("  name", "per node", "GPU memory", "cores per GPU", "memory per GPU", "source")


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    return (
        f"  {gpu.name}",
        f"slice of {gpu.slice_of}" if gpu.slice_of else _known(gpu.per_node),
        _known(gpu.memory_gb, " GB"),
        _known(gpu.cpu_share),
        _known(gpu.mem_share_gib, " GiB"),
        gpu.source,
    )


def _queue_head() -> tuple[str, ...]:
    return ("  name", "time limit", "nodes", "GPUs", "kind", "source")


def _queue_row(queue: Partition) -> tuple[str, ...]:
    kind = "test" if queue.test else ", ".join(queue.gpus) or queue.kind
    return (
        f"  {queue.name}",
        _known(queue.time),
        f"up to {queue.max_nodes}" if queue.max_nodes else UNKNOWN,
        "" if queue.kind == "cpu" else f"up to {queue.max_gpus}" if queue.max_gpus else UNKNOWN,
        kind,
        queue.source,
    )


def _facts(value: Any) -> str:
    rows = []
    for each in dataclasses.fields(value):
        fact = getattr(value, each.name)
        if each.name == "name" or fact in ((), {}, "") or (each.name == "note" and fact is None):
            continue
        if isinstance(fact, dict):
            fact = ", ".join(f"{key}={text}" for key, text in fact.items())
        elif isinstance(fact, tuple):
            fact = "; ".join(fact)
        rows.append((f"  {each.name.replace('_', ' ')}", _known(fact)))
    return render_table(rows)


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """Return a profile as plain values; unknown is `null`."""
    table = dataclasses.asdict(cluster)
    return {"format": FORMAT, **{key: _plain(value) for key, value in table.items()}}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value
