"""How much of what was reserved was used, as `seff` says it, with the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.advise.spent import Spent
from stoker.advise.verdict import held_gpus, mean_of
from stoker.units import render_number, render_share
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import Machine, Summary


@dataclass(frozen=True)
class Efficiency:
    """What the run used of the cores and the memory that it was allowed; None where unknown."""

    cores_busy: float | None
    cores_allowed: float | None
    # The largest over time, all machines together, and what they allow together.
    memory_gib: float | None
    memory_allowed_gib: float | None
    # Somebody set a limit; without one, the machine's memory is not what was asked for.
    is_memory_limited: bool
    gpus_used: int | None
    gpus_held: int
    gpu_load_pct: float | None
    gpu_memory_gib: float | None

    @property
    def cpu_share(self) -> float | None:
        """Return cores that were busy of those allowed, 0 to 1."""
        return _share(self.cores_busy, self.cores_allowed)

    @property
    def memory_share(self) -> float | None:
        """Return memory at its largest of that allowed, 0 to 1."""
        return _share(self.memory_gib, self.memory_allowed_gib)


def find_efficiency(summary: Summary) -> Efficiency:
    """Return what was used of what was allowed, over all machines."""
    machines = summary.machines
    held = held_gpus(summary)
    known = [gpu.is_used for gpu in held]
    used = None if None in known else sum(bool(each) for each in known)
    return Efficiency(
        cores_busy=_sum([_mean(each.stats.get("cpu.cores")) for each in machines]),
        cores_allowed=_sum([known_number(each.facts.get("cores_allowed")) for each in machines]),
        memory_gib=_sum([_largest(memory_of(each)) for each in machines]),
        memory_allowed_gib=_sum([memory_allowed_gib(each) for each in machines]),
        is_memory_limited=all(
            known_number(each.facts.get("memory_limit_gib")) is not None for each in machines
        ),
        gpus_used=used,
        gpus_held=len(held),
        gpu_load_pct=mean_of(_gpu_stats(machines, "duty_pct")),
        gpu_memory_gib=max((stat.max for stat in _gpu_stats(machines, "mem_gib")), default=None),
    )


def memory_of(machine: Machine) -> Stat | None:
    """Return the memory that counts: with a limit what the control group holds, as Slurm counts.

    Without a limit the group may hold more than the run.
    """
    limit = known_number(machine.facts.get("memory_limit_gib"))
    group = machine.stats.get("mem.cgroup_gib") if limit is not None else None
    return group or machine.stats.get("mem.rss_gib")


def memory_allowed_gib(machine: Machine) -> float | None:
    """Return the limit, or where there is none what the machine has."""
    limit = known_number(machine.facts.get("memory_limit_gib"))
    return limit if limit is not None else known_number(machine.facts.get("memory_machine_gib"))


def render_efficiency(used: Efficiency, spent: Spent | None) -> list[str]:
    """Return a line each for cores, memory, GPUs and cost; none for what is unknown."""
    rows = []
    if used.cpu_share is not None:
        what = f"{_number(used.cores_busy)} of {used.cores_allowed:g} busy"
        rows.append(f"cores    {what}: CPU efficiency {render_share(used.cpu_share)}")
    if used.memory_share is not None:
        what = f"{_number(used.memory_gib)} of {_number(used.memory_allowed_gib)} GiB at most"
        share = f": memory efficiency {render_share(used.memory_share)}"
        rows.append(f"memory   {what}{share if used.is_memory_limited else ''}")
    if used.gpus_held:
        parts = [] if used.gpus_used is None else [f"{used.gpus_used} of {used.gpus_held} used"]
        if used.gpu_load_pct is not None:
            parts.append(f"load {used.gpu_load_pct:.0f} %")
        if used.gpu_memory_gib is not None:
            parts.append(f"{_number(used.gpu_memory_gib)} GiB of memory at most")
        rows.append(f"GPUs     {', '.join(parts) or 'told nothing'}")
    if spent is not None and used.gpus_held:
        rows.append(
            f"cost     {_number(spent.total)} {spent.unit}, "
            f"{_number(spent.wasted)} of them while nothing ran on the GPU"
        )
    return rows


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _mean(stat: Stat | None) -> float | None:
    return None if stat is None else known_number(stat.mean)


def _largest(stat: Stat | None) -> float | None:
    return None if stat is None else known_number(stat.max)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _gpu_stats(machines: Sequence[Machine], metric: str) -> list[Stat]:
    names = [
        (machine, f"gpu.{number}.{metric}") for machine in machines for number in machine.gpus()
    ]
    return [stat for machine, name in names if (stat := machine.stats.get(name)) is not None]


def _number(value: float | None) -> str:
    return "unknown" if value is None else render_number(value)
