"""Partitions, with the limits that they and the QOS set, and who may use them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.cluster.detect.answers import known, read_int, read_limits, read_time
from stoker.cluster.detect.nodes import Kind, Nodes
from stoker.units import render_time

TEST_NAME = re.compile(
    r"(?<![a-z])(test|debug|dbg|dev|devel)(?![a-z])|test$|^test|debug", re.IGNORECASE
)
# A queue with such a name is for tests if its jobs are as short as this; a shorter one always is.
TEST_NAMED_S = 4 * 3600
TEST_S = 30 * 60
QOS_FIELDS = ("Name", "Flags", "MaxWall", "GrpTRES", "MaxTRES", "MaxTRESPU", "MinTRES")


@dataclass(frozen=True)
class Qos:
    """What one QOS allows a job."""

    name: str
    time_s: int | None = None
    most: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Person:
    """Whose view of the cluster it is: partitions can be closed to some."""

    name: str
    groups: frozenset[str] = frozenset()
    # From the accounting; `None` where there is none to ask.
    accounts: tuple[str, ...] | None = None
    qos: tuple[str, ...] | None = None
    default_qos: str | None = None


def read_qos(output: str) -> dict[str, Qos]:
    """Read `sacctmgr show qos` with the fields above, a `|` between them."""
    found = {}
    for line in output.splitlines():
        words = line.split("|")
        if len(words) < len(QOS_FIELDS) or not words[0]:
            continue
        row = dict(zip(QOS_FIELDS, words, strict=False))
        most: dict[str, float] = {}
        # A job cannot have more than a person may, nor more than all jobs together.
        for key in ("GrpTRES", "MaxTRES", "MaxTRESPU"):
            for name, number in read_limits(row[key]).items():
                most[name] = min(number, most.get(name, number))
        least = read_limits(row["MinTRES"])
        found[row["Name"]] = Qos(row["Name"], read_time(row["MaxWall"]), most, least)
    return found


@dataclass(frozen=True)
class Site:
    """What the queues are made from."""

    groups: Sequence[Nodes]
    kinds: Sequence[Kind]
    qos: Mapping[str, Qos] | None
    person: Person
    source: str
    is_linear: bool = False
    # The priority of the partition that goes first.
    top_tier: int = 0


@dataclass(frozen=True)
class Queue:
    """One partition as Slurm tells it, and what we make of it; perhaps for one kind of GPU alone."""

    record: Mapping[str, str]
    site: Site
    only: Kind | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.get("PartitionName", "")

    @property
    def groups(self) -> list[Nodes]:
        """The nodes that it has, those alike together."""
        return [group for group in self.site.groups if group.partitions.get(self.name)]

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of GPU that it has."""
        here = [id(group) for group in self.groups]
        return [
            kind
            for kind in self.site.kinds
            if self.only in (None, kind) and any(id(group) in here for group in kind.groups)
        ]

    def count(self, kind: Kind) -> int:
        """Return how many of its nodes have a kind of GPU."""
        return sum(len(group.partitions.get(self.name, ())) for group in kind.groups)

    @property
    def qos_name(self) -> str | None:
        """The QOS that sets its limits, if it has one."""
        return known(self.record.get("QoS"))

    @property
    def limits(self) -> list[Qos]:
        """The QOS that limit its jobs: its own first, then the one that a person's jobs get."""
        names = [self.qos_name, self.asked_qos or self.site.person.default_qos]
        every = self.site.qos or {}
        return [every[name] for name in names if name is not None and name in every]

    @property
    def asked_qos(self) -> str | None:
        """The QOS that must be asked for here: the usual one is not allowed."""
        allowed, person = self._allowed("AllowQos"), self.site.person
        if allowed is None or person.qos is None or person.default_qos in allowed:
            return None
        return next((name for name in person.qos if name in allowed), None)

    def _allowed(self, key: str) -> set[str] | None:
        text = known(self.record.get(key))
        return None if text is None or text == "ALL" else set(text.split(","))

    def limit(self, name: str) -> float | None:
        """Return the most of one resource that a job gets here; a partition's own QOS wins."""
        return next((qos.most[name] for qos in self.limits if name in qos.most), None)

    @property
    def time_s(self) -> int | None:
        """The longest job, in seconds."""
        wall = next((qos.time_s for qos in self.limits if qos.time_s), None)
        limits = [each for each in (read_time(self.record.get("MaxTime")), wall) if each]
        return min(limits, default=None)

    @property
    def max_nodes(self) -> int | None:
        """The most nodes of a job: no more than there are."""
        limits = [
            read_int(self.record.get("MaxNodes")),
            _whole(self.limit("node")),
            self.count(self.only) if self.only else read_int(self.record.get("TotalNodes")),
        ]
        return min((each for each in limits if each), default=None)

    @property
    def max_gpus(self) -> int | None:
        """The most GPUs of a job: no more than its nodes have."""
        there = sum(self.count(kind) * kind.per_node for kind in self.kinds)
        limits = [_whole(self.limit("gres/gpu")), there]
        if self.kinds and self.max_nodes:
            limits.append(self.max_nodes * max(kind.per_node for kind in self.kinds))
        if len(self.kinds) == 1:
            limits.append(_whole(self.limit(f"gres/gpu:{self.kinds[0].type}")))
        return min((each for each in limits if each), default=None)

    @property
    def is_exclusive(self) -> bool:
        """Whether jobs get whole nodes."""
        shared = self.record.get("OverSubscribe", self.record.get("Shared", ""))
        return shared.startswith("EXCLUSIVE") or self.site.is_linear

    @property
    def is_preempted(self) -> bool:
        """Whether its jobs make room for those of another partition."""
        mode, tier = (
            self.record.get("PreemptMode", "OFF"),
            read_int(self.record.get("PriorityTier")),
        )
        return mode.partition(",")[0] not in ("OFF", "") and (tier or 0) < self.site.top_tier

    @property
    def is_test(self) -> bool:
        """Whether it looks like the short queue for tests: by its name and its time."""
        longest = self.time_s
        if longest is None:
            return False
        return longest <= TEST_S or (longest <= TEST_NAMED_S and bool(TEST_NAME.search(self.name)))

    @property
    def access(self) -> str | None:
        """Who may use it, if this person may not."""
        record, person = self.record, self.site.person
        state = record.get("State", "UP")
        if state != "UP":
            return f"its state was {state}"
        if record.get("RootOnly") == "YES":
            return "for administrators"
        if record.get("ReqResv") == "YES":
            return "jobs need a reservation"
        groups, accounts = self._allowed("AllowGroups"), self._allowed("AllowAccounts")
        if groups is not None and not groups & person.groups:
            return f"for the groups {_few(groups)}"
        if accounts is not None and not accounts & set(person.accounts or ()):
            return f"for the accounts {_few(accounts)}"
        denied = self._allowed("DenyAccounts")
        if denied and person.accounts and set(person.accounts) <= denied:
            return "not for your accounts"
        allowed = self._allowed("AllowQos")
        if allowed and person.qos is not None and not allowed & set(person.qos):
            return f"for the QOS {_few(allowed)}"
        return None


def find_queues(records: Iterable[Mapping[str, str]], site: Site) -> list[Queue]:
    """Return the partitions that have nodes: the default one first, those that are preempted last."""
    every = list(records)
    tiers = [read_int(record.get("PriorityTier")) or 0 for record in every]
    site = dataclasses.replace(site, top_tier=max(tiers, default=0))
    queues = [Queue(record, site) for record in every]
    named = [queue for queue in queues if queue.name and queue.groups]
    return sorted(
        named, key=lambda queue: (queue.is_preempted, queue.record.get("Default") != "YES")
    )


def queue_tables(queue: Queue) -> dict[str, dict[str, Any]]:
    """Return the tables of a partition: one for GPU jobs, one for CPU jobs, or both."""
    bare = [group for group in queue.groups if not group.build.gpus]
    tables: dict[str, dict[str, Any]] = {}
    for each in _by_kind(queue):
        name = f"{queue.name}_{each.only.name}" if each.only and tables else queue.name
        named = {} if name == queue.name else {"partition": queue.name}
        tables[name] = {**named, **_gpu_table(each, has_bare=bool(bare))}
    if bare:
        cpu = _cpu_table(queue, bare)
        if queue.kinds:
            tables[f"{queue.name}_cpu"] = {"kind": "cpu", "partition": queue.name, **cpu}
        else:
            tables[queue.name] = {"kind": "cpu", **cpu}
    return tables


def _by_kind(queue: Queue) -> list[Queue]:
    """Return a queue for each kind of GPU if one kind alone cannot fill the largest job."""
    kinds, limit = queue.kinds, queue.max_nodes or 0
    if len(kinds) < 2 or all(queue.count(kind) >= limit for kind in kinds):
        return [queue] if kinds else []
    return [dataclasses.replace(queue, only=kind) for kind in kinds]


def _gpu_table(queue: Queue, *, has_bare: bool) -> dict[str, Any]:
    least = next((qos.least["gres/gpu"] for qos in queue.limits if "gres/gpu" in qos.least), None)
    return _known(
        gpus=[kind.name for kind in queue.kinds],
        **_common(queue),
        min_gpus=0 if has_bare else _whole(least),
        max_gpus=queue.max_gpus,
        default_mem_gib=_default_memory(queue) if queue.is_exclusive else None,
        **_marks(queue),
    )


def _cpu_table(queue: Queue, bare: Sequence[Nodes]) -> dict[str, Any]:
    sizes = [group.mem_gib for group in bare if group.mem_gib is not None]
    limit = read_int(queue.record.get("MaxMemPerNode"))
    room = min([max(sizes), *([limit / 1024] if limit else [])]) if sizes else None
    return _known(
        **_common(queue),
        max_cpus=_whole(queue.limit("cpu")),
        mem_gib_per_node=None if room is None else float(int(room)),
        **_marks(queue),
    )


def _common(queue: Queue) -> dict[str, Any]:
    least = read_int(queue.record.get("MinNodes")) or 0
    return {
        "qos": queue.asked_qos,
        "time": render_time(queue.time_s) if queue.time_s else None,
        "min_nodes": least if least > 1 else None,
        "max_nodes": queue.max_nodes,
    }


def _marks(queue: Queue) -> dict[str, Any]:
    return {
        "exclusive": queue.is_exclusive,
        "test": True if queue.is_test else None,
        "access": queue.access,
        "source": queue.site.source,
    }


def _default_memory(queue: Queue) -> float | None:
    """Return the GiB that a whole node brings where --mem is not given."""
    whole = read_int(queue.record.get("DefMemPerNode"))
    each = read_int(queue.record.get("DefMemPerCPU"))
    cpus = min((group.cpus for group in queue.groups if group.cpus), default=None)
    if whole is None and each is not None and cpus is not None:
        whole = each * cpus
    return float(whole // 1024) if whole and whole >= 1024 else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _few(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")


def _known(**facts: Any) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}
