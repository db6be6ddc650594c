"""A run while it goes on: one line for a log, one screen for `stoker top`.

Both look at the newest rows only. `Follower` reads what was added since it last looked.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.advise.verdict import gpu_numbers
from stoker.report.run import ending, is_running
from stoker.report.table import clipped, columns, render_bar, render_known
from stoker.units import render_number, render_seconds, render_share, render_time
from stoker.watch.folder import RunFolder
from stoker.watch.series import FINE_ROWS, Row, Stat, known_number, merged
from stoker.watch.summary import PHASES, Machine, Rank, Split, Summary, make_split, read_summary

# What is "now": long enough for slow steps, short enough to see a change.
RECENT_S = 10.0
# A step that takes this many times its usual time is a wait that people should hear of.
OVERDUE = 5
HISTORY_S = 300.0
SPARKS = "▁▂▃▄▅▆▇█"
BAR = 20
SPARK = 60
MIN_WIDTH = 40

# Seconds since the run began, from and to, and a value.
Point = tuple[float, float, float]


# -- reading -------------------------------------------------------------------------


class Follower:
    """One run folder, read again and again: only what is new, only what is recent."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = _Short(folder.path)
        self._tails: dict[Path, _Tail] = {}
        self._whole = folder

    def read(self, now: float | None = None) -> Summary:
        """Return the run as it is now, with the rows of the last minutes."""
        short = read_summary(self._folder, now)
        ranks = tuple(
            replace(rank, rows=self._rows(self._whole.steps(rank.label))) for rank in short.ranks
        )
        machines = tuple(self._machine(path) for path in self._whole.all_samples())
        rows = [each.rows for each in ranks] + [each.rows for each in machines]
        ends = [row.end_s for each in rows for row in each[-1:]]
        wall = short.wall_s if short.wall_s > 0 else max(ends, default=0.0)
        return replace(short, ranks=ranks, machines=machines, wall_s=wall)

    def _machine(self, path: Path) -> Machine:
        rows = self._rows(path)
        host = str(self._tails[path].head.get("host") or path.stem)
        stats = merged(recent(rows))
        facts = self._whole.read(self._whole.machine(host))
        return Machine(host, facts, stats.stats if stats else {}, rows)

    def _rows(self, path: Path) -> tuple[Row, ...]:
        return self._tails.setdefault(path, _Tail(path)).read()


class _Short(RunFolder):
    """The same folder without its long files: those are followed, not read again."""

    def all_samples(self) -> list[Path]:
        return []

    def steps(self, label: str) -> Path:
        return Path(os.devnull)


class _Tail:
    """The last rows of one series; remembers how far it has read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_id, self._offset = 0, 0
        self._columns: list[str] = []
        self._rows: deque[Row] = deque(maxlen=FINE_ROWS)
        self.head: Mapping[str, object] = {}

    def read(self) -> tuple[Row, ...]:
        """Return the last rows, those that were added since the last call among them."""
        try:
            with self._path.open("rb") as file:
                told = os.fstat(file.fileno())
                if told.st_ino != self._file_id or told.st_size < self._offset:
                    # The writer has merged its older rows into a new file.
                    self._file_id, self._offset = told.st_ino, 0
                    self._rows.clear()
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return tuple(self._rows)
        # A line that is not ended yet is read the next time.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.split(b"\n")
        heads = [index for index, line in enumerate(lines) if line.startswith(b"{")]
        first = max(0, len(lines) - FINE_ROWS)
        for index in [*(each for each in heads if each < first), *range(first, len(lines))]:
            self._take(lines[index])
        return tuple(self._rows)

    def _take(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            named = value.get("columns")
            if isinstance(named, list):
                self._columns = [str(each) for each in named]
            else:
                self.head = self.head or value
            return
        if not isinstance(value, list) or len(value) < 2:
            return
        start, end = known_number(value[0]), known_number(value[1])
        if start is None or end is None:
            return
        cells = zip(self._columns, value[2:], strict=False)
        stats = {name: stat for name, cell in cells if (stat := _stat(cell)) is not None}
        self._rows.append(Row(start, end, stats))


def _stat(cell: object) -> Stat | None:
    cells = cell if isinstance(cell, list) else [1, cell, 0, cell]
    known = [number for each in cells if (number := known_number(each)) is not None]
    if len(cells) != 4 or len(known) != 4 or known[0] < 1:
        return None
    return Stat(int(known[0]), known[1], known[2], known[3])


def recent(rows: Sequence[Row], seconds: float = RECENT_S) -> list[Row]:
    """Return the newest rows: those of the last seconds before the newest one ended."""
    return [row for row in rows if row.end_s > rows[-1].end_s - seconds]


# -- what is going on ----------------------------------------------------------------


def now_split(rank: Rank) -> tuple[str, Split | None]:
    """Return the kind of the newest steps of a rank, and what they are made of."""
    whole = merged(recent(rank.rows))
    if whole is None:
        return "", None
    for kind in ("steady", "first", "warmup", "eval"):
        split = make_split(whole.stats, kind)
        if split is not None:
            return kind, split
    return "", None


def _quiet_s(rank: Rank, wall_s: float) -> float | None:
    """Return for how long a rank has not ended a step, where that is unusual."""
    if not rank.rows:
        return None
    quiet = wall_s - rank.rows[-1].end_s
    _, split = now_split(rank)
    usual = split.step.mean if split else 0.0
    return quiet if quiet > max(RECENT_S, OVERDUE * usual) else None


def render_status(summary: Summary) -> str:
    """Return one line on how the run goes."""
    parts = [render_time(max(0, round(summary.wall_s)) if math.isfinite(summary.wall_s) else 0)]
    steps = max((rank.steps for rank in summary.ranks), default=0)
    slowest, split = _slowest(summary.ranks)
    # The count comes every few seconds, the steps themselves sooner.
    parts.append(f"step {steps}" if steps else "first steps" if split else "no step yet")
    if split is not None and slowest is not None:
        parts.append(render_seconds(split.step.mean))
        parts += [
            f"{phase} {render_share(share)}"
            for phase in split.phases
            if (share := split.share(phase)) >= 0.01
        ]
        quiet = _quiet_s(slowest, summary.wall_s)
        if quiet is not None and is_running(summary):
            parts.append(f"no step for {render_seconds(quiet)}")
    for machine in summary.machines[:1]:
        parts += _machine_words(machine)
    return "  ".join(parts)


def _slowest(ranks: Sequence[Rank]) -> tuple[Rank | None, Split | None]:
    """Return the rank whose newest steps take longest."""
    found: tuple[Rank | None, Split | None] = None, None
    for rank in ranks:
        _, split = now_split(rank)
        if split is not None and (found[1] is None or split.step.mean > found[1].step.mean):
            found = rank, split
    return found


def _machine_words(machine: Machine) -> list[str]:
    now = _now(machine)
    stats, words = now.stats, []
    for number in gpu_numbers(now)[:8]:
        duty = stats.get(f"gpu.{number}.duty_pct")
        words.append(f"GPU{number} {duty.mean:.0f} %" if duty else f"GPU{number} unknown")
    cores, memory = stats.get("cpu.cores"), stats.get("mem.rss_gib")
    if cores is not None:
        allowed = known_number(machine.facts.get("cores_allowed"))
        words.append(f"CPU {cores.mean:.1f}" + (f"/{allowed:g}" if allowed else ""))
    if memory is not None:
        words.append(f"mem {render_number(memory.mean)} GiB")
    return words


def _now(machine: Machine) -> Machine:
    """Return the machine with the stats of its newest rows alone."""
    whole = merged(recent(machine.rows))
    return replace(machine, stats=whole.stats if whole else {})


def _end(summary: Summary) -> float:
    """Return the moment that is shown at the right edge of a history."""
    rows = [each.rows for each in summary.machines] + [each.rows for each in summary.ranks]
    last = max((row.end_s for each in rows for row in each[-1:]), default=0.0)
    return max(last, _finite(summary.wall_s)) if is_running(summary) else last


# -- the screen ----------------------------------------------------------------------


def render_top(summary: Summary, width: int, height: int) -> str:
    """Return one screen: ranks, machines, GPUs, and the last five minutes of each."""
    width, height = max(MIN_WIDTH, width), max(8, height)
    head = [
        f"{summary.run.get('id') or summary.folder.name}  {ending(summary)}  "
        f"{render_time(max(0, round(_finite(summary.wall_s))))}",
        "",
    ]
    machines = [
        line
        for machine in summary.machines
        for line in _machine_lines(machine, _end(summary), width)
    ]
    room = height - len(head) - 1
    # At least a third of the screen is for the steps.
    machines = _cut(machines, room - room // 3, "lines of machines")
    ranks = _rank_lines(summary, width, room - len(machines))
    lines = [*head, *ranks, *([""] if ranks and machines else []), *machines]
    if not ranks and not machines:
        lines.append("nothing was recorded" + (" yet" if is_running(summary) else ""))
    return "\n".join(clipped(line, width) for line in lines[:height])


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _cut(lines: list[str], room: int, what: str) -> list[str]:
    if len(lines) <= room:
        return lines
    return [*lines[: max(0, room - 1)], f"… {len(lines) - room + 1} more {what}"]


def _rank_lines(summary: Summary, width: int, room: int) -> list[str]:
    now = [(rank, *now_split(rank)) for rank in summary.ranks]
    seen = {phase for _, _, split in now if split for phase in split.phases}
    phases = [phase for phase in PHASES if phase in seen]
    whose = "rank" if summary.is_ranked else "process"
    rows = [[whose, "step", "ms", *phases, ""]]
    for rank, kind, split in now:
        quiet = _quiet_s(rank, summary.wall_s) if is_running(summary) else None
        said = (
            f"no step for {render_seconds(quiet)}" if quiet is not None else KINDS.get(kind, kind)
        )
        ms = render_known(1000 * split.step.mean) if split else "unknown"
        shares = [render_share(split.share(phase)) if split else "" for phase in phases]
        rows.append([f"{summary.number_of(rank)}", f"{rank.steps}", ms, *shares, said])
    if len(rows) == 1:
        return []
    table = columns(rows)
    spark = _step_spark(summary.ranks, _end(summary), width)
    spare = max(2, room - len(spark) - 1)
    if len(table) > spare:
        times = [split.step.mean for _, _, split in now if split]
        spread = (
            f", {render_seconds(min(times))} to {render_seconds(max(times))} a step"
            if times
            else ""
        )
        hidden = len(table) - spare + 1
        table = [*table[: spare - 1], f"… {summary.count_of(hidden, 'more ')}{spread} over all"]
    return [*table, *spark]


KINDS = {"steady": "", "first": "first of an epoch", "warmup": "warm-up", "eval": "evaluating"}


def _step_spark(ranks: Sequence[Rank], end_s: float, width: int) -> list[str]:
    slowest, _ = _slowest(ranks)
    if slowest is None:
        return []
    points = _points(slowest.rows, "steady.step", 1000.0)
    if not points:
        return []
    low, high = min(each[2] for each in points), max(each[2] for each in points)
    line = sparkline(points, end_s, max(8, min(SPARK, width - 44)), high)
    return [f"step     {line}  {render_number(low)} to {render_number(high)} ms, 5 min"]


def _points(rows: Sequence[Row], name: str, factor: float = 1.0) -> list[Point]:
    points = [
        (row.start_s, row.end_s, factor * stat.mean)
        for row in rows
        if (stat := row.stats.get(name)) is not None
    ]
    return [point for point in points if all(math.isfinite(each) for each in point)]


def _machine_lines(machine: Machine, end_s: float, width: int) -> list[str]:
    now = _now(machine)
    stats, facts = now.stats, machine.facts
    cores = _bar_of(stats.get("cpu.cores"), known_number(facts.get("cores_allowed")))
    limit = known_number(facts.get("memory_limit_gib"))
    memory = _bar_of(
        stats.get("mem.rss_gib"),
        limit if limit is not None else known_number(facts.get("memory_machine_gib")),
    )
    lines = [f"{machine.host}", f"CPU      {cores} cores", f"memory   {memory} GiB"]
    totals = _gpu_memory(machine)
    for number in gpu_numbers(now):
        lines.append(_gpu_line(now, number, totals.get(number), end_s, width))
    return lines


def _gpu_line(machine: Machine, number: int, total: float | None, end_s: float, width: int) -> str:
    stats = machine.stats
    name = f"gpu.{number}."
    duty, sm = stats.get(name + "duty_pct"), stats.get(name + "sm_pct")
    memory, power = stats.get(name + "mem_gib"), stats.get(name + "power_w")
    parts = [
        f"GPU {number:<3}  {render_bar(duty.mean / 100 if duty else 0.0, BAR)}",
        f"{f'{duty.mean:.0f} %' if duty else 'unknown':>7}",
        f"SM {sm.mean:3.0f} %" if sm else "",
        f"{memory.mean:5.1f}{f'/{total:.0f}' if total else ''} GiB" if memory else "",
        f"{power.mean:4.0f} W" if power else "",
    ]
    text = "  ".join(part for part in parts if part)
    room = min(SPARK, width - len(text) - 2)
    points = _points(machine.rows, name + "duty_pct")
    return f"{text}  {sparkline(points, end_s, room, 100.0)}" if room >= 8 else text


def _bar_of(stat: Stat | None, total: float | None) -> str:
    value = stat.mean if stat is not None else None
    share = value / total if value is not None and total else 0.0
    of = f"{render_known(value)} of {f'{total:.4g}' if total is not None else 'unknown'}"
    return f"{render_bar(share, BAR)}  {of}"


def _gpu_memory(machine: Machine) -> dict[int, float]:
    told = machine.facts.get("gpus")
    totals = {}
    for each in told if isinstance(told, list) else []:
        if isinstance(each, dict):
            index, total = known_number(each.get("index")), known_number(each.get("memory_gib"))
            if index is not None and total is not None:
                totals[int(index)] = total
    return totals


def sparkline(points: Sequence[Point], end_s: float, size: int, top: float) -> str:
    """Return the five minutes before `end_s` as blocks; a gap where nothing was measured.

    >>> sparkline([(0, 70, 0.0), (150, 225, 50.0), (225, 300, 100.0)], 300, 4, 100.0)
    '▁ ▅█'
    """
    bin_s = HISTORY_S / size
    bins: list[list[float]] = [[] for _ in range(size)]
    for start, end, value in points:
        # A row belongs to every bin that it touches, its very end apart.
        first = max(0, math.floor((start - end_s) / bin_s) + size)
        last = min(size, max(first + 1, math.ceil((end - end_s) / bin_s) + size))
        for each in range(first, last):
            bins[each].append(value)
    return "".join(_spark(values, top) for values in bins)


def _spark(values: Sequence[float], top: float) -> str:
    if not values:
        return " "
    part = sum(values) / len(values) / top if top > 0 else 0.0
    return SPARKS[round(min(1.0, max(0.0, part)) * (len(SPARKS) - 1))]
