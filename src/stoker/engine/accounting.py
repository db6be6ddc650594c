"""What Slurm's accounting keeps of one job: each attempt with its steps, in one call of sacct."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.engine.queue import ask_accounting, gpus_of, known, read_cpu_time
from stoker.engine.slurm import call
from stoker.errors import UsageError
from stoker.units import parse_gib

FIELDS = (
    "JobID", "JobIDRaw", "JobName", "Cluster", "Partition", "State", "ExitCode", "Start", "End",
    "ElapsedRaw", "TimelimitRaw", "AllocCPUS", "TotalCPU", "MaxRSS", "NTasks", "NNodes", "NodeList",
    "AllocTRES", "ReqMem", "TRESUsageInTot",
)  # fmt: skip
# Steps of Slurm's own, which go on beside those of the user.
OWN_STEPS = ("batch", "extern", "interactive")


@dataclass(frozen=True)
class Step:
    """One step of a job; None where Slurm does not tell."""

    name: str
    state: str
    exit_code: int | None
    signal: int | None
    elapsed_s: int | None
    cpu_s: float | None
    tasks: int | None
    # Of the largest task; and of all tasks, each at its largest.
    memory_gib: float | None
    all_memory_gib: float | None


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job; a job that was never requeued has one."""

    id: str
    raw_id: str
    name: str
    cluster: str | None
    partition: str | None
    state: str
    exit_code: int | None
    signal: int | None
    start: float | None
    end: float | None
    elapsed_s: int | None
    limit_s: int | None
    cpus: int | None
    cpu_s: float | None
    node_count: int | None
    nodes: str | None
    gpus: int
    # What was reserved on all nodes together.
    reserved_gib: float | None
    number: int = 1
    steps: tuple[Step, ...] = field(default=())

    @property
    def is_running(self) -> bool:
        """Whether it goes on: Slurm tells what it used only when it has ended."""
        return self.state in ("RUNNING", "COMPLETING", "SUSPENDED", "PENDING")

    @property
    def cpu_share(self) -> float | None:
        """CPU time of that reserved, 0 to 1."""
        if self.is_running or self.cpu_s is None or not (self.cpus and self.elapsed_s):
            return None
        return self.cpu_s / (self.cpus * self.elapsed_s)

    @property
    def memory_gib(self) -> float | None:
        """The largest memory: of the batch script and of the largest of the other steps together."""
        own = [step.all_memory_gib for step in self.steps if step.name in OWN_STEPS]
        others = [step.all_memory_gib for step in self.steps if step.name not in OWN_STEPS]
        seen = [each for each in (*own, *others) if each is not None]
        if not seen:
            return None
        return sum(each or 0.0 for each in own) + max((each or 0.0 for each in others), default=0.0)

    @property
    def memory_share(self) -> float | None:
        """Memory at its largest of that reserved, 0 to 1."""
        used = self.memory_gib
        return used / self.reserved_gib if used is not None and self.reserved_gib else None


def read_attempts(job: str, ask: Callable[..., str] = call) -> list[Attempt]:
    """Return every attempt of a job, or of each element of an array, the oldest first.

    None is found where the accounting does not know it; raises `SlurmError` where there is none.
    """
    # Seconds since 1970 do not depend on where the report is made.
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    return _attempts(ask_accounting(["--duplicates", "--jobs", job], FIELDS, env, ask))


def last_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the last attempt of each job."""
    return list({attempt.id: attempt for attempt in attempts}.values())


def _attempts(found: Sequence[Mapping[str, str]]) -> list[Attempt]:
    # An attempt's row comes before those of its steps; attempts of several jobs may alternate.
    heads: list[Mapping[str, str]] = []
    steps: dict[int, list[Step]] = {}
    latest: dict[str, int] = {}
    counts: dict[str, int] = {}
    numbers: list[int] = []
    for row in found:
        job, _, step = row["JobID"].partition(".")
        if not step:
            latest[job] = len(heads)
            counts[job] = counts.get(job, 0) + 1
            heads.append(row)
            numbers.append(counts[job])
        elif job in latest:
            steps.setdefault(latest[job], []).append(_step(step, row))
    return [
        _attempt(row, numbers[index], tuple(steps.get(index, ())))
        for index, row in enumerate(heads)
    ]


def _attempt(row: Mapping[str, str], number: int, steps: tuple[Step, ...]) -> Attempt:
    code, signal = _exit(row["ExitCode"])
    limit = _whole(row["TimelimitRaw"])
    start = _whole(row["Start"])
    return Attempt(
        id=row["JobID"],
        raw_id=row["JobIDRaw"],
        name=row["JobName"],
        cluster=known(row["Cluster"]),
        partition=known(row["Partition"]),
        state=_state(row["State"]),
        exit_code=code,
        signal=signal,
        start=start,
        end=_whole(row["End"]),
        # A job that never began has used no time, whatever the number says.
        elapsed_s=_whole(row["ElapsedRaw"]) if start is not None else 0,
        limit_s=limit * 60 if limit else None,
        cpus=_whole(row["AllocCPUS"]),
        cpu_s=read_cpu_time(row["TotalCPU"]),
        node_count=_whole(row["NNodes"]),
        nodes=known(row["NodeList"]),
        gpus=gpus_of(row["AllocTRES"]),
        reserved_gib=_reserved(row),
        number=number,
        steps=steps,
    )


def _step(name: str, row: Mapping[str, str]) -> Step:
    code, signal = _exit(row["ExitCode"])
    usage = dict(part.split("=", 1) for part in row["TRESUsageInTot"].split(",") if "=" in part)
    largest, tasks = _gib(row["MaxRSS"]), _whole(row["NTasks"])
    every = _gib(usage.get("mem", ""))
    if every is None and largest is not None:
        every = largest * (tasks or 1)
    return Step(
        name=name,
        state=_state(row["State"]),
        exit_code=code,
        signal=signal,
        elapsed_s=_whole(row["ElapsedRaw"]),
        cpu_s=read_cpu_time(row["TotalCPU"]),
        tasks=tasks,
        memory_gib=largest,
        all_memory_gib=every,
    )


def _state(text: str) -> str:
    """Return the word of a state: `CANCELLED by 20001` has more."""
    return text.split(maxsplit=1)[0].rstrip("+") if text.strip() else "UNKNOWN"


def _exit(text: str) -> tuple[int | None, int | None]:
    code, _, signal = text.partition(":")
    return _whole(code), _whole(signal) or None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def _reserved(row: Mapping[str, str]) -> float | None:
    """Return the memory that was reserved on all nodes; before 21.08 `ReqMem` ends with n or c."""
    given = re.search(r"(?:^|,)mem=([^,]+)", row["AllocTRES"])
    if given:
        return _gib(given[1])
    asked = re.fullmatch(r"(.+?)([nc]?)", row["ReqMem"])
    each = _gib(asked[1]) if asked else None
    if asked is None or each is None:
        return None
    times = {"n": _whole(row["NNodes"]), "c": _whole(row["AllocCPUS"])}.get(asked[2], 1)
    return each * times if times else None


def _gib(text: str) -> float | None:
    try:
        return 0.0 if text == "0" else parse_gib(text)
    except UsageError:
        return None
