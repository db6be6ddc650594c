"""Nodes that are alike, and the kinds of GPU that sit in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.cluster.detect.answers import Gres, hosts, known, read_gres, read_int, read_records

# Nodes that do not take jobs, whatever flag follows the state (`*` no answer, `~` powered off).
AWAY = re.compile(r"(down|drain|drng|drained|fail|error|err|inval|unk|futr|future|npc|boot_?fail)")
MIG = re.compile(
    r"(?P<parent>.*?)[._-]?(?:mig[._-]?)?(?P<part>\d)g[._](?P<gb>\d+)gb", re.IGNORECASE
)
# The letters and digits that people know a GPU by, within a longer name.
MODEL = re.compile(
    r"(?<![a-z0-9])(k20|k40|k80|p4|p40|p100|v100s?|t4|a2|a10|a16|a30|a40|a100|a6000|l4|l40s?|h20|h100|h200"
    r"|b100|b200|b300|gh200|gb200|gb300|mi50|mi60|mi100|mi210|mi250x?|mi300[ax]?|mi325x|mi355x)(?![a-z0-9])",
    re.IGNORECASE,
)
# sinfo's fields: partition, state, CPUs, memory, disk, threads a core, features, gres, names.
SINFO_FIELDS = ("%R", "%t", "%c", "%m", "%d", "%Z", "%f", "%G", "%N")
SEPARATOR = "\x1f"


@dataclass(frozen=True)
class Build:
    """What a node has; nodes of one build are alike."""

    cpus: int | None
    mem_mib: int | None
    disk_mb: int | None
    threads: int
    gres: tuple[Gres, ...]

    @property
    def gpus(self) -> tuple[Gres, ...]:
        """Its GPUs, whole ones and slices."""
        return tuple(each for each in self.gres if each.name == "gpu" and each.count > 0)


@dataclass
class Nodes:
    """All nodes of one build, and where they are."""

    build: Build
    names: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    partitions: dict[str, set[str]] = field(default_factory=dict)
    features: set[str] | None = None
    # What one of them says about itself.
    record: Mapping[str, str] = field(default_factory=dict)

    @property
    def cpus(self) -> int | None:
        """The CPUs that jobs get: some sites keep a few for the system."""
        usable, total = read_int(self.record.get("CPUEfctv")), self.build.cpus
        if usable is None and total is not None:
            kept = read_int(self.record.get("CoreSpecCount")) or 0
            usable = total - kept * self.build.threads
        return usable or total

    @property
    def mem_gib(self) -> float | None:
        """The memory that jobs get, in whole GiB."""
        if not self.build.mem_mib or self.build.mem_mib < 1024:
            return None
        kept = read_int(self.record.get("MemSpecLimit")) or 0
        return float((self.build.mem_mib - kept) // 1024) or None


def sinfo_words() -> list[str]:
    """Return the command whose answer `read_nodes` reads; alike nodes share a line."""
    return ["sinfo", "--noheader", "--exact", f"--format={SEPARATOR.join(SINFO_FIELDS)}"]


def read_nodes(output: str) -> list[Nodes]:
    """Read sinfo's lines into groups of nodes that are alike, the largest first."""
    found: dict[Build, Nodes] = {}
    for line in output.splitlines():
        words = [word.strip() for word in line.split(SEPARATOR)]
        if len(words) != len(SINFO_FIELDS):
            continue
        partition, state, cpus, memory, disk, threads, features, gres, names = words
        build = Build(
            read_int(cpus),
            read_int(memory),
            read_int(disk),
            read_int(threads) or 1,
            read_gres(gres),
        )
        group = found.setdefault(build, Nodes(build))
        here = set(hosts(names))
        group.names |= here
        group.partitions.setdefault(partition, set()).update(here)
        if AWAY.match(state.lower()):
            group.away |= here
        tags = set((known(features) or "").split(","))
        group.features = tags if group.features is None else group.features & tags
    return sorted(found.values(), key=lambda each: (-len(each.names), min(each.names, default="")))


def add_records(groups: Iterable[Nodes], output: str) -> None:
    """Lay what `scontrol show -o node` says of one node of each group beside the group."""
    records = {record.get("NodeName"): record for record in read_records(output)}
    for group in groups:
        group.record = next((records[name] for name in group.names if name in records), {})


@dataclass
class Kind:
    """One kind of GPU: a type, and how many of them a node has."""

    # What it is called in Slurm: a type, or a feature of its nodes.
    label: str
    type: str | None
    per_node: int
    groups: list[Nodes]
    # What it is called in the profile, where names are unique.
    name: str = ""

    @property
    def names(self) -> set[str]:
        """The nodes that have it."""
        return set().union(*(group.names for group in self.groups))

    @property
    def mig(self) -> re.Match[str] | None:
        """The parts of its name, if it is a slice of a GPU."""
        return MIG.fullmatch(self.type or "")

    @property
    def model(self) -> str | None:
        """What people call it."""
        match = MODEL.search(self.label.replace("_", " "))
        return match[1].lower() if match else None

    @property
    def is_away(self) -> bool:
        """Whether none of its nodes takes jobs now."""
        return all(group.names <= group.away for group in self.groups)

    @property
    def feature(self) -> str | None:
        """The feature that names it, where the GPUs of its nodes have no type."""
        tags = set.intersection(*(group.features or set() for group in self.groups))
        return self.label if self.type is None and self.label in tags else None


def find_kinds(groups: Iterable[Nodes]) -> list[Kind]:
    """Return the kinds of GPU: whole ones before slices, the most of them first."""
    found: dict[tuple[str, str | None, int], list[Nodes]] = {}
    for group in groups:
        for gpu in group.build.gpus:
            name = gpu.type or _model_of(group) or "gpu"
            found.setdefault((name, gpu.type, gpu.count), []).append(group)
    kinds = [Kind(*key, members) for key, members in found.items()]
    kinds.sort(
        key=lambda kind: (kind.mig is not None, -kind.per_node * len(kind.names), kind.label)
    )
    taken: set[str] = set()
    for kind in kinds:
        kind.name = kind.label
        # The same GPU in nodes of another size is a kind of its own.
        while kind.name in taken:
            kind.name += f"_{kind.per_node}"
        taken.add(kind.name)
    return kinds


def _model_of(group: Nodes) -> str | None:
    """Return the feature that is a GPU's name, if exactly one is."""
    tags = [tag for tag in sorted(group.features or ()) if MODEL.fullmatch(tag)]
    return tags[0] if len(tags) == 1 else None


def share(kind: Kind, group: Nodes) -> float:
    """Return the part of a node that goes with one GPU of this kind; a slice counts as a part of one."""
    weights = {gpu.type: _weight(gpu.type) for gpu in group.build.gpus}
    whole = sum(weights[gpu.type] * gpu.count for gpu in group.build.gpus)
    return weights[kind.type] / whole


def _weight(kind: str | None) -> float:
    match = MIG.fullmatch(kind or "")
    # A GPU has seven parts to compute with.
    return max(1, int(match["part"])) / 7 if match else 1.0
