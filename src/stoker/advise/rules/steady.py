"""The steady steps of a run and its GPU meanwhile: what the rules about devices and ranks look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stoker.advise.finding import Gain
from stoker.advise.repeat import announce
from stoker.advise.verdict import MIN_READINGS, MIN_STEADY_STEPS, WORTH_SHARE, slowest_rank
from stoker.watch.series import Row, Stat
from stoker.watch.summary import PHASES, Line, Machine, Rank, Split, Summary

# Steps that were measured on the device's own clock before its phases are believed.
MIN_DEVICE_STEPS = 5
# Readings describe the steps only where the steps are most of what went on meanwhile.
MOSTLY_STEPS = 0.7
# Under this a finding would be about as large as the error of what it is made of.
LEAST_SHARE = 0.05
COMPUTE = ("forward", "backward", "optimizer")
METRICS = (
    "duty_pct", "sm_pct", "tensor_pct", "fp32_pct", "dram_pct", "mem_gib", "power_w", "temp_c",
    "throttled", "hot", "clock_mhz",
)  # fmt: skip


@dataclass(frozen=True)
class Steady:
    """The steps of the rank that the others wait for, and what its GPU did in that time."""

    rank: Rank
    split: Split
    # Of that rank's GPU, by metric; empty where the GPU is not known or read too rarely.
    readings: Mapping[str, Stat]
    # What is known of that GPU.
    gpu: Mapping[str, Any]
    # Phases by the host's own clock, in seconds a step.
    host_s: Mapping[str, float]
    summary: Summary

    @property
    def step_s(self) -> float:
        """The length of a step in seconds."""
        return self.split.step.mean

    @property
    def usual_s(self) -> float:
        """The length of the steps that the phases were taken from: rare long ones are not there."""
        return min(self.step_s, sum(self.split.phases.values()) or self.step_s)

    @property
    def busy(self) -> float | None:
        """The share of the time in which a kernel ran, 0 to 1; None where it is not known."""
        duty = self.mean("duty_pct")
        return None if duty is None else min(1.0, duty / 100 * self.step_s / self.usual_s)

    @property
    def compute(self) -> float:
        """The share of the step that the model and its optimizer take, on the device's clock."""
        return sum(self.split.share(phase) for phase in COMPUTE)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric of the GPU during the steps; None where it is not known."""
        stat = self.readings.get(metric)
        return None if stat is None else max(0.0, stat.mean)

    def is_on_device(self) -> bool:
        """Say whether phases are the device's own, and its load meanwhile is known."""
        return self.split.device_steps >= MIN_DEVICE_STEPS and self.busy is not None

    def gain(self, low: float, high: float, ceiling: float) -> Gain:
        """Return the gain of the whole run if these parts of each step, 0 to 1, were saved."""
        steps_s = min(self.summary.wall_s, self.split.steps * self.usual_s)
        return announce(self.summary, *(steps_s * each for each in (low, high, ceiling)))


@lru_cache(maxsize=1)  # eight rules ask for it, one after the other
def read_steady(summary: Summary) -> Steady | None:
    """Return the steady steps of the slowest rank; None where they are too few to judge by."""
    rank = slowest_rank(summary)
    if rank is None or rank.steady is None or not rank.steady.phases:
        return None
    split = rank.steady
    if split.steps < MIN_STEADY_STEPS or split.step.mean <= 0 or summary.wall_s <= 0:
        return None
    machine = next((each for each in summary.machines if each.host == rank.host), None)
    gpu = find_gpu(machine, rank)
    rows = [row for row in rank.rows if "steady.step" in row.stats]
    return Steady(
        rank=rank,
        split=split,
        readings={} if machine is None or gpu is None else _readings(machine, gpu["index"], rows),
        gpu=gpu or {},
        host_s=_host_phases(rows),
        summary=summary,
    )


def find_gpu(machine: Machine | None, rank: Rank) -> Mapping[str, Any] | None:
    """Return the facts of the GPU that a rank computes on; None where it cannot be told."""
    gpus = gpu_facts(machine)
    device = rank.facts.get("device")
    if not isinstance(device, dict):
        return None
    same = [each for each in gpus if each.get("uuid") == device.get("uuid")]
    # A slice goes by another name in torch than in NVML; the only GPU needs no name.
    found = same or gpus
    return found[0] if len(found) == 1 and isinstance(found[0].get("index"), int) else None


def gpu_facts(machine: Machine | None) -> list[Mapping[str, Any]]:
    """Return what is known of each GPU of a machine."""
    told = machine.facts.get("gpus") if machine is not None else None
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def model_facts(rank: Rank) -> Mapping[str, Any]:
    """Return what is known of the model that a rank trains."""
    told = rank.facts.get("model")
    return told if isinstance(told, dict) else {}


def level_of(gain: Gain, is_sure: bool = True) -> str | None:
    """Return how much a gain weighs; None where it is too small to speak of."""
    share = 1 - 1 / gain.expected
    if share < LEAST_SHARE:
        return None
    return "problem" if share >= WORTH_SHARE and is_sure else "advice"


def place(line: Line) -> str:
    """Write where a line is: `train.py:12`."""
    return f"{Path(line.file).name}:{line.line}"


def places(lines: Sequence[Line]) -> str:
    """Write where lines are, at most three of them."""
    told = [place(line) for line in lines[:3]]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _readings(machine: Machine, number: int, rows: Sequence[Row]) -> dict[str, Stat]:
    # The rows of the start hold warm-up too, unless everything is in one of them.
    pure = [row for row in rows if "warmup.step" not in row.stats] or rows
    if not pure:
        return {}
    begin, end = min(row.start_s for row in pure), max(row.end_s for row in pure)
    steps = sum(stat.count * stat.mean for row in pure for stat in _steps(row))
    if steps < MOSTLY_STEPS * (end - begin):
        return {}
    inside = [row for row in machine.rows if row.start_s >= begin and row.end_s <= end]
    found: dict[str, Stat] = {}
    for metric in METRICS:
        name = f"gpu.{number}.{metric}"
        told = [row for row in inside if name in row.stats]
        stat = _merged(told, name)
        if stat is not None and len(told) >= MIN_READINGS:
            found[metric] = stat
    return found


def _steps(row: Row) -> Iterable[Stat]:
    names = ("steady.step", "first.step", "traced.step")
    return (row.stats[name] for name in names if name in row.stats)


def _host_phases(rows: Sequence[Row]) -> dict[str, float]:
    full = _merged(rows, "steady.host.step")
    if full is None:
        return {}
    found = {phase: _merged(rows, f"steady.host.{phase}") for phase in PHASES}
    return {
        phase: stat.mean * stat.count / full.count
        for phase, stat in found.items()
        if stat is not None
    }


def _merged(rows: Sequence[Row], name: str) -> Stat | None:
    whole: Stat | None = None
    for row in rows:
        stat = row.stats.get(name)
        if stat is not None:
            whole = stat if whole is None else whole.merge(stat)
    return whole
