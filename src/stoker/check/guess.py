"""Guess from a script which cluster it is for.

A wrong guess makes false alarms, so one sign is enough only if no other known cluster
shows it, and a sign against a cluster rules it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.check.batch import BatchScript
from stoker.cluster.profile import Cluster

# Names that hundreds of sites use for a partition: they point at nobody.
_COMMON = frozenset(
    [
        "gpu",
        "gpus",
        "cpu",
        "test",
        "debug",
        "small",
        "medium",
        "large",
        "long",
        "short",
        "normal",
        "batch",
        "main",
        "compute",
        "standard",
        "regular",
        "interactive",
        "shared",
        "desktop",
        "parallel",
        "high",
        "low",
        "bench",
        "premium",
        "preempt",
        "general",
        "all",
        "comp",
        "fit",
        "smp",
        "mig",
        "grace",
        "gpu-test",
        "gpu-short",
        "gpu-medium",
        "gpu-long",
        "automatic",
    ]
)


@dataclass(frozen=True)
class Guess:
    """A cluster and what pointed at it."""

    cluster: Cluster
    signs: tuple[str, ...]


def guess_cluster(script: BatchScript, clusters: Iterable[Cluster]) -> Guess | None:
    """Return the one cluster that the script points at, or nothing."""
    found = [
        Guess(cluster, signs)
        for cluster in clusters
        if cluster.scheduler == "slurm" and (signs := _signs(script, cluster))
    ]
    found = [guess for guess in found if not _contradicts(script, guess.cluster)]
    if len(found) > 1:
        best = max(len(guess.signs) for guess in found)
        found = [guess for guess in found if len(guess.signs) == best]
    return found[0] if len(found) == 1 else None


def _signs(script: BatchScript, cluster: Cluster) -> tuple[str, ...]:
    """Return what points at this cluster; nothing, unless one sign is a strong one."""
    strong: list[str] = []
    weak: list[str] = []
    partition = script.value("partition")
    names = {queue.slurm_name for queue in cluster.partition.values()} - {""}
    if partition in names:
        (weak if partition in _COMMON else strong).append(f"partition `{partition}`")
    qos = script.value("qos")
    if qos is not None and qos in {queue.qos for queue in cluster.partition.values()}:
        (weak if qos in _COMMON else strong).append(f"qos `{qos}`")
    account, pattern = script.value("account"), cluster.slurm.account_pattern
    # A pattern without a word of its own, such as two letters and two digits, proves nothing.
    if account and pattern and re.fullmatch(pattern, account):
        (strong if re.match(r"\(?[a-z]{3,}", pattern) else weak).append(f"account `{account}`")
    for sign in cluster.slurm.signs:
        if sign in script.text:
            strong.append(f"`{sign}`")
    gpu = script.gpu
    if gpu is not None and gpu.type in {kind.type for kind in cluster.gpu.values()} - {None}:
        weak.append(f"GPU type `{gpu.type}`")
    return (*strong, *weak) if strong else ()


def _contradicts(script: BatchScript, cluster: Cluster) -> bool:
    """Whether the script names something that this cluster does not have."""
    partition = script.value("partition")
    names = {queue.slurm_name for queue in cluster.partition.values()} - {""}
    if partition and cluster.slurm.partition == "never":
        return True
    if partition and names and not set(partition.split(",")) & names:
        return True
    types = {name for kind in cluster.gpu.values() for name in (kind.type, *kind.aliases) if name}
    gpu = script.gpu
    if gpu is not None and gpu.type and types and gpu.type not in types:
        return True
    account, pattern = script.value("account"), cluster.slurm.account_pattern
    if account and pattern and re.match(r"project_\d", account):
        return re.fullmatch(pattern, account) is None
    return False
