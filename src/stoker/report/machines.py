"""Machines and their GPUs as text: cores, memory, files, load, power; many of them folded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.advise.verdict import gpu_numbers, held_gpus
from stoker.report.efficiency import memory_allowed_gib, memory_of
from stoker.report.table import clipped, columns, digits, render_known
from stoker.units import plural, printable, render_seconds, render_share
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import Machine, Summary

# A row each as long as a screen has room for them; more are folded into one.
MAX_GPU_ROWS = 8
MAX_MACHINES = 2
MAX_FLEET_ROWS = 8
# What a laptop's disk gives without noticing; and what a file system of a cluster notices.
NOTABLE_READ_MB_S = 1.0
NOTABLE_OPENS_S = 50.0
# Of percents, GiB and watts of a GPU: less is a counter's noise.
NOTHING = 0.05
GPU_COLUMNS = (
    ("load %", "duty_pct"),
    ("SM %", "sm_pct"),
    ("tensor %", "tensor_pct"),
    ("memory GiB", "mem_gib"),
    ("power W", "power_w"),
)
FLEET_COLUMNS = (
    ("CPU cores", "cpu.cores"),
    ("memory GiB", "mem.rss_gib"),
    ("GPU load %", "gpu.*.duty_pct"),
    ("SM %", "gpu.*.sm_pct"),
    ("GPU GiB", "gpu.*.mem_gib"),
)


def render_machines(summary: Summary, edge: int) -> list[str]:
    """Return a table of each machine, or one of all of them."""
    if len(summary.machines) > MAX_MACHINES:
        text = _fleet(summary)
    else:
        text = columns([row for machine in summary.machines for row in _machine_rows(machine)])
        used = {(gpu.host, gpu.index): gpu.is_used for gpu in held_gpus(summary)}
        for machine in summary.machines:
            text += _gpu_rows(machine, used, is_named=len(summary.machines) > 1)
    cost = cost_s(summary)
    if cost is not None and summary.wall_s > 0 and text:
        share = render_share(cost / summary.wall_s)
        whose = "ranks" if summary.is_ranked else "processes"
        together = f", all {whose} together" if len(summary.ranks) > 1 else ""
        text.append(
            f"  recording took {render_seconds(cost)} of CPU: {share} of one core{together}"
        )
    return [clipped(row, edge) for row in text]


def _fleet(summary: Summary) -> list[str]:
    """Return many machines as a table: a row each, from some number on one for the rest."""
    groups = [[machine] for machine in summary.machines]
    if len(groups) > MAX_FLEET_ROWS:
        rest = list(summary.machines[MAX_FLEET_ROWS - 1 :])
        groups = [*groups[: MAX_FLEET_ROWS - 1], rest]
    held = held_gpus(summary)
    rows = [[f"{len(summary.machines):,} machines", *(title for title, _ in FLEET_COLUMNS), ""]]
    for group in groups:
        cells = []
        for _, metric in FLEET_COLUMNS:
            names = [metric]
            if metric.startswith("gpu."):
                numbers = {number for machine in group for number in gpu_numbers(machine)}
                names = [metric.replace("*", str(number)) for number in numbers]
            stats = [machine.stats.get(name) for machine in group for name in names]
            cells.append(_cell(_joined(stats)))
        hosts = {machine.host for machine in group}
        idle = sum(gpu.is_used is False for gpu in held if gpu.host in hosts)
        name = printable(group[0].host) if len(group) == 1 else f"{len(group):,} more, each"
        rows.append([f"  {name}", *cells, f"{plural(idle, 'GPU')} never used" if idle else ""])
    return [*columns(rows), "  mean ±std (max); GPU columns: of one GPU"]


def _machine_rows(machine: Machine) -> list[list[str]]:
    stats, facts = machine.stats, machine.facts
    cores = known_number(facts.get("cores_allowed"))
    rows = [
        [f"machine {printable(machine.host)}", "mean", "std", "max", ""],
        ["  CPU cores busy", *_cells(stats.get("cpu.cores")), f"of {_total(cores)}"],
        ["  memory GiB", *_cells(memory_of(machine)), f"of {_total(memory_allowed_gib(machine))}"],
    ]
    for title, name, least in (
        ("  read MB/s", "io.read_mb_s", NOTABLE_READ_MB_S),
        ("  files opened /s", "files.opens_s", NOTABLE_OPENS_S),
    ):
        stat = stats.get(name)
        if stat is not None and stat.mean >= least:
            rows.append([title, *_cells(stat), ""])
    return rows


def _cells(stat: Stat | None) -> list[str]:
    if stat is None:
        return ["unknown", "", ""]
    places = digits(stat.mean)
    values = (stat.mean, stat.std, stat.max)
    return [f"{each:.{places}f}" if math.isfinite(each) else "unknown" for each in values]


def _total(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _gpu_rows(
    machine: Machine, used: Mapping[tuple[str, int], bool | None], is_named: bool
) -> list[str]:
    """Return a table of the GPUs of a machine: one row each, or one for all of them."""
    facts, numbers = gpu_facts(machine), gpu_numbers(machine)
    where = f" of {printable(machine.host)}" if is_named else ""
    if not numbers:
        return [
            f"  no GPU on this machine{where}" if not facts else f"  the GPUs{where} told nothing"
        ]
    name = str(next((each.get("name") for each in facts if each.get("name")), "GPU"))
    total = known_number(facts[0].get("memory_gib")) if facts else None
    head = [f"  {printable(name)}{where}", *(title for title, _ in GPU_COLUMNS), ""]
    head[4] += f" of {_total(total)}" if total is not None else ""
    groups = [numbers] if len(used) > MAX_GPU_ROWS else [[number] for number in numbers]
    rows = [head]
    for group in groups:
        cells = []
        for _, metric in GPU_COLUMNS:
            stats = [machine.stats.get(f"gpu.{number}.{metric}") for number in group]
            cells.append(_cell(_joined(stats)))
        idle = sum(used.get((machine.host, number)) is False for number in group)
        flag = "" if not idle else "never used" if len(group) == 1 else f"{idle} never used"
        title = f"GPU {group[0]}" if len(group) == 1 else f"all {len(group)}"
        rows.append([f"  {title}", *cells, flag])
    return [*columns(rows), "  of each GPU: mean ±std (max)"]


def _joined(stats: Iterable[Stat | None]) -> Stat | None:
    joined: Stat | None = None
    for stat in stats:
        if stat is not None:
            joined = stat if joined is None else joined.merge(stat)
    return joined


def _cell(stat: Stat | None) -> str:
    if stat is None:
        return "unknown"
    values = (stat.mean, stat.std, stat.max)
    mean, std, largest = ("0" if 0 <= each < NOTHING else render_known(each) for each in values)
    return f"{mean} ±{std} ({largest})"


def gpu_facts(machine: Machine) -> list[Mapping[str, Any]]:
    """Return what is known of each GPU of a machine."""
    told = machine.facts.get("gpus")
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def cost_s(summary: Summary) -> float | None:
    """Return the CPU seconds that recording took; None where nobody wrote them down."""
    recorder = known_number(summary.run.get("recorder_cpu_s"))
    inside = [known_number(rank.cost_s) or 0.0 for rank in summary.ranks]
    return None if recorder is None else recorder + sum(inside)
