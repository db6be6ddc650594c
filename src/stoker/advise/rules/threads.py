"""Threads that take the cores from each other: several processes, each with a thread for every core."""

from __future__ import annotations

from stoker.advise.finding import Finding, Rule
from stoker.advise.repeat import announce
from stoker.advise.verdict import MIN_STEADY_STEPS, WORTH_SHARE, is_read_often
from stoker.units import plural, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Machine, Rank, Summary

# With a few threads more than cores little is lost.
CROWDED = 1.5
# How much of the time some thread must have waited for a core, and how busy the run kept them:
# otherwise it is somebody else who takes them.
MIN_WAITING_PCT = 30.0
MIN_BUSY = 0.7
MOST_SLOWED = 56.0
COMPUTE = ("forward", "backward", "optimizer")
# These give each process one thread, unless told otherwise.
LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")


def crowded_cores(summary: Summary) -> Finding | None:
    """Processes on one machine have many more threads than there are cores."""
    ranks_of: dict[str, list[Rank]] = {}
    for rank in summary.ranks:
        if _computes(rank):
            ranks_of.setdefault(rank.host, []).append(rank)
    for machine in summary.machines:
        ranks = ranks_of.get(machine.host, [])
        finding = _crowd(summary, machine, ranks) if ranks else None
        if finding is not None:
            return finding
    return None


def _crowd(summary: Summary, machine: Machine, ranks: list[Rank]) -> Finding | None:
    cores = known_number(machine.facts.get("cores_allowed"))
    threads = _threads(summary, machine, ranks[0])
    waiting, busy = machine.stats.get("cpu.pressure_pct"), machine.stats.get("cpu.cores")
    if not cores or not threads or waiting is None or busy is None or summary.wall_s <= 0:
        return None
    crowd = len(ranks) * threads / cores
    fair = max(1, int(cores / len(ranks)))
    if crowd < CROWDED or fair >= threads or not is_read_often(machine, "cpu.cores"):
        return None
    if waiting.mean < MIN_WAITING_PCT or busy.mean < MIN_BUSY * cores:
        return None
    computing_s = min(summary.wall_s, max(_compute_s(rank) for rank in ranks))
    # Threads wait for each other at the end of each operation: long ones take turns, and short
    # ones lose more. Measured with two processes on two cores: 2.4 to 27 times as long a step
    # with two threads each, 5 to 56 times with eight.
    few, many = 1 + (crowd - 1) / 2, MOST_SLOWED
    least_s, most_s = (computing_s * (1 - 1 / factor) for factor in (few, many))
    gain = announce(summary, least_s, most_s, computing_s)
    share = 1 - 1 / gain.expected
    if share < WORTH_SHARE / 2:
        return None
    return Finding(
        key="crowded-cores",
        level="problem" if share >= WORTH_SHARE else "advice",
        what=(
            f"{plural(len(ranks), 'process', 'processes')} with {plural(threads, 'thread')} each "
            f"share {plural(cores, 'core')} of {machine.host}."
        ),
        why=(
            f"Threads waited for a core {render_share(waiting.mean / 100)} of the time, and the others "
            "of an operation wait for its slowest thread."
        ),
        fix=f"Set OMP_NUM_THREADS={fair} for each process: export it before the start.",
        confidence="medium",
        safety="B",
        gain=gain,
        figures={
            "processes": len(ranks),
            "threads": threads,
            "cores": cores,
            "waiting_share": waiting.mean / 100,
        },
        environment={"OMP_NUM_THREADS": str(fair)},
    )


def _computes(rank: Rank) -> bool:
    """Say whether a rank trains on the CPU with torch, long enough to be judged by."""
    model = rank.facts.get("model")
    is_on_cpu = isinstance(model, dict) and model.get("device") == "cpu"
    return is_on_cpu and rank.steady is not None and rank.steady.steps >= MIN_STEADY_STEPS


def _threads(summary: Summary, machine: Machine, rank: Rank) -> int | None:
    """Return how many threads each process computes with; None where that is not known."""
    environment = summary.run.get("environment")
    told = environment.get("OMP_NUM_THREADS", "") if isinstance(environment, dict) else ""
    if str(told).isdecimal():
        return int(told)
    seen = known_number(rank.facts.get("threads"))
    if seen:
        return int(seen)
    command = summary.run.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    if any(name in word for word in words for name in LAUNCHERS):
        return None
    # Without being told, one for each core that the process may run on, whatever its quota.
    cores = known_number(machine.facts.get("cores_affinity"))
    return int(cores) if cores else None


def _compute_s(rank: Rank) -> float:
    split = rank.steady
    if split is None:
        return 0.0
    return split.step.mean * split.steps * sum(split.share(phase) for phase in COMPUTE)


RULES: tuple[Rule, ...] = (crowded_cores,)
