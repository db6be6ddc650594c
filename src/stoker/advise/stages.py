"""The stages of a run: start-up, training, validation, and where training changes its behaviour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from stoker.advise.crowd import crowd_of, shared_cores
from stoker.advise.verdict import slowest_rank
from stoker.watch.series import Row, Stat, merged
from stoker.watch.summary import PHASES, Machine, Rank, Split, Summary, make_split

# A change stays for at least so many rows and steps; one slow row is none.
MIN_ROWS = 4
MIN_STEPS = 10
# By how much the step, or where it is spent, must change, as a part of the step ...
MIN_CHANGE = 0.15
# ... and how many times the spread of the rows on either side.
MIN_SPREADS = 2.0
MAX_TRAININGS = 6
STARTUP, ENDING = "start-up", "ending"
# Where others set the pace, only a change of what a step computes is the program's own, by so much of it.
MIN_OTHER_WORK = 0.3
WAITS = ("data", "h2d", "comm")
TRAINED = ("warmup.step", "first.step", "steady.step", "traced.step")
# Readings tell of validation only while there is little else.
MOSTLY = 0.5
QUANTILES = (0.1, 0.5, 0.9)
GPU_METRICS = ("duty_pct", "sm_pct", "tensor_pct", "mem_gib", "power_w")
MACHINE_METRICS = ("cpu.cores", "mem.rss_gib", "io.read_mb_s")


@dataclass(frozen=True)
class Level:
    """A reading over a time: its mean, and what it was below for 10, 50 and 90 % of that time."""

    mean: float
    q10: float
    q50: float
    q90: float


@dataclass(frozen=True)
class Stage:
    """A part of a run in which it did the same all the time."""

    # "start-up", "training" (numbered where it changes), "validation", "between epochs" or
    # "ending": after the last step.
    name: str
    # From the first to the last moment of it; others may lie between.
    start_s: float
    end_s: float
    # How long it took, without those.
    seconds: float
    steps: int
    epochs: int
    step: Stat | None
    split: Split | None
    # Of the rank's machine, `cpu.cores`, and over its GPUs, `gpu.sm_pct`; empty where not known.
    levels: Mapping[str, Level]


def stages_of(summary: Summary) -> list[Stage]:
    """Return the stages of the rank that the others wait for, in the order of their beginning."""
    rank = slowest_rank(summary)
    if rank is None or not rank.rows:
        return []
    rows = sorted(rank.rows, key=lambda row: row.start_s)
    machine = next((each for each in summary.machines if each.host == rank.host), None)
    trained = trained_until(rows)
    found = [
        *_startup(rank, rows, machine),
        *_trainings(rows, machine),
        *_pause(rows, machine, "validation", "eval"),
        *_pause(rows[:trained], machine, "between epochs", "gap"),
        *_pause(_ending(rows, trained), machine, ENDING, "end"),
    ]
    return sorted(_after_startup(found), key=lambda stage: stage.start_s)


def trained_until(rows: Sequence[Row]) -> int:
    """Return how many rows there are up to the last one in which training took a step."""
    places = (place for place, row in enumerate(rows) if not row.stats.keys().isdisjoint(TRAINED))
    return max(places, default=-1) + 1


def _ending(rows: Sequence[Row], trained: int) -> list[Row]:
    """Return the rows of the end: what stands between two loaders is there when all is trained, too."""
    gaps = [
        Row(row.start_s, row.end_s, {"end.step": row.stats["gap.step"]})
        for row in rows[trained:]
        if "gap.step" in row.stats
    ]
    return sorted(
        [*gaps, *(row for row in rows if "end.step" in row.stats)], key=lambda row: row.start_s
    )


def _after_startup(stages: Sequence[Stage]) -> list[Stage]:
    """Let every stage begin after the start-up, which is in one row with the first steps."""
    begun_s = next((each.end_s for each in stages if each.name == STARTUP), 0.0)
    return [
        each
        if each.name == STARTUP
        else replace(each, start_s=min(each.end_s, max(each.start_s, begun_s)))
        for each in stages
    ]


def quantiles(
    rows: Sequence[Row], metric: str, shares: Sequence[float] = QUANTILES
) -> tuple[float, ...] | None:
    """Return what a metric was below for these shares of the time; None where it was not read.

    >>> row = Row(0, 10, {"a": Stat(10, 50.0, 50.0, 100.0)})
    >>> quantiles([row], "a", (0.25, 0.75))
    (0.0, 100.0)
    """
    points: list[tuple[float, float]] = []
    for row in rows:
        stat = row.stats.get(metric)
        if stat is None:
            continue
        weight = max(1e-9, row.end_s - row.start_s) / 2
        # A coarse row stands for values on both sides of its mean, a fine one for one value.
        points.append((max(0.0, stat.mean - stat.std) if stat.mean >= 0 else stat.mean, weight))
        points.append((min(stat.max, stat.mean + stat.std), weight))
    if not points:
        return None
    points.sort()
    total = math.fsum(weight for _, weight in points)
    return tuple(_at(points, share * total) for share in shares)


def changes(points: Sequence[Sequence[float]], weights: Sequence[float]) -> list[int]:
    """Return where a series of points changes and stays changed: the first index of each new part.

    Cut in two where both parts are closest to their own means, then each part again, as long as
    the means lie apart by more than the points around them are spread.
    """
    cuts: list[int] = []
    parts = [(0, len(points))]
    while parts and len(cuts) + 1 < MAX_TRAININGS:
        start, end = parts.pop(0)
        cut = _cut(points[start:end], weights[start:end])
        if cut is not None:
            cuts.append(start + cut)
            parts += [(start, start + cut), (start + cut, end)]
    return sorted(cuts)


def _startup(rank: Rank, rows: Sequence[Row], machine: Machine | None) -> list[Stage]:
    if rank.startup_s is None:
        return []
    begin = max(0.0, rows[0].start_s)
    end = begin + rank.startup_s
    levels = _levels(machine, [(begin, end)])
    return [Stage(STARTUP, 0.0, end, end, 0, 0, None, None, levels)]


def _trainings(rows: Sequence[Row], machine: Machine | None) -> list[Stage]:
    stepping = [row for row in rows if "steady.step" in row.stats or "first.step" in row.stats]
    places = [place for place, row in enumerate(stepping) if "steady.step" in row.stats]
    if not places:
        return []
    steady = [stepping[place] for place in places]
    points, weights = _points(steady), [float(row.stats["steady.step"].count) for row in steady]
    edges = [0, *_own_changes(changes(points, weights), steady, machine), len(steady)]
    stages = []
    for number, (start, end) in enumerate(pairwise(edges)):
        part = steady[start:end]
        # A slow first step of an epoch has a row of its own, and belongs to what follows it.
        begin = places[start - 1] + 1 if start else 0
        within = stepping[begin : places[end - 1] + 1 if end < len(places) else None]
        whole = merged(within)
        assert whole is not None
        times = _times(within, ("steady", "first"))
        kinds = [whole.stats[each] for each in ("steady.step", "first.step") if each in whole.stats]
        name = "training" if len(edges) == 2 else f"training {number + 1}"
        stages.append(
            Stage(
                name=name,
                start_s=min([part[0].start_s, *(start_s for start_s, _ in times)]),
                end_s=max([part[-1].end_s, *(end_s for _, end_s in times)]),
                seconds=math.fsum(stat.count * stat.mean for stat in kinds),
                steps=sum(stat.count for stat in kinds),
                epochs=whole.stats["first.step"].count if "first.step" in whole.stats else 0,
                step=whole.stats["steady.step"],
                split=make_split(whole.stats, "steady"),
                levels=_levels(machine, times),
            )
        )
    return stages


def _pause(rows: Sequence[Row], machine: Machine | None, name: str, kind: str) -> list[Stage]:
    """Return one stage for all of validation, of what stands between epochs, or of the end."""
    found = [row for row in rows if f"{kind}.step" in row.stats]
    whole = merged(found)
    if whole is None:
        return []
    stat = whole.stats[f"{kind}.step"]
    is_steps = kind == "eval"
    return [
        Stage(
            name=name,
            start_s=found[0].start_s,
            end_s=found[-1].end_s,
            seconds=stat.count * stat.mean,
            steps=stat.count if is_steps else 0,
            epochs=0,
            step=stat if is_steps else None,
            split=make_split(whole.stats, kind) if is_steps else None,
            levels=_levels(machine, _times(found, (kind,))),
        )
    ]


# -- where it changes ----------------------------------------------------------------


def _own_changes(cuts: Sequence[int], rows: Sequence[Row], machine: Machine | None) -> list[int]:
    """Return the cuts that are the program's doing, and not of others who take its cores."""
    kept = [0]
    for cut, end in pairwise([*cuts, len(rows)]):
        before, after = rows[kept[-1] : cut], rows[cut:end]
        slower = max(before, after, key=_step_s)
        if _is_other_work(before, after) or not _is_crowded(machine, slower):
            kept.append(cut)
    return kept[1:]


def _step_s(rows: Sequence[Row]) -> float:
    stats = [row.stats["steady.step"] for row in rows]
    return sum(stat.mean * stat.count for stat in stats) / sum(stat.count for stat in stats)


def _is_other_work(before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Say whether a step computes something else; others stretch all of it, and its waits most."""
    old, new = (_work_shares(part) for part in (before, after))
    changed = math.fsum(abs(new.get(each, 0.0) - old.get(each, 0.0)) for each in {*old, *new})
    return changed >= MIN_OTHER_WORK


def _work_shares(rows: Sequence[Row]) -> dict[str, float]:
    whole = merged(rows)
    split = make_split(whole.stats, "steady") if whole else None
    phases = split.phases if split else {}
    work = {phase: seconds for phase, seconds in phases.items() if phase not in WAITS}
    total = math.fsum(work.values())
    return {phase: seconds / total for phase, seconds in work.items()} if total > 0 else {}


def _is_crowded(machine: Machine | None, rows: Sequence[Row]) -> bool:
    """Say whether others took so much of the machine that they set the pace of these steps."""
    cores = None if machine is None else shared_cores(machine)
    if machine is None or cores is None:
        return False
    times = _times(rows, ("steady", "first"))
    meanwhile = [row for row in machine.rows if _is_within(row, times)]
    busy, own = (_level(meanwhile, each) for each in ("cpu.machine_pct", "cpu.cores"))
    if busy is None or own is None:
        return False
    return crowd_of(cores, busy.mean, own.mean).sets_the_pace


def _points(rows: Sequence[Row]) -> list[list[float]]:
    """Return what a step of each row is made of, or only its length where that is not told."""
    splits = [make_split(row.stats, "steady") for row in rows]
    if all(split is not None and split.phases for split in splits):
        points = [[split.phases.get(each, 0.0) for each in PHASES] for split in splits if split]
    else:
        points = [[row.stats["steady.step"].mean] for row in rows]
    return _smooth(points)


def _smooth(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the medians of neighbours: a row or two in which the machine stood still vanish."""
    half = MIN_ROWS // 2
    windows = [points[max(0, place - half) : place + half + 1] for place in range(len(points))]
    return [[median(column) for column in zip(*window, strict=True)] for window in windows]


def _cut(points: Sequence[Sequence[float]], weights: Sequence[float]) -> int | None:
    """Return where a part is best cut in two; None if both would be much the same."""
    if len(points) < 2 * MIN_ROWS:
        return None
    sums = _sums(points, weights)
    best, least = None, math.inf
    for place in range(MIN_ROWS, len(points) - MIN_ROWS + 1):
        before, after = sums[place], sums[-1].less(sums[place])
        if min(before.weight, after.weight) >= MIN_STEPS:
            scatter = before.scatter + after.scatter
            best, least = (place, scatter) if scatter < least else (best, least)
    if best is None:
        return None
    old, new = sums[best].means, sums[-1].less(sums[best]).means
    apart = math.fsum(abs(each - was) for was, each in zip(old, new, strict=True))
    spread = math.sqrt(max(0.0, least) / sums[-1].weight)
    wanted = max(MIN_CHANGE * min(sum(old), sum(new)), MIN_SPREADS * spread)
    return best if apart >= wanted else None


@dataclass(frozen=True)
class _Sums:
    """Sums over points, each counted as often as it weighs."""

    weight: float
    values: Sequence[float]
    squares: float

    @property
    def means(self) -> list[float]:
        """The middle of the points."""
        return [value / self.weight for value in self.values]

    @property
    def scatter(self) -> float:
        """The squared distances from the middle."""
        return self.squares - sum(value * value for value in self.values) / self.weight

    def less(self, other: _Sums) -> _Sums:
        """Return the sums without those of the others."""
        values = [own - their for own, their in zip(self.values, other.values, strict=True)]
        return _Sums(self.weight - other.weight, values, self.squares - other.squares)


def _sums(points: Sequence[Sequence[float]], weights: Sequence[float]) -> list[_Sums]:
    """Return the sums over no point, over the first, over the first two, and so on."""
    sums = [_Sums(0.0, [0.0] * len(points[0]), 0.0)]
    for point, weight in zip(points, weights, strict=True):
        last = sums[-1]
        values = [value + weight * each for value, each in zip(last.values, point, strict=True)]
        squares = last.squares + weight * sum(each * each for each in point)
        sums.append(_Sums(last.weight + weight, values, squares))
    return sums


# -- what the machine did meanwhile --------------------------------------------------


def _times(rows: Sequence[Row], kinds: Sequence[str]) -> list[tuple[float, float]]:
    """Return when these kinds of steps were most of what went on."""
    times = []
    for row in rows:
        stats = [row.stats[f"{kind}.step"] for kind in kinds if f"{kind}.step" in row.stats]
        spent = sum(stat.count * stat.mean for stat in stats)
        if spent >= MOSTLY * (row.end_s - row.start_s):
            times.append((row.start_s, row.end_s))
    return times


def _levels(machine: Machine | None, times: Sequence[tuple[float, float]]) -> dict[str, Level]:
    if machine is None or not times:
        return {}
    rows = [row for row in machine.rows if _is_within(row, times)]
    found = {metric: level for metric in MACHINE_METRICS if (level := _level(rows, metric))}
    for metric in GPU_METRICS:
        level = _level(_all_gpus(rows, machine.gpus(), metric), metric)
        if level is not None:
            found[f"gpu.{metric}"] = level
    return found


def _is_within(row: Row, times: Sequence[tuple[float, float]]) -> bool:
    middle = (row.start_s + row.end_s) / 2
    return any(start <= middle < end for start, end in times)


def _all_gpus(rows: Sequence[Row], numbers: Sequence[int], metric: str) -> list[Row]:
    """Return one row for each GPU and reading, under the metric's own name."""
    return [
        Row(row.start_s, row.end_s, {metric: row.stats[name]})
        for row in rows
        for number in numbers
        if (name := f"gpu.{number}.{metric}") in row.stats
    ]


def _level(rows: Sequence[Row], metric: str) -> Level | None:
    known = [(row.end_s - row.start_s, row.stats[metric].mean) for row in rows
             if metric in row.stats]  # fmt: skip
    found = quantiles(rows, metric)
    total = math.fsum(seconds for seconds, _ in known)
    if found is None or total <= 0:
        return None
    return Level(math.fsum(seconds * mean for seconds, mean in known) / total, *found)


def _at(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the value at which the weights so far reach what is wanted."""
    so_far = 0.0
    for value, weight in points:
        so_far += weight
        if so_far >= wanted:
            return value
    return points[-1][0]
