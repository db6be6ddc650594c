"""What would start earlier: a smaller request, a shorter one, another partition; Slurm is asked.

`sbatch --test-only` submits nothing. It says when a job with such options would start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.engine.queue import known
from stoker.engine.slurm import call
from stoker.engine.submit import scrubbed
from stoker.errors import SlurmError
from stoker.units import parse_slurm_time, plural, render_time

# The scheduler works for each of them: the request as it is, and five others.
MAX_TRIES = 6
# Below this a job is no longer worth its start.
MIN_LIMIT_S = 600
# An earlier start than this is not worth a change.
MIN_GAIN = timedelta(minutes=1)

_START = re.compile(r"to start at (\S+)")
_GPU = re.compile(r"(?:gres[:/])?gpu(?P<type>:[^:=,\d][^:=,]*)?[:=](?P<count>\d+)")


@dataclass(frozen=True)
class Request:
    """What a job asks for, in the words of sbatch."""

    partition: str
    limit_s: int | None
    nodes: int
    tasks: int
    # For a node, a GPU of some type and how many, and whatever else is counted so.
    gres: str | None
    memory_gib: float | None
    is_memory_per_cpu: bool
    others: tuple[str, ...]

    def options(self) -> list[str]:
        """Return the options of sbatch."""
        words = [*self.others, f"--partition={self.partition}"]
        words += [f"--nodes={self.nodes}", f"--ntasks={self.tasks}"]
        if self.limit_s:
            words.append(f"--time={render_time(self.limit_s)}")
        if self.gres:
            words.append(f"--gres={self.gres}")
        if self.memory_gib:
            option = "--mem-per-cpu" if self.is_memory_per_cpu else "--mem"
            words.append(f"{option}={max(1, round(self.memory_gib * 1024))}M")
        return words


@dataclass(frozen=True)
class Trial:
    """One request and when it would start; None if Slurm refuses it."""

    # What is different: "half the time limit".
    change: str
    # What to type instead, in the words of sbatch.
    options: str
    is_elsewhere: bool
    start: datetime | None


@dataclass(frozen=True)
class Elsewhere:
    """Another partition that could run the job."""

    name: str
    limit_s: int | None


def read_request(record: Mapping[str, str]) -> Request:
    """Return what a job of `scontrol show job` asks for."""
    others = [
        f"--{option}={value}"
        for option, key in (
            ("account", "Account"), ("qos", "QOS"), ("cpus-per-task", "CPUs/Task"),
            ("constraint", "Features"), ("licenses", "Licenses"), ("reservation", "Reservation"),
            ("nodelist", "ReqNodeList"), ("exclude", "ExcNodeList"),
        )
        if (value := known(record.get(key)))
    ]  # fmt: skip
    per_job = known(record.get("TresPerJob"))
    if per_job and (count := _GPU.search(per_job)):
        others.append(
            f"--gpus={(count['type'] or '')[1:] + ':' if count['type'] else ''}{count['count']}"
        )
    per_cpu, per_node = known(record.get("MinMemoryCPU")), known(record.get("MinMemoryNode"))
    gres = known(record.get("TresPerNode"))
    return Request(
        partition=record.get("Partition", ""),
        limit_s=parse_slurm_time(record.get("TimeLimit", "")),
        nodes=_first(record.get("NumNodes", "")),
        tasks=_first(record.get("NumTasks", "")),
        gres=re.sub(r"\bgres[:/]", "", gres).replace("=", ":") if gres else None,
        memory_gib=_memory(per_cpu or per_node),
        is_memory_per_cpu=per_cpu is not None,
        others=tuple(others),
    )


def smaller(
    request: Request, elsewhere: Sequence[Elsewhere], room_s: float | None = None
) -> list[tuple[str, Request]]:
    """Return other requests to try, the least different first, each with what is different.

    `room_s`: the time until nodes are kept for something else.
    """
    limits = {}
    if request.limit_s:
        fitting = int((room_s or 0) - MIN_LIMIT_S / 10) // 60 * 60
        if fitting < request.limit_s:
            limits["a time limit that ends before the reservation"] = fitting
        limits["half the time limit"] = request.limit_s // 2
        limits["an eighth of the time limit"] = request.limit_s // 8
    tries = [
        (change, replace(request, limit_s=limit))
        for change, limit in limits.items()
        if limit >= MIN_LIMIT_S
    ]
    tries += _fewer(request)
    for each in elsewhere[:2]:
        there = replace(request, partition=each.name)
        words = f"partition {each.name}"
        if request.limit_s and each.limit_s and each.limit_s < request.limit_s:
            there = replace(there, limit_s=each.limit_s)
            words += f", whose limit is {render_time(each.limit_s)}"
        tries.append((words, there))
    return tries[: MAX_TRIES - 1]


def try_request(change: str, request: Request, asked: Request) -> Trial:
    """Ask Slurm when a request would start."""
    is_elsewhere = request.partition != asked.partition
    new = set(request.options()) - set(asked.options())
    options = " ".join(word for word in request.options() if word in new)
    # sbatch answers on stderr here.
    words = ["sh", "-c", 'exec sbatch "$@" 2>&1', "sbatch", "--test-only", *request.options()]
    try:
        said = call([*words, "--wrap=true"], env=scrubbed(os.environ), pauses_s=())
    except SlurmError:
        return Trial(change, options, is_elsewhere, None)
    match = _START.search(said)
    return Trial(change, options, is_elsewhere, parse_moment(match[1]) if match else None)


def earlier(
    trials: Sequence[Trial], expected: datetime | None, alike: datetime | None, now: datetime
) -> list[Trial]:
    """Return the trials that would start clearly earlier than the job as it is.

    Slurm counts each as one more job behind the one that waits. Where it has no estimate for
    that one, `alike` stands for it, which is behind it too; in another partition only a start
    right now tells something then.
    """
    found = []
    for trial in trials:
        other = trial.is_elsewhere or alike is None
        latest = (expected or alike or now) - MIN_GAIN
        if expected is None and other:
            latest = now + MIN_GAIN
        if trial.start is not None and trial.start <= latest:
            found.append(trial)
    return found


def parse_moment(text: str | None) -> datetime | None:
    """Return a time of day as Slurm prints it, or None.

    >>> parse_moment("2026-11-15T13:42:43"), parse_moment("N/A")
    (datetime.datetime(2026, 11, 15, 13, 42, 43), None)
    """
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return None


def _fewer(request: Request) -> list[tuple[str, Request]]:
    """Return the request with half the nodes, or half the GPUs of a node."""
    if request.nodes > 1:
        half = request.nodes // 2
        tasks = max(half, request.tasks * half // request.nodes)
        return [(plural(half, "node"), replace(request, nodes=half, tasks=tasks))]
    match = _GPU.search(request.gres or "")
    if not match or int(match["count"]) < 2:
        return []
    half = int(match["count"]) // 2
    gres = _GPU.sub(lambda each: f"gpu{each['type'] or ''}:{half}", request.gres or "")
    memory = request.memory_gib
    if memory and not request.is_memory_per_cpu:
        memory *= half / int(match["count"])
    tasks = max(1, request.tasks * half // int(match["count"]))
    return [(plural(half, "GPU"), replace(request, gres=gres, tasks=tasks, memory_gib=memory))]


def _first(text: str) -> int:
    digits = re.match(r"\d+", text)
    return max(1, int(digits[0])) if digits else 1


def _memory(text: str | None) -> float | None:
    """Return GiB of a size as Slurm prints it; 0 means all of a node and is left out."""
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", text or "")
    if not match:
        return None
    return (
        float(match[1]) * {"K": 2**-20, "": 2**-10, "M": 2**-10, "G": 1.0, "T": 2.0**10}[match[2]]
    )
