"""Figures of repeated measurements: their middle, their spread, how two compare, and tables of them."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Enough that the ends of a 95 % interval no longer move in the digits that are shown.
RESAMPLES = 2000
# Fixed, so that the same figures give the same interval.
SEED = 0


class Spread(NamedTuple):
    """What some repeats of one measurement look like."""

    repeats: int
    median: float
    min: float
    max: float
    low: float
    high: float


class Interval(NamedTuple):
    """A figure and the range that holds it in 95 of 100 resamples of the repeats."""

    value: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median, the ends and the quartiles."""
    low = high = statistics.median(values)
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(len(values), statistics.median(values), min(values), max(values), low, high)


def median_of(values: Sequence[float]) -> Interval:
    """Return the median of repeats, resampled."""
    draw = random.Random(SEED)
    drawn = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(
        statistics.median(values), drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]
    )


def difference_of(values: Sequence[float], base: Sequence[float]) -> Interval:
    """Return the difference of the medians; what was taken side by side is resampled so."""
    pairs = list(zip(values, base, strict=False))
    draw = random.Random(SEED)
    drawn = sorted(_difference(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return Interval(
        _difference(pairs), drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]
    )


def _difference(pairs: Sequence[tuple[float, float]]) -> float:
    ours = statistics.median([each for each, _ in pairs])
    return ours - statistics.median([each for _, each in pairs])


def render_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_results(path: Path, results: Mapping[str, Any], page: str) -> None:
    """Write the figures, and beside them the page that shows them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    path.with_suffix(".md").write_text(page)
    print(page)
    print(f"wrote {path} and {path.with_suffix('.md')}")
