"""A run as text for people: verdict, step split, machines, slowest lines.

Reads the folder's summary and the source lines that it names; whatever is missing or damaged is
shown as `unknown`.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.advise.verdict import (
    gpu_numbers,
    held_gpus,
    make_verdict,
    median,
    slowest_rank,
)
from stoker.engine.command import find_python
from stoker.report.lines import render_lines
from stoker.report.table import MAX_WIDTH, clipped, columns, render_bar, render_known, width
from stoker.units import plural, printable, render_seconds, render_share
from stoker.watch.entry import EXACT
from stoker.watch.folder import RUNS
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import Machine, Rank, Split, Summary

# A row each as long as a screen has room for them; more are folded into one.
MAX_GPU_ROWS = 8
MAX_MACHINES = 2
MAX_FLEET_ROWS = 8
BAR = 24
# What a laptop's disk gives without noticing; and what a file system of a cluster notices.
NOTABLE_READ_MB_S = 1.0
NOTABLE_OPENS_S = 50.0
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


def render_run(summary: Summary, lines: int = 10, edge: int | None = None) -> str:
    """Return the report of a run: at most about 45 lines, `edge` columns wide."""
    edge = min(width() if edge is None else edge, MAX_WIDTH)
    sections = [
        _head(summary, edge),
        textwrap.wrap(make_verdict(summary), edge),
        _steps(summary, edge),
        _machines(summary, edge),
        render_lines(summary, lines, edge),
        _notes(summary, edge),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def next_command(summary: Summary) -> str:
    """Return the command that is worth typing next."""
    name = run_name(summary.folder)
    if is_running(summary):
        return f"stoker top {name}"
    rank = slowest_rank(summary.ranks)
    again = _run_words(summary.run)
    if again and rank is not None and rank.lines and not rank.exact_lines:
        return f"stoker run --lines {again}"
    if held_gpus(summary):
        return f"stoker report {name} --csv gpu.csv"
    has_more = rank is not None and len(rank.lines) > 10
    return f"stoker report {name} {'--lines 30' if has_more else '--json'}"


def run_name(folder: Path) -> str:
    """Return what to type for this run: its id where that is enough, else its folder."""
    if folder.parent == RUNS.absolute():
        return shlex.quote(folder.name)
    here = Path.cwd()
    return shlex.quote(str(folder.relative_to(here) if here in folder.parents else folder))


def _run_words(run: Mapping[str, Any]) -> str:
    """Return the words after `stoker run` that start the same command; empty if unknown."""
    words = command_of(run)
    if not words:
        return ""
    if not re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        return "-- " + shlex.join(words)
    python, *rest = words
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        return "-- " + shlex.join([python, *rest])
    chosen = [] if python == find_python(None, os.environ) else ["--python", python]
    return shlex.join([*chosen, *rest])


# -- the head ------------------------------------------------------------------------


def _head(summary: Summary, edge: int) -> list[str]:
    run, ranks = summary.run, summary.ranks
    command = shlex.join(command_of(run)) or "unknown"
    parts = [f"{render_seconds(summary.wall_s)} on {_hosts(summary)}"]
    if len(ranks) > 1:
        parts.append(f"{len(ranks)} ranks")
    steps, epochs = (
        max((getattr(r, each) for r in ranks), default=0) for each in ("steps", "epochs")
    )
    if steps:
        parts.append(plural(steps, "step") + (f" in {plural(epochs, 'epoch')}" if epochs else ""))
    title = str(run.get("id") or summary.folder.name)
    rows = [
        f"run      {title}: {ending(summary)}",
        f"command  {command}",
        f"time     {', '.join(parts)}",
    ]
    return [clipped(row, edge) for row in rows]


def ending(summary: Summary) -> str:
    """How the run ended, or that it goes on."""
    if not summary.run:
        return "unknown how it ended"
    return "still running" if is_running(summary) else printable(summary.ending)


def is_running(summary: Summary) -> bool:
    """Say whether the run goes on, as far as its folder tells; without run.json nothing does."""
    return summary.state == "running" and bool(summary.run)


def _hosts(summary: Summary) -> str:
    hosts = [machine.host for machine in summary.machines] + [rank.host for rank in summary.ranks]
    names = list(dict.fromkeys(host for host in hosts if host))
    names = names or [str(summary.run.get("host") or "an unknown host")]
    return ", ".join(names) if len(names) < 4 else f"{len(names)} hosts ({names[0]} … {names[-1]})"


# -- the steps -----------------------------------------------------------------------


def _steps(summary: Summary, edge: int) -> list[str]:
    rank = slowest_rank(summary.ranks)
    if rank is None:
        return []
    kind, split = next(
        ((kind, split) for kind, split in splits_of(rank).items() if split is not None),
        ("steady", None),
    )
    told = _beside_steps(rank)
    if split is None:
        return told
    ranks = [each for each in summary.ranks if each.steady is not None]
    rows = _split_rows(split, ranks if len(ranks) > 1 and kind == "steady" else [])
    title = f"{plural(split.steps, f'{KINDS[kind]} step')}, {_clock(split)}"
    if len(summary.ranks) > 1:
        title += f", rank {rank.rank} on {rank.host}, the slowest of {len(summary.ranks)}"
    return [clipped(row, edge) for row in (f"one step ({title})", *columns(rows), *told)]


KINDS = {"steady": "steady", "warmup": "warm-up", "first": "epoch's first"}


def splits_of(rank: Rank) -> dict[str, Split | None]:
    """Return the splits of a rank's training steps by kind."""
    return {"steady": rank.steady, "warmup": rank.warmup, "first": rank.first}


def _clock(split: Split) -> str:
    if not split.device_steps:
        return "by the host's clock"
    if split.device_steps >= split.steps:
        return "by the device's clock"
    return f"by the device's clock in {split.device_steps} of them"


def _split_rows(split: Split, ranks: Sequence[Rank]) -> list[list[str]]:
    unit, factor = ("s", 1.0) if split.step.mean >= 10 else ("ms", 1e3)
    places = max(1, _places(factor * split.step.mean))

    def row(name: str, share: float, last: str) -> list[str]:
        seconds = [split.step.mean * share, *(spread(ranks, name) if ranks else ())]
        mine, *others = (f"{factor * each:.{places}f}" for each in seconds)
        return [f"  {name}", mine, render_share(share), *others, last]

    over = ("min", "median", f"max of {len(ranks)}") if ranks else ()
    rows = [["  phase", unit, "share", *over, ""]]
    for phase in split.phases:
        share = split.share(phase)
        rows.append(row(phase, share, render_bar(share, BAR)))
    std = factor * split.step.std
    return [*rows, row("step", 1.0, f"± {std:.{places}f}")]


def _places(value: float) -> int:
    """Return how many digits after the point a number of this size deserves."""
    size = abs(value)
    return 0 if not size < 100 else 1 if size >= 10 else 2 if size >= 0.05 or not size else 3


def spread(ranks: Sequence[Rank], name: str) -> tuple[float, float, float]:
    """Return the smallest, the median and the largest seconds of a phase over ranks."""
    values = [
        each.steady.step.mean * (1.0 if name == "step" else each.steady.share(name))
        for each in ranks
        if each.steady is not None
    ]
    return min(values), median(values), max(values)


def _beside_steps(rank: Rank) -> list[str]:
    """What is not in the split, a line each."""
    steady, told = rank.steady, []
    if steady and steady.data_hidden_s > 0:
        told.append(
            (
                "data hidden",
                f"{render_seconds(steady.data_hidden_s)} a step of loading behind computing",
            )
        )
    if steady and steady.comm_overlapped_s > 0:
        told.append(
            (
                "comm hidden",
                f"{render_seconds(steady.comm_overlapped_s)} a step of communication behind computing",
            )
        )
    if rank.warmup:
        told.append(("warm-up", f"{plural(rank.warmup.steps, 'step')}, {_whole(rank.warmup)}"))
    if rank.first:
        steady_s = f", a steady one {render_seconds(steady.step.mean)}" if steady else ""
        told.append(
            (
                "epoch start",
                f"{render_seconds(rank.first.step.mean)} for the first step of an epoch{steady_s}",
            )
        )
    if rank.evaluation:
        told.append(
            (
                "evaluation",
                f"{plural(rank.evaluation.steps, 'batch', 'batches')}, {_whole(rank.evaluation)}",
            )
        )
    if rank.startup_s is not None:
        told.append(("start-up", f"{render_seconds(rank.startup_s)} before the first step"))
    return [f"  {name:<12}{text}" for name, text in told]


def _whole(split: Split) -> str:
    steps = known_number(split.steps)
    return "unknown" if steps is None else f"{render_seconds(split.step.mean * steps)} in all"


# -- the machines --------------------------------------------------------------------


def _machines(summary: Summary, edge: int) -> list[str]:
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
        all_ranks = ", all ranks together" if len(summary.ranks) > 1 else ""
        text.append(
            f"  recording took {render_seconds(cost)} of CPU: {share} of one core{all_ranks}"
        )
    return [clipped(row, edge) for row in text]


def _fleet(summary: Summary) -> list[str]:
    """Return many machines as a table: a row each, from some number on one for the rest."""
    groups = [[machine] for machine in summary.machines]
    if len(groups) > MAX_FLEET_ROWS:
        rest = list(summary.machines[MAX_FLEET_ROWS - 1 :])
        groups = [*groups[: MAX_FLEET_ROWS - 1], rest]
    held = held_gpus(summary)
    rows = [[f"{len(summary.machines)} machines", *(title for title, _ in FLEET_COLUMNS), ""]]
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
        name = printable(group[0].host) if len(group) == 1 else f"{len(group)} more, each"
        rows.append([f"  {name}", *cells, f"{plural(idle, 'GPU')} never used" if idle else ""])
    return [*columns(rows), "  mean ±std (max); GPU columns: of one GPU"]


def _machine_rows(machine: Machine) -> list[list[str]]:
    stats, facts = machine.stats, machine.facts
    cores = known_number(facts.get("cores_allowed"))
    limit = known_number(facts.get("memory_limit_gib"))
    total = limit if limit is not None else known_number(facts.get("memory_machine_gib"))
    # Slurm counts what the control group holds; without a limit it may hold more than the run.
    memory = stats.get("mem.cgroup_gib") if limit is not None else None
    rows = [
        [f"machine {printable(machine.host)}", "mean", "std", "max", ""],
        ["  CPU cores busy", *_cells(stats.get("cpu.cores")), f"of {_total(cores)}"],
        ["  memory GiB", *_cells(memory or stats.get("mem.rss_gib")), f"of {_total(total)}"],
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
    places = _places(stat.mean)
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
    mean, std, largest = (render_known(each) for each in (stat.mean, stat.std, stat.max))
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


# -- the notes -----------------------------------------------------------------------


def notes(summary: Summary) -> list[str]:
    """Return what could not be watched, each once."""
    told = [note for rank in summary.ranks for note in rank.notes]
    own = summary.run.get("notes")
    told += own if isinstance(own, list) else []
    if summary.run.get("is_whole") is False:
        told.append("recording stopped before the end: the disk refused")
    if not summary.run:
        told.append("run.json is missing: command, start and end are unknown")
    return [printable(str(note)) for note in dict.fromkeys(map(str, told))]


def _notes(summary: Summary, edge: int) -> list[str]:
    told = notes(summary)
    more = f" (and {len(told) - 2} more, with --json)" if len(told) > 2 else ""
    return textwrap.wrap("note: " + "; ".join(told[:2]) + more, edge) if told else []


def command_of(run: Mapping[str, Any]) -> list[str]:
    """Return the command as the user means it: without the program of ours that counts lines."""
    told = run.get("command")
    return [str(each) for each in told if each != str(EXACT)] if isinstance(told, list) else []
