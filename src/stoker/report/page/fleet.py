"""Which of many machines and GPUs the page shows, and all of them together as an envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stoker.advise.verdict import SLOW_RANK, held_gpus, median, working_s
from stoker.report.page.points import Bucket, Curve, Value, make_grid
from stoker.units import render_number
from stoker.watch.series import Row
from stoker.watch.summary import Machine, Summary

ENVELOPE_POINTS = 120
# The rows of one machine are some MB to read: of a thousand, these stand for all.
MAX_READ = 12
# Two kinds of load: the first that a GPU tells says which one does least.
LOADS = ("sm_pct", "duty_pct")


@dataclass(frozen=True)
class GpuPlace:
    """One GPU of one machine, and what is striking about it."""

    machine: Machine
    index: int
    flags: tuple[str, ...]

    def metric(self, name: str) -> str:
        """Return what a metric of this GPU is called in the readings."""
        return f"gpu.{self.index}.{name}"


@dataclass(frozen=True)
class Pace:
    """How long the slowest rank of a machine works on a step; None where that is not known."""

    machine: Machine
    work_s: float | None
    is_slow: bool


def find_paces(summary: Summary) -> list[Pace]:
    """Return the machines, those first that keep the others waiting."""
    work: dict[str, float] = {}
    for rank in summary.ranks:
        if rank.steady is not None:
            work[rank.host] = max(work.get(rank.host, 0.0), working_s(rank.steady))
    usual = median(work.values()) if len(work) > 1 else None
    paces = []
    for machine in summary.machines:
        own = work.get(machine.host)
        is_slow = usual is not None and own is not None and own >= SLOW_RANK * usual > 0
        paces.append(Pace(machine, own, is_slow))
    return sorted(paces, key=lambda each: (not each.is_slow, -(each.work_s or 0.0)))


def find_gpus(summary: Summary, paces: Sequence[Pace]) -> list[GpuPlace]:
    """Return the GPUs: unused ones first, then those of slow machines, then the least busy."""
    machines = {pace.machine.host: pace for pace in paces}
    found = []
    for gpu in held_gpus(summary):
        pace = machines[gpu.host]
        flags = ("never used",) * (gpu.is_used is False) + ("slow machine",) * pace.is_slow
        found.append(GpuPlace(pace.machine, gpu.index, flags))
    return sorted(
        found,
        key=lambda each: ("never used" not in each.flags, not each.flags, _load(each)),
    )


def _load(gpu: GpuPlace) -> float:
    stats = [gpu.machine.stats.get(gpu.metric(name)) for name in LOADS]
    return next((stat.mean for stat in stats if stat is not None), 0.0)


def pick(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines whose time lines are read: all, or the first half and some of the others."""
    if len(machines) <= MAX_READ:
        return list(machines)
    half = MAX_READ // 2
    rest = machines[half:]
    return [*machines[:half], *(rest[i * len(rest) // half] for i in range(half))]


class Fleet:
    """The machines whose time lines are read, each once, on one grid of time.

    Of many series a chart shows the least, the median and the most at each moment.
    """

    def __init__(self, machines: Sequence[Machine], end_s: float) -> None:
        self.machines = pick(machines)
        self._end_s = end_s

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The grid, without rows."""
        return make_grid((), self._end_s, self._count)

    @cached_property
    def _count(self) -> int:
        longest = 1
        for machine in self.machines:
            longest = max(longest, len(machine.rows))
            if longest >= ENVELOPE_POINTS:
                return ENVELOPE_POINTS
        return longest

    @cached_property
    def _grids(self) -> dict[int, list[Bucket]]:
        return {id(each): make_grid(each.rows, self._end_s, self._count) for each in self.machines}

    def curve(self, name: str, series: Sequence[tuple[Machine, str]], unit: str) -> Curve:
        """Return the curve of one metric, given the machine and the name of each of its series."""
        columns: list[list[float]] = [[] for _ in range(self._count)]
        for machine, metric in series:
            for column, bucket in zip(columns, self._grids[id(machine)], strict=True):
                value = _mean(bucket.rows, metric)
                if value is not None:
                    column.append(value)
        middle: list[Value] = [median(column) if column else None for column in columns]
        low: list[Value] = [min(column, default=None) for column in columns]
        high: list[Value] = [max(column, default=None) for column in columns]
        known = [each for each in middle if each is not None]
        told = ""
        if known:
            least = min(each for each in low if each is not None)
            most = max(each for each in high if each is not None)
            middle_text, *ends = (render_number(each) for each in (median(known), least, most))
            told = f"{middle_text} {unit} ({'–'.join(ends)})"
        return Curve(name, middle, low, high, told)


def _mean(rows: Sequence[Row], metric: str) -> float | None:
    total, count = 0.0, 0
    for row in rows:
        stat = row.stats.get(metric)
        if stat is not None:
            total += stat.mean * stat.count
            count += stat.count
    return total / count if count else None
