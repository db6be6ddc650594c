"""Rows of a series as the points of a curve: bounded in number, with the lowest and the highest kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stoker.watch.series import Row, Stat

# More points than that nobody sees: a chart is some hundred pixels wide.
MAX_POINTS = 360

Value = float | None


@dataclass(frozen=True)
class Bucket:
    """A stretch of time and the rows that tell of it; none: a gap."""

    start_s: float
    end_s: float
    rows: Sequence[Row]

    @property
    def middle_s(self) -> float:
        """Where its point is drawn."""
        return (self.start_s + self.end_s) / 2


@dataclass(frozen=True)
class Curve:
    """One line of a chart: a value for each bucket, and the lowest and highest within it."""

    name: str
    middle: Sequence[Value]
    low: Sequence[Value]
    high: Sequence[Value]
    # What stands beside the name as long as nobody points at a moment.
    told: str = ""

    @property
    def has_values(self) -> bool:
        """Whether there is anything to draw."""
        return any(each is not None for each in self.middle)


def make_buckets(rows: Sequence[Row], end_s: float, most: int = MAX_POINTS) -> list[Bucket]:
    """Return rows as at most so many stretches of time, with gaps where nothing was recorded."""
    if len(rows) > most:
        return make_grid(rows, end_s, most)
    buckets: list[Bucket] = []
    for row in rows:
        last = buckets[-1] if buckets else None
        # A reading may come late; twice its own length is no longer late.
        if last and row.start_s - last.end_s > 2 * (row.end_s - row.start_s) + 2:
            buckets.append(Bucket(last.end_s, row.start_s, ()))
        buckets.append(Bucket(row.start_s, row.end_s, (row,)))
    return buckets


def make_grid(rows: Sequence[Row], end_s: float, count: int) -> list[Bucket]:
    """Return stretches of equal length from 0 to the end, each with the rows that reach into it."""
    width = end_s / count if end_s > 0 else 1.0
    held: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        first = min(count - 1, max(0, int(row.start_s / width)))
        last = min(count - 1, max(first, math.ceil(row.end_s / width) - 1))
        for index in range(first, last + 1):
            held[index].append(row)
    return [Bucket(i * width, (i + 1) * width, each) for i, each in enumerate(held)]


def make_curve(
    name: str,
    buckets: Sequence[Bucket],
    read: Callable[[Row], Stat | None],
    told: str = "",
    highest: Callable[[Stat], float] = lambda stat: stat.max,
) -> Curve:
    """Return what `read` finds in the rows of each bucket."""
    middle: list[Value] = []
    low: list[Value] = []
    high: list[Value] = []
    for bucket in buckets:
        stats = [stat for row in bucket.rows if (stat := read(row)) is not None]
        count = sum(stat.count for stat in stats)
        middle.append(sum(s.mean * s.count for s in stats) / count if count else None)
        low.append(min((lowest(stat) for stat in stats), default=None))
        high.append(max((highest(stat) for stat in stats), default=None))
    return Curve(name, middle, low, high, told)


def reading(metric: str) -> Callable[[Row], Stat | None]:
    """Return what finds a metric in a row."""
    return lambda row: row.stats.get(metric)


def lowest(stat: Stat) -> float:
    """Return about the lowest value of many: only mean, deviation and highest are kept of them."""
    return min(value for value, _ in spread_of(stat))


def usual_highest(stat: Stat) -> float:
    """Return about the highest of many without the very highest."""
    return max(value for value, _ in spread_of(stat)[:3])


def spread_of(stat: Stat) -> list[tuple[float, float]]:
    """Return values, each with its weight, that have about the mean, deviation and highest of many.

    The highest stands for itself, so that one long step does not stretch all the others; the
    rest are their mean and two as far from it on either side as their deviation asks for.
    """
    count, mean, std, highest = stat
    if count < 2 or not std > 0:
        return [(mean, float(count))]
    # Nothing that is measured here is below zero, but for a rounding error.
    least = min(0.0, mean)
    rest = max(least, (count * mean - highest) / (count - 1))
    square = (count * (std * std + mean * mean) - highest * highest) / (count - 1) - rest * rest
    away = math.sqrt(2 * max(0.0, square))
    below, above = max(least, rest - away), min(highest, rest + away)
    fourth = (count - 1) / 4
    return [(below, fourth), (rest, 2 * fourth), (above, fourth), (highest, 1.0)]


def step_quantiles(stats: Iterable[Stat], shares: Sequence[float]) -> list[float]:
    """Return the lengths that so many of the steps do not exceed.

    It is an estimate: of the steps of a row only mean, deviation and longest are kept.

    >>> step_quantiles([Stat(1, float(each), 0.0, float(each)) for each in range(101)], (0.05, 0.5))
    [5.0, 50.0]
    """
    weighted = sorted(part for stat in stats for part in spread_of(stat))
    whole = sum(weight for _, weight in weighted)
    found, passed, place = [], 0.0, 0
    for share in sorted(shares):
        while place < len(weighted) - 1 and passed + weighted[place][1] < share * whole:
            passed += weighted[place][1]
            place += 1
        found.append(weighted[place][0])
    return found
