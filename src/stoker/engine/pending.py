"""Why a job waits: what Slurm says, the numbers behind it, and what would start earlier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.engine.allowed import Limit, find_limits
from stoker.engine.queue import gpus_of, known, read_job, record_id
from stoker.engine.reasons import Meaning, meaning_of
from stoker.engine.slurm import SEPARATOR, call, rows
from stoker.engine.trial import (
    Elsewhere,
    Request,
    Trial,
    earlier,
    parse_moment,
    read_request,
    smaller,
    try_request,
)
from stoker.errors import SlurmError
from stoker.units import parse_slurm_time

# A job that waits for these is not in the way of others.
STANDING = ("JobHeld", "Dependency", "BeginTime", "JobArrayTaskLimit", "Assoc", "QOS")
NODE_FIELDS = ("partition", "node", "state", "gres", "used", "limit", "available")


@dataclass(frozen=True)
class Room:
    """The GPUs of a partition: all, free, and out of use; nodes where it has no GPUs."""

    what: str
    total: int
    free: int
    out: int


@dataclass(frozen=True)
class Reservation:
    """A time in which nodes are kept for something else."""

    name: str
    start: datetime
    end: datetime
    nodes: str
    is_maintenance: bool


@dataclass(frozen=True)
class Wait:
    """Why one job waits."""

    job: str
    name: str
    partition: str
    reason: str
    # The reason with the nodes that Slurm names.
    said: str
    meaning: Meaning
    since: datetime | None
    request: Request
    gpus: int
    # Jobs of higher priority in the partition, and the GPUs that they ask for.
    ahead: int | None
    ahead_gpus: int
    room: Room | None
    expected: datetime | None
    # When a job like it would start that is submitted now: behind this one.
    alike: datetime | None
    # What a time limit, a dependency, a begin or the like says, in words.
    details: tuple[str, ...]
    limits: tuple[Limit, ...]
    reservations: tuple[Reservation, ...]
    earlier: tuple[Trial, ...]
    tried: int


def explain_wait(record: Mapping[str, str], *, try_others: bool = True) -> Wait:
    """Return why the pending job of `scontrol show job` waits."""
    reason = record.get("Reason", "None")
    key = re.split(r"[,(]", reason.replace("_", " "))[0].strip() or "None"
    meaning = meaning_of(reason)
    request = read_request(record)
    partition = request.partition.split(",", maxsplit=1)[0]
    nodes = _nodes()
    ahead, ahead_gpus = _ahead(record, partition) if meaning.is_queue else (None, 0)
    expected = parse_moment(record.get("StartTime"))
    gpus = gpus_of(record.get("ReqTRES") or record.get("TRES", ""))
    kept = _reservations(request) if meaning.is_queue else []
    alike: Trial | None = None
    trials: list[Trial] = []
    if meaning.is_queue and try_others:
        alike, *trials = _tries(request, _elsewhere(request, nodes), kept)
    return Wait(
        job=record_id(record),
        name=record.get("JobName", ""),
        partition=request.partition,
        reason=key,
        said=reason.replace(",_", ", ").replace("_", " "),
        meaning=meaning,
        since=parse_moment(record.get("SubmitTime")),
        request=request,
        gpus=gpus,
        ahead=ahead,
        ahead_gpus=ahead_gpus,
        room=_room(nodes, partition, request) if meaning.is_queue else None,
        expected=expected,
        alike=alike.start if alike else None,
        details=tuple(_details(record, key, nodes)),
        limits=tuple(find_limits(key, record)),
        reservations=tuple(kept),
        earlier=tuple(earlier(trials, expected, alike.start if alike else None, datetime.now())),
        tried=len(trials),
    )


def _tries(request: Request, elsewhere: list[Elsewhere], kept: list[Reservation]) -> list[Trial]:
    """Return when the request would start as it is, and then others."""
    now = datetime.now()
    room_s = min(
        ((each.start - now).total_seconds() for each in kept if each.start > now), default=None
    )
    others = smaller(request, elsewhere, room_s)
    return [
        try_request("as it is", request, request),
        *(try_request(change, other, request) for change, other in others),
    ]


def _nodes() -> list[dict[str, str]]:
    """Return every node once for each of its partitions: one call."""
    sizes = (100, 100, 40, 300, 300, 30, 20)
    names = ("Partition", "NodeHost", "StateLong", "Gres", "GresUsed", "Time", "Available")
    form = ",".join(f"{name}:{size}{SEPARATOR}" for name, size in zip(names, sizes, strict=True))
    try:
        return rows(call(["sinfo", "--noheader", "--Node", "--Format", form]), NODE_FIELDS)
    except SlurmError:
        return []


def _is_up(node: Mapping[str, str]) -> bool:
    """Return whether a node takes jobs: not drained, down, or silent."""
    return (
        re.fullmatch(r"(idle|mixed|allocated|completing|planned)[~#^@+-]?", node["state"])
        is not None
    )


def _gpus(gres: str, kind: str | None) -> int:
    """Return the GPUs of a kind, or of all kinds, in a list of what is counted.

    >>> _gpus("gpu:v100:4(S:0-1),nvme:3600", "v100"), _gpus("gpu:a100:2", "v100"), _gpus("gpu:3", None)
    (4, 0, 3)
    """
    found = re.findall(r"gpu(?::([^:(,]*[^:(,\d][^:(,]*))?:(\d+)", gres)
    return sum(int(count) for each, count in found if not kind or each in ("", kind))


def _kind(request: Request) -> str | None:
    match = re.search(r"gpu:([^:,\d][^:,]*)", request.gres or "")
    return match[1] if match else None


def _room(nodes: list[dict[str, str]], partition: str, request: Request) -> Room | None:
    here = [node for node in nodes if node["partition"] == partition]
    kind = _kind(request)
    total = sum(_gpus(node["gres"], kind) for node in here)
    if not here:
        return None
    if not total or "gpu" not in (request.gres or "gpu"):
        idle = sum(node["state"] == "idle" for node in here)
        return Room("node", len(here), idle, sum(not _is_up(node) for node in here))
    free = sum(
        _gpus(each["gres"], kind) - _gpus(each["used"], kind) for each in here if _is_up(each)
    )
    out = sum(_gpus(each["gres"], kind) for each in here if not _is_up(each))
    return Room(f"{kind} GPU" if kind else "GPU", total, free, out)


def _elsewhere(request: Request, nodes: list[dict[str, str]]) -> list[Elsewhere]:
    """Return other partitions with such GPUs, those with the most free nodes first."""
    found: dict[str, int] = {}
    limits = {}
    for node in nodes:
        name = node["partition"]
        wants_gpu = "gpu" in (request.gres or "")
        has_gpu = _gpus(node["gres"], _kind(request)) > 0
        if (
            name in request.partition.split(",")
            or node["available"] != "up"
            or wants_gpu != has_gpu
        ):
            continue
        found[name] = found.get(name, 0) + (_is_up(node) and node["state"] == "idle")
        limits[name] = parse_slurm_time(node["limit"])
    ordered = sorted(found, key=lambda name: -found[name])
    return [Elsewhere(name, limits[name]) for name in ordered]


def _ahead(record: Mapping[str, str], partition: str) -> tuple[int | None, int]:
    """Return how many pending jobs come before this one, as far as the site shows them."""
    mine = int(record.get("Priority") or 0)
    sizes = {"JobID": 20, "PriorityLong": 20, "Reason": 80, "tres-alloc": 300}
    form = ",".join(f"{name}:{size}{SEPARATOR}" for name, size in sizes.items())
    words = ["squeue", "--noheader", "--states", "pending", "--partition", partition]
    try:
        found = rows(call([*words, "--Format", form]), ["id", "priority", "reason", "tres"])
    except SlurmError:
        return None, 0
    before = [
        row
        for row in found
        if row["priority"].isdigit()
        and not row["reason"].startswith(STANDING)
        and (-int(row["priority"]), int(row["id"])) < (-mine, int(record.get("JobId", 0)))
    ]
    return len(before), sum(gpus_of(row["tres"]) for row in before)


def _reservations(request: Request) -> list[Reservation]:
    """Return reservations that begin before such a job could end, the next first."""
    try:
        output = call(["scontrol", "show", "reservation", "--oneliner"])
    except SlurmError:
        return []
    now = datetime.now()
    found = []
    for line in output.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        start, end = parse_moment(fields.get("StartTime")), parse_moment(fields.get("EndTime"))
        if start is None or end is None or end < now:
            continue
        if request.limit_s and (start - now).total_seconds() > request.limit_s:
            continue
        is_maintenance = "MAINT" in fields.get("Flags", "").split(",")
        name, nodes = fields.get("ReservationName", ""), fields.get("Nodes", "")
        found.append(Reservation(name, start, end, nodes, is_maintenance))
    return sorted(found, key=lambda each: each.start)


def _details(record: Mapping[str, str], reason: str, nodes: list[dict[str, str]]) -> list[str]:
    """Return the numbers behind a reason, in words."""
    partition = record.get("Partition", "")
    if reason.startswith("Dependency"):
        return _dependencies(record.get("Dependency", ""))
    if reason == "BeginTime":
        when = (
            record.get("StartTime")
            if known(record.get("StartTime"))
            else record.get("EligibleTime")
        )
        why = "Slurm waits so long before it starts a requeued job again"
        return [f"it begins at {when}" + (f"; {why}" if record.get("Restarts", "0") != "0" else "")]
    if reason == "JobArrayTaskLimit":
        return [f"{record.get('ArrayTaskThrottle', 'some')} at once are allowed"]
    if reason == "Licenses":
        return [f"it asks for {record.get('Licenses')}", *_licences()]
    if reason == "Reservation":
        return [f"it asks for the reservation {record.get('Reservation')}"]
    if reason == "PartitionTimeLimit":
        limit = next((node["limit"] for node in nodes if node["partition"] == partition), "unknown")
        return [f"it asks for {record.get('TimeLimit')}, and {partition} allows {limit}"]
    if reason in ("PartitionConfig", "PartitionNodeLimit", "PartitionDown", "PartitionInactive"):
        return _partition(partition)
    if reason == "ReqNodeNotAvail":
        return _unavailable(record, nodes)
    if reason == "BadConstraints" and known(record.get("Features")):
        return [f"it asks for nodes with {record['Features']}"]
    return []


def _dependencies(text: str) -> list[str]:
    """Return what a job waits for.

    >>> _dependencies("singleton(unfulfilled)")
    ['singleton (unfulfilled)']
    """
    words = []
    for kind, job, element, status in re.findall(r"(\w+):(\d+)(_[\d*]+)?\S*?\((\w+)\)", text):
        try:
            state = read_job(job)[0].state
        except SlurmError:
            state = "unknown"
        words.append(f"{kind} job {job}{element.replace('_*', '')}, which is {state} ({status})")
    return words or ([text.replace("(", " (")] if known(text) else [])


def _licences() -> list[str]:
    try:
        output = call(["scontrol", "show", "licenses", "--oneliner"])
    except SlurmError:
        return []
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in output.splitlines()]
    return [
        f"{each.get('LicenseName')}: {each.get('Used')} of {each.get('Total')} taken"
        for each in found
    ]


def _partition(name: str) -> list[str]:
    try:
        output = call(["scontrol", "show", "partition", name.split(",", maxsplit=1)[0]])
    except SlurmError:
        return []
    fields = dict(re.findall(r"(\w+)=(\S*)", output))
    told = [f"{key} {fields[key]}" for key in ("State", "MaxNodes", "MinNodes", "MaxTime", "TotalNodes", "AllowAccounts", "AllowQos") if fields.get(key)]  # fmt: skip
    return [f"{name}: {', '.join(told)}"] if told else []


def _unavailable(record: Mapping[str, str], nodes: list[dict[str, str]]) -> list[str]:
    """Return the states of the nodes that a job insists on."""
    asked = known(record.get("ReqNodeList"))
    if not asked:
        return []
    try:
        names = call(["scontrol", "show", "hostnames", asked]).split()
    except SlurmError:
        names = [asked]
    states = {node["node"]: node["state"] for node in nodes}
    return [f"{name} is {states.get(name, 'unknown')}" for name in names[:8]]
