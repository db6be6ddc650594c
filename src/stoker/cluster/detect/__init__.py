"""Learn a cluster from its Slurm: what it tells becomes a profile, what it does not is named.

The commands are few and small, whatever the size of the cluster: sinfo puts nodes that
are alike on one line, and one node of each kind is asked for the rest.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.cluster.detect.answers import known, read_records, read_settings
from stoker.cluster.detect.network import interface_to
from stoker.cluster.detect.nodes import (
    Kind,
    Nodes,
    add_records,
    find_kinds,
    read_nodes,
    sinfo_words,
)
from stoker.cluster.detect.queues import (
    QOS_FIELDS,
    Person,
    Qos,
    Queue,
    Site,
    find_queues,
    queue_tables,
    read_qos,
)
from stoker.cluster.detect.shipped import (
    Difference,
    differences,
    model_facts,
    shipped_table,
    take_names,
)
from stoker.cluster.detect.site import billing_table, disk_table, gpu_table, slurm_table
from stoker.cluster.detect.text import render_toml
from stoker.cluster.layers import Table, fold, saved_folder
from stoker.errors import ClusterError, SlurmError

Call = Callable[[Sequence[str]], str]

ASSOCIATION_FIELDS = ("Account", "QOS", "DefaultQOS")
# One node of each build is asked; a site with more builds than this has them by accident.
MAX_ASKED = 200
# How srun can start ranks of MPI, what most libraries speak first.
MPI_TYPES = ("pmix", "pmi2")


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be learnt, and why."""

    fact: str
    why: str


@dataclass(frozen=True)
class Detected:
    """A cluster as its Slurm tells it: a profile's table, and what is missing in it."""

    name: str
    table: Table
    unknown: tuple[Unknown, ...]
    shipped: bool
    differences: tuple[Difference, ...]

    def toml(self) -> str:
        """Return the profile, with what is unknown as comments."""
        root = ("cluster", self.name)
        comments: dict[tuple[str, ...], list[str]] = {}
        for each in self.unknown:
            path, fact = _place(self.table, each.fact)
            comments.setdefault((*root, *path), []).append(f"{fact}: unknown; {each.why}")
        return render_toml(root, self.table, comments)


def saved_file(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where a detected profile is kept, so that it is found by its name."""
    return saved_folder(environ) / f"{name}.toml"


def this_person() -> Person:
    """Return who is asking, as this machine knows them."""
    import grp
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = os.environ.get("USER", "")
    groups = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            groups.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return Person(name, frozenset(groups))


def detect_cluster(
    call: Call,
    *,
    person: Person | None = None,
    today: dt.date | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Detected:
    """Ask Slurm through `call` what there is; raises `SlurmError` where it cannot be asked."""
    day = today or dt.datetime.now().date()
    settings = read_settings(call(["scontrol", "show", "config"]))
    name = fold(settings.get("ClusterName", ""))
    if not name:
        raise ClusterError(
            "this Slurm does not say what it is called",
            why="`scontrol show config` has no ClusterName",
            fix="write the profile by hand; docs/cluster.md shows one",
        )
    groups = _ask_nodes(call)
    kinds = find_kinds(groups)
    shipped = shipped_table(name)
    take_names(kinds, shipped)
    qos, person = _ask_accounting(call, settings, person or this_person())
    site = Site(
        groups,
        kinds,
        qos,
        person,
        _source("scontrol show partition, sinfo" + (", sacctmgr show qos" if qos else ""), day),
        "linear" in settings.get("SelectType", ""),
    )
    queues = find_queues(read_records(call(["scontrol", "show", "--oneliner", "partition"])), site)
    settings["MpiDefault"] = _ask_mpi(call, settings)
    table = _table(settings, site, queues, day, environ)
    unknown = _unknowns(settings, site, queues, table)
    return Detected(
        name,
        table,
        # What the profile underneath knows is not missing.
        tuple(each for each in unknown if not _tells(shipped, each.fact)),
        bool(shipped),
        tuple(differences(shipped, table)),
    )


def _ask_mpi(call: Call, settings: Mapping[str, str]) -> str:
    """Return what srun starts ranks of MPI with: the site's usual one, or one that it has."""
    if usual := known(settings.get("MpiDefault")):
        return usual
    try:
        offered = call(["srun", "--mpi=list"]).split()
    except SlurmError:
        return ""
    return next((name for name in MPI_TYPES if name in offered), "")


def _ask_nodes(call: Call) -> list[Nodes]:
    groups = read_nodes(call(sinfo_words()))
    asked = [min(group.names) for group in groups if group.names][:MAX_ASKED]
    if asked:
        try:
            add_records(groups, call(["scontrol", "show", "--oneliner", "node", ",".join(asked)]))
        except SlurmError:
            # sinfo has told the most; only what a node keeps for itself is missing.
            return groups
    return groups


def _ask_accounting(
    call: Call, settings: Mapping[str, str], person: Person
) -> tuple[dict[str, Qos] | None, Person]:
    """Return every QOS, and the person with their accounts; nothing where no accounting answers."""
    if known((settings.get("AccountingStorageType") or "").rpartition("/")[2]) is None:
        return None, person
    words = ["sacctmgr", "--noheader", "--parsable2", "show"]
    mine = [f"user={person.name}", f"cluster={settings['ClusterName']}"]
    try:
        qos = read_qos(call([*words, "qos", f"format={','.join(QOS_FIELDS)}"]))
        answer = call([*words, "associations", *mine, f"format={','.join(ASSOCIATION_FIELDS)}"])
    except SlurmError:
        return None, person
    rows = [line.split("|") for line in answer.splitlines() if line.count("|") >= 2]
    names = [name for row in rows for name in row[1].split(",") if name]
    default = next((row[2] for row in rows if row[2]), None)
    allowed = tuple(dict.fromkeys(names))
    person = dataclasses.replace(
        person,
        accounts=tuple(dict.fromkeys(row[0] for row in rows if row[0])),
        qos=allowed or None,
        # Where no default is set, Slurm takes the only one, or `normal`.
        default_qos=default or (allowed[0] if len(allowed) == 1 else "normal"),
    )
    return qos, person


def _table(
    settings: Mapping[str, str],
    site: Site,
    queues: Sequence[Queue],
    day: dt.date,
    environ: Mapping[str, str],
) -> Table:
    """Put the profile's tables together, each with its source."""
    config = _source("scontrol show config", day)
    asked = ", sacctmgr show associations" if site.person.accounts is not None else ""
    disk = disk_table(settings, site.groups, environ)
    billing = billing_table(settings, queues)
    partitions: Table = {}
    for queue in queues:
        partitions |= queue_tables(queue)
    notes = [f"jobs in `{each.name}` make room for others" for each in queues if each.is_preempted]
    return {
        "title": settings["ClusterName"],
        "status": "in service",
        "checked": day,
        **({"notes": notes} if notes else {}),
        "source": config,
        "slurm": {
            **slurm_table(settings, site.kinds, queues, site.person),
            "source": _source(f"scontrol show config, scontrol show partition{asked}", day),
        },
        "gpu": {kind.name: _gpu(kind, queues, day) for kind in site.kinds},
        "partition": partitions,
        "disk": disk and {**disk, "source": _source("sinfo, scontrol show config", day)},
        "billing": billing and {**billing, "source": _source("scontrol show partition", day)},
    }


def _gpu(kind: Kind, queues: Sequence[Queue], day: dt.date) -> Table:
    facts = gpu_table(kind, queues)
    more = model_facts(kind.model) if kind.model else {}
    extra = f"; {' and '.join(more)} as in the shipped profiles" if more else ""
    whole = _whole_of(kind, queues)
    if whole is not None:
        more["slice_of"] = whole.name
    if kind.model and kind.model != kind.name and kind.mig is None:
        more["aliases"] = [kind.model]
    return {**facts, **more, "source": _source("sinfo, scontrol show node", day) + extra}


def _whole_of(kind: Kind, queues: Sequence[Queue]) -> Kind | None:
    """Return the kind that a slice is a part of, if the cluster has it."""
    if kind.mig is None:
        return None
    every = {other.name: other for queue in queues for other in queue.kinds if other.mig is None}
    for other in every.values():
        if kind.mig["parent"] == other.type or (kind.model and kind.model == other.model):
            return other
    return None


def _source(commands: str, day: dt.date) -> str:
    return f"{commands}, {day.isoformat()}"


def _unknowns(
    settings: Mapping[str, str], site: Site, queues: Sequence[Queue], table: Table
) -> Iterator[Unknown]:
    """Yield what a plan could use and Slurm did not tell."""
    yield Unknown("operator", "Slurm does not know who runs it")
    if site.qos is None:
        yield Unknown("slurm.account_example", "no accounting answers: accounts and QOS limits")
    elif not site.person.accounts:
        yield Unknown("slurm.account_example", f"{site.person.name} has no account here")
    plugin = known(settings.get("JobSubmitPlugins"))
    if plugin:
        yield Unknown(
            "slurm.account", f"what the submit plugin `{plugin}` demands; taken as required"
        )
    if not site.kinds:
        yield Unknown("gpu", "no node in a partition that you can see has a gres `gpu`")
    for kind in site.kinds:
        missing = [
            key for key in ("vendor", "memory_gb", "bf16") if key not in table["gpu"][kind.name]
        ]
        for key in missing:
            yield Unknown(f"gpu.{kind.name}.{key}", "Slurm does not tell it")
    for queue in queues:
        if queue.qos_name and queue.qos_name not in (site.qos or {}):
            yield Unknown(
                f"partition.{queue.name}.max_gpus",
                f"the limits of its QOS {queue.qos_name} cannot be read; those given are the partition's",
            )
    yield from _unknown_tables(table)
    yield Unknown("network.env", _network(site))
    yield Unknown(
        "software", "Slurm does not know how PyTorch is loaded; --module, --venv, --container"
    )


def _network(site: Site) -> str:
    """Return what can be seen of the way to the nodes; their own interface may be another."""
    nodes = [group.record for group in site.groups if group.build.gpus and group.record]
    for node in nodes[:1]:
        interface = interface_to(node.get("NodeAddr", ""))
        if interface is not None:
            return f"this machine reaches {node.get('NodeName')} over {interface}; see `ip addr` on a node"
    return "look at `ip addr` on a node for its interface"


def _unknown_tables(table: Table) -> Iterator[Unknown]:
    disk = table["disk"]
    if not disk:
        yield Unknown("disk.exists", "no gres for it, and TmpDisk is not set")
    elif "path" not in disk and "env" not in disk:
        yield Unknown("disk.env", "the site's guide tells the variable that holds the disk's path")
    if not table["billing"]:
        yield Unknown("billing.unit", "the GPU partitions have no TRESBillingWeights, or several")


def _tells(table: Table, fact: str) -> bool:
    path, rest = _place(table, fact)
    for key in path:
        table = table[key]
    return rest in table


def _place(table: Table, fact: str) -> tuple[tuple[str, ...], str]:
    """Return the table that a fact belongs to, as far as it is there, and the rest of its name."""
    place: list[str] = []
    inner: Any = table
    rest = fact
    while isinstance(inner, dict):
        # Names of GPUs may hold dots: the longest that fits is the one.
        fits = [key for key in inner if rest.startswith(f"{key}.") and isinstance(inner[key], dict)]
        if not fits or not inner[max(fits, key=len)]:
            break
        key = max(fits, key=len)
        place.append(key)
        inner, rest = inner[key], rest[len(key) + 1 :]
    return tuple(place), rest
