"""CPUs, memory and time that were reserved with Slurm and not used. Silent without a reservation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.advise.finding import Finding, Rule, Waste
from stoker.advise.stages import quantiles
from stoker.advise.verdict import WORTH_SHARE, slowest_rank
from stoker.units import (
    parse_slurm_mem,
    parse_slurm_time,
    plural,
    render_mem,
    render_number,
    render_seconds,
    render_time,
)
from stoker.watch.series import known_number
from stoker.watch.summary import Machine, Summary

# A session in which somebody types is as large and as long as its other uses need.
INTERACTIVE = ("interactive", "bash", "sh", "zsh", "jupyter", "sys/dashboard")
# Before this the start-up is most of what was seen.
MIN_READINGS = 30
# Only from twice as much as needed on: needs differ from day to day.
FAR = 2.0
# What stays for peaks that one reading a second does not show, and for longer runs.
SPARE_CPUS, SPARE_MEMORY, SPARE_TIME = 1.25, 1.3, 1.5
SPARE_GIB = 1.0
# So little is not worth a change.
MIN_SPARE_GIB = 4.0
MIN_SPARE_S = 1800
# A job that ends sooner was a trial, or went wrong.
MIN_JOB_S = 300
ROUND_TIME_S = 600


@dataclass(frozen=True)
class Reserved:
    """What the job holds on one node, as far as Slurm told it; None is unknown."""

    cpus: int | None
    mem_gib: float | None
    time_s: int | None
    tasks_on_node: int
    has_gpus: bool
    # Whether memory was asked for by the CPU.
    is_per_cpu: bool
    is_whole_node: bool

    def part(self, machine: Machine, cpus: float | None, mem_gib: float | None) -> float:
        """Return the part of a machine that these block: its CPUs or its memory, the larger."""
        cores = known_number(machine.facts.get("cores_machine"))
        memory = known_number(machine.facts.get("memory_machine_gib"))
        return max(
            cpus / cores if cpus and cores else 0.0, mem_gib / memory if mem_gib and memory else 0.0
        )

    def waste(self, machine: Machine, cpus: float | None, mem_gib: float | None) -> float:
        """Return the share of what was blocked that would be free with so many CPUs and memory.

        With GPUs these are what a job is charged for first, and the rest cannot be weighed.
        """
        before = self.part(machine, self.cpus, self.mem_gib)
        if self.has_gpus or before <= 0:
            return 0.0
        return max(0.0, 1 - self.part(machine, cpus, mem_gib) / before)


def read_reserved(summary: Summary) -> Reserved | None:
    """Return what was reserved on each node; None outside of a batch job."""
    told = summary.run.get("environment")
    environment = told if isinstance(told, dict) else {}
    name = str(environment.get("SLURM_JOB_NAME", "")).lower()
    if "SLURM_JOB_ID" not in environment or name.startswith(INTERACTIVE):
        return None
    per_task, on_node = (
        _count(environment, "SLURM_CPUS_PER_TASK"),
        _count(environment, "SLURM_CPUS_ON_NODE"),
    )
    tasks = _tasks_on_node(environment)
    cpus = on_node or (per_task * tasks if per_task else None)
    machine = summary.machines[0] if summary.machines else None
    cores = known_number(machine.facts.get("cores_machine")) if machine else None
    return Reserved(
        cpus=cpus,
        mem_gib=_memory_gib(environment, cpus),
        time_s=_time_s(environment),
        tasks_on_node=tasks,
        has_gpus=_has_gpus(summary, environment),
        is_per_cpu="SLURM_MEM_PER_CPU" in environment,
        # Where nobody asked for CPUs and all are there, nodes are given as a whole.
        is_whole_node=per_task is None and cpus is not None and cpus == cores,
    )


def unused_cpus(summary: Summary) -> Finding | None:
    """Many more CPUs were reserved than the run keeps busy."""
    reserved = read_reserved(summary)
    machine = _busiest(summary, "cpu.cores")
    if reserved is None or machine is None or not reserved.cpus or reserved.is_whole_node:
        return None
    if not _may_use(machine, reserved.cpus) or _waits_for_data(summary):
        return None
    (most,) = quantiles(machine.rows, "cpu.cores", (0.99,)) or (0.0,)
    per_task = max(1, math.ceil(SPARE_CPUS * most / reserved.tasks_on_node))
    wanted = per_task * reserved.tasks_on_node
    if most <= 0 or reserved.cpus < FAR * wanted or reserved.cpus - wanted < 2:
        return None
    share = reserved.waste(machine, wanted, reserved.mem_gib)
    unused = reserved.cpus - wanted
    return Finding(
        key="unused-cpus",
        level="problem" if share >= WORTH_SHARE and summary.state == "ended" else "advice",
        what=f"{unused} of {plural(reserved.cpus, 'reserved CPU')} are not needed.",
        why=(
            f"The run kept {render_number(machine.stats['cpu.cores'].mean)} busy on average, and no "
            f"more than {render_number(most)} for 99 % of the time."
        ),
        fix=f"Ask for --cpus-per-task={per_task}.",
        confidence="high",
        safety="A",
        waste=Waste(f"{unused} of {plural(reserved.cpus, 'CPU')}", share),
        figures={"cpus_reserved": reserved.cpus, "cpus_used_q99": most, "cpus_wanted": wanted},
    )


def cpus_out_of_reach(summary: Summary) -> Finding | None:
    """CPUs were reserved, and the run may not use them: the step was started with fewer."""
    reserved = read_reserved(summary)
    machine = _busiest(summary, "cpu.cores")
    if reserved is None or machine is None or not reserved.cpus:
        return None
    allowed = known_number(machine.facts.get("cores_allowed"))
    cores = known_number(machine.facts.get("cores_machine"))
    # With several tasks on a node, each may have its own part.
    if not allowed or not cores or reserved.tasks_on_node != 1 or reserved.cpus > cores:
        return None
    if reserved.cpus < FAR * allowed or reserved.cpus - allowed < 2:
        return None
    busy = machine.stats["cpu.cores"].mean
    return Finding(
        key="cpus-out-of-reach",
        level="problem" if not reserved.has_gpus else "advice",
        what=f"{plural(reserved.cpus, 'CPU')} were reserved, and the run may use {allowed:g}.",
        why=(
            "Its affinity mask or quota is smaller than the reservation, as when srun is not told "
            f"--cpus-per-task; it kept {render_number(busy)} busy."
        ),
        fix="Start it with srun --cpus-per-task=$SLURM_CPUS_PER_TASK, or ask for fewer CPUs.",
        confidence="high",
        safety="A",
        waste=Waste(
            f"{reserved.cpus - allowed:g} of {plural(reserved.cpus, 'CPU')}",
            reserved.waste(machine, allowed, reserved.mem_gib),
        ),
        figures={"cpus_reserved": reserved.cpus, "cores_allowed": allowed},
    )


def unused_memory(summary: Summary) -> Finding | None:
    """Much more memory was reserved than the run holds."""
    reserved = read_reserved(summary)
    machine = _busiest(summary, "mem.rss_gib")
    if reserved is None or machine is None or not reserved.mem_gib or summary.state != "ended":
        return None
    most_gib = _held_gib(machine)
    wanted = math.ceil(SPARE_MEMORY * most_gib + SPARE_GIB)
    spare = reserved.mem_gib - wanted
    if reserved.mem_gib < FAR * wanted or spare < MIN_SPARE_GIB:
        return None
    share = reserved.waste(machine, reserved.cpus, wanted)
    return Finding(
        key="unused-memory",
        level="problem" if share >= WORTH_SHARE else "advice",
        what=f"{render_number(spare)} of {render_number(reserved.mem_gib)} GiB of reserved memory are not needed.",
        why=(
            f"The run never held more than {render_number(most_gib)} GiB; files that the system "
            "keeps in memory are not counted."
        ),
        fix=_memory_fix(reserved, wanted),
        confidence="high",
        safety="A",
        waste=Waste(f"{render_number(spare)} of {render_number(reserved.mem_gib)} GiB", share),
        figures={"mem_reserved_gib": reserved.mem_gib, "mem_most_gib": most_gib},
    )


def long_limit(summary: Summary) -> Finding | None:
    """The time limit is far beyond what the job took."""
    reserved = read_reserved(summary)
    if reserved is None or reserved.time_s is None or summary.state != "ended":
        return None
    took_s = _job_s(summary)
    wanted = ROUND_TIME_S * math.ceil(SPARE_TIME * took_s / ROUND_TIME_S)
    if took_s < MIN_JOB_S or reserved.time_s < FAR * wanted:
        return None
    if reserved.time_s - wanted < MIN_SPARE_S:
        return None
    return Finding(
        key="long-time-limit",
        level="advice",
        what=f"The job may take {render_time(reserved.time_s)}, and this run ended after {render_seconds(took_s)}.",
        why="Unused time is not charged, but a short job starts sooner: it fits into gaps between others.",
        fix=f"Ask for --time={render_time(wanted)}, unless the same job does more than this run.",
        confidence="medium",
        safety="A",
        waste=Waste(
            f"{render_time(reserved.time_s - round(took_s))} of {render_time(reserved.time_s)}", 0.0
        ),
        figures={"time_limit_s": reserved.time_s, "job_s": took_s},
    )


# -- what was reserved ---------------------------------------------------------------


def _count(environment: Mapping[str, object], name: str) -> int | None:
    text = str(environment.get(name, ""))
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _tasks_on_node(environment: Mapping[str, object]) -> int:
    per_node = _count(environment, "SLURM_NTASKS_PER_NODE")
    tasks, nodes = _count(environment, "SLURM_NTASKS"), _count(environment, "SLURM_NNODES")
    return per_node or max(1, (tasks or 1) // (nodes or 1))


def _memory_gib(environment: Mapping[str, object], cpus: int | None) -> float | None:
    """Return the memory of one node; 0 stands for all of it, which nobody can give back."""
    per_node = parse_slurm_mem(str(environment.get("SLURM_MEM_PER_NODE", "")))
    per_cpu = parse_slurm_mem(str(environment.get("SLURM_MEM_PER_CPU", "")))
    if per_node is not None:
        return per_node or None
    return per_cpu * cpus if per_cpu and cpus else None


def _time_s(environment: Mapping[str, object]) -> int | None:
    start, end = (
        _count(environment, "SLURM_JOB_START_TIME"),
        _count(environment, "SLURM_JOB_END_TIME"),
    )
    if start and end:
        return end - start if end > start else None
    return parse_slurm_time(str(environment.get("SLURM_TIMELIMIT", "")))


def _has_gpus(summary: Summary, environment: Mapping[str, object]) -> bool:
    told = _count(environment, "SLURM_GPUS_ON_NODE") or environment.get("SLURM_JOB_GPUS")
    return bool(told) or any(machine.gpus() for machine in summary.machines)


# -- what was used -------------------------------------------------------------------


def _busiest(summary: Summary, metric: str) -> Machine | None:
    """Return the machine that used the most, if it was watched for long enough."""
    known = [machine for machine in summary.machines if metric in machine.stats]
    machine = max(known, key=lambda each: each.stats[metric].max, default=None)
    if machine is None or machine.stats[metric].count < MIN_READINGS:
        return None
    return machine


def _may_use(machine: Machine, cpus: int) -> bool:
    """Say whether the run was free to use what was reserved, or all that the machine has."""
    allowed = known_number(machine.facts.get("cores_allowed"))
    cores = known_number(machine.facts.get("cores_machine"))
    return allowed is not None and cores is not None and allowed >= min(cpus, cores)


def _waits_for_data(summary: Summary) -> bool:
    """Say whether more loader workers would help: those need the CPUs that are idle now."""
    rank = slowest_rank(summary)
    return rank is not None and rank.steady is not None and rank.steady.share("data") >= WORTH_SHARE


def _held_gib(machine: Machine) -> float:
    most = {name: stat.max for name, stat in machine.stats.items()}
    return most["mem.rss_gib"] + most.get("mem.shm_gib", 0.0)


def _memory_fix(reserved: Reserved, wanted: int) -> str:
    if reserved.is_per_cpu and reserved.cpus:
        mib = math.ceil(1024 * wanted / reserved.cpus)
        return f"Ask for --mem-per-cpu={mib}M, or --mem={render_mem(wanted)} instead."
    return f"Ask for --mem={render_mem(wanted)}."


def _job_s(summary: Summary) -> float:
    """Return how long the job took up to the end of this run."""
    environment = summary.run.get("environment")
    begun = _count(environment, "SLURM_JOB_START_TIME") if isinstance(environment, dict) else None
    start = known_number(summary.run.get("start"))
    if begun is None or start is None or begun > start:
        return summary.wall_s
    return start - begun + summary.wall_s


RULES: tuple[Rule, ...] = (unused_cpus, cpus_out_of_reach, unused_memory, long_limit)
