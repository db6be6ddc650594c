"""The limit of an association or a QOS that holds a job back: its number, and what is used of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.engine.queue import gpus_of, known
from stoker.engine.slurm import SEPARATOR, call, rows
from stoker.errors import SlurmError

# What sacctmgr calls the limits. In associations a limit for a user stands in the user's row.
ASSOCIATION = (
    "Account", "User", "GrpTRES", "GrpJobs", "GrpSubmit", "GrpWall", "GrpTRESMins",
    "GrpTRESRunMins", "MaxJobs", "MaxSubmit", "MaxTRES", "MaxTRESPerNode", "MaxTRESMins", "MaxWall",
)  # fmt: skip
QOS = (
    "Name", "GrpTRES", "GrpJobs", "GrpSubmit", "GrpWall", "GrpTRESMins", "GrpTRESRunMins",
    "MaxJobsPU", "MaxJobsPA", "MaxSubmitPU", "MaxSubmitPA", "MaxTRES", "MaxTRESPerNode",
    "MaxTRESPU", "MaxTRESPA", "MaxTRESMins", "MaxWall", "MinTRES",
)  # fmt: skip
# How reasons call a resource, and how sacctmgr does.
RESOURCES = {
    "cpu": "cpu", "gres": "gres", "mem": "mem", "memory": "mem", "node": "node", "nodes": "node",
    "billing": "billing", "energy": "energy", "bb": "bb", "license": "license", "tres": "",
}  # fmt: skip
_REASON = re.compile(
    r"(?P<owner>Assoc|QOS)(?P<scope>Grp|Max|Min)?(?P<what>Jobs?|Submit|Wall|[A-Za-z]+?)"
    r"(?:Jobs)?(?P<time>RunMin(?:ute)?s|Min(?:ute)?s)?(?:Duration)?"
    r"(?P<per>PerUser|PerAccount|PerAcct|PerNode|PerJob)?(?:Limit|NotSatisfied)?$"
)
_PER = {"PerUser": "PU", "PerAccount": "PA", "PerAcct": "PA", "PerNode": "PerNode"}


@dataclass(frozen=True)
class Named:
    """A limit as sacctmgr calls it: the column, and the resource in it."""

    is_qos: bool
    column: str
    # "cpu", "gres" …; empty where the column is one number.
    resource: str


@dataclass(frozen=True)
class Limit:
    """A limit that holds a job back."""

    # "QOS normal", "account project_1", "user someone in account project_1"
    owner: str
    column: str
    # As sacctmgr writes it: "4", "gres/gpu=8".
    value: str
    # What runs under it now.
    jobs: int
    gpus: int
    cpus: int


def named_limit(reason: str) -> Named | None:
    """Return the limit that a reason speaks of.

    >>> named_limit("QOSMaxGRESPerUser")
    Named(is_qos=True, column='MaxTRESPU', resource='gres')
    >>> named_limit("AssocGrpCpuLimit").column, named_limit("AssocMaxJobsLimit").column
    ('GrpTRES', 'MaxJobs')
    >>> named_limit("AssocGrpGRESMinutes").column, named_limit("Priority")
    ('GrpTRESMins', None)
    """
    match = _REASON.match(reason)
    if not match or not match["scope"]:
        return None
    is_qos, scope, what = match["owner"] == "QOS", match["scope"], match["what"].lower()
    per = _PER.get(match["per"] or "", "")
    if what in ("job", "jobs", "submit", "wall"):
        name = {"job": "Jobs", "jobs": "Jobs", "submit": "Submit", "wall": "Wall"}[what]
        # A QOS counts jobs per user or account; an association has no other than its own.
        suffix = (per or "PU") if is_qos and scope == "Max" and name != "Wall" else ""
        return Named(is_qos, f"{scope}{name}{suffix}", "")
    resource = RESOURCES.get(what)
    if resource is None:
        return None
    if match["time"]:
        kind = "RunMins" if match["time"].startswith("Run") else "Mins"
        return Named(is_qos, f"{scope}TRES{kind}", resource)
    suffix = per if scope == "Max" and (is_qos or per == "PerNode") else ""
    return Named(is_qos, f"{scope}TRES{suffix}", resource)


def find_limits(reason: str, record: Mapping[str, str]) -> list[Limit]:
    """Return the limits that a reason may speak of, with their numbers; none if not to be seen."""
    named = named_limit(reason)
    if named is None:
        return []
    try:
        found = _qos(record) if named.is_qos else _associations(record)
    except SlurmError:
        return []
    limits = []
    for owner, which, row in found:
        value = _part(row.get(named.column, ""), named.resource)
        if value:
            used = _used(which)
            limits.append(Limit(owner, named.column, value, *used))
    return limits


def _part(value: str, resource: str) -> str:
    """Return what a limit says of one resource.

    >>> _part("cpu=40,gres/gpu=4", "gres")
    'gres/gpu=4'
    """
    parts = [each for each in value.split(",") if each]
    return ",".join(each for each in parts if not resource or each.startswith(resource))


_Found = list[tuple[str, list[str], dict[str, str]]]


def _qos(record: Mapping[str, str]) -> _Found:
    """Return the job's QOS and that of its partition, each with how squeue selects its jobs."""
    names = [known(record.get("QOS")), _partition_qos(record.get("Partition", ""))]
    wanted = ",".join(dict.fromkeys(name for name in names if name))
    output = call(
        [
            "sacctmgr",
            "-n",
            "-P",
            "show",
            "qos",
            "where",
            f"name={wanted}",
            f"format={','.join(QOS)}",
        ]
    )
    return [(f"QOS {row['Name']}", ["--qos", row["Name"]], row) for row in _rows(output, QOS)]


def _partition_qos(partition: str) -> str | None:
    output = call(["scontrol", "show", "partition", partition.split(",", maxsplit=1)[0]])
    match = re.search(r"\bQoS=(\S+)", output)
    return known(match[1]) if match else None


def _associations(record: Mapping[str, str]) -> _Found:
    """Return the job's association and those of the accounts above it."""
    account, user = record.get("Account", ""), record.get("UserId", "").partition("(")[0]
    form = ("ParentName", *ASSOCIATION)
    output = call(["sacctmgr", "-n", "-P", "show", "assoc", f"format={','.join(form)}"])
    found = _rows(output, form)
    parents = {row["Account"]: row["ParentName"] for row in found if not row["User"]}
    chain = [account]
    while parents.get(chain[-1]) and parents[chain[-1]] not in chain:
        chain.append(parents[chain[-1]])
    named = []
    for row in found:
        if row["User"] == user and row["Account"] == account:
            which = ["--account", account, "--user", user]
            named.append((f"user {user} in account {account}", which, row))
        elif not row["User"] and row["Account"] in chain:
            named.append((f"account {row['Account']}", ["--account", row["Account"]], row))
    return named


def _rows(output: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    # sacctmgr has one mark only between fields, and refuses it in names.
    return rows(output.replace("|", SEPARATOR), fields)


def _used(which: list[str]) -> tuple[int, int, int]:
    """Return the jobs, GPUs and CPUs that run under a limit."""
    form = f"NumCPUs:20{SEPARATOR},tres-alloc:300{SEPARATOR}"
    output = call(["squeue", "--noheader", "--states", "running", *which, "--Format", form])
    found = rows(output, ["cpus", "tres"])
    return (
        len(found),
        sum(gpus_of(row["tres"]) for row in found),
        sum(int(row["cpus"]) for row in found if row["cpus"].isdigit()),
    )
