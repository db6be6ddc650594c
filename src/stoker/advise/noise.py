"""How far off the mean of a run may be, and whether two means differ by more than that.

A run is one draw: its rows tell how much it swings within itself, but not what another start of
the same script would have given. Both go into the interval. Rows follow each other and are alike
in that, so they are gathered into at most twenty long blocks, and what likeness is left between
neighbouring blocks widens the interval (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_BLOCKS, MAX_BLOCKS = 5, 20
# Rows in a block, where there are enough: what hurries one second hurries the next.
ROWS_IN_BLOCK = 3
MAX_LIKENESS = 0.8
# Launches of the same program on a quiet machine differ by this much (benchmarks/overhead.md).
BETWEEN_RUNS = 0.01
# The 97.5th percentile of the normal distribution.
Z = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A mean over a run, how far off it may be, and how many blocks that rests on."""

    value: float
    error: float
    freedom: float


def estimate(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Return the mean of rows given as (weight, mean), and its error; None for too few of them."""
    number = min(MAX_BLOCKS, max(MIN_BLOCKS, len(pairs) // ROWS_IN_BLOCK))
    blocks = _blocks(pairs, number)
    if len(blocks) < MIN_BLOCKS:
        return None
    weight = sum(each for each, _ in blocks)
    value = sum(each * mean for each, mean in blocks) / weight
    offs = [mean - value for _, mean in blocks]
    squares = sum((each * off) ** 2 for (each, _), off in zip(blocks, offs, strict=True))
    likeness = _likeness(offs)
    widening = (1 + likeness) / (1 - likeness)
    size = len(blocks)
    error = math.sqrt(squares * size / (size - 1) * widening) / weight
    return Estimate(value, error, max(2.0, size / widening - 1))


def _blocks(pairs: Iterable[tuple[float, float]], number: int) -> list[tuple[float, float]]:
    """Gather rows that follow each other into blocks of about the same weight."""
    rows = [pair for pair in pairs if pair[0] > 0]
    total = sum(weight for weight, _ in rows)
    blocks: dict[int, list[tuple[float, float]]] = {}
    before = 0.0
    for weight, mean in rows:
        # By where its middle lies, so that a heavy row does not shift those after it.
        place = int(number * (before + weight / 2) / total)
        blocks.setdefault(place, []).append((weight, mean))
        before += weight
    return [_mean(block) for block in blocks.values()]


def _mean(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    weight = sum(each for each, _ in rows)
    return weight, sum(each * mean for each, mean in rows) / weight


def _likeness(offs: Sequence[float]) -> float:
    """Return how much a block is like the one before, 0 to 1 (the correlation at lag one)."""
    squares = sum(off * off for off in offs)
    if not squares:
        return 0.0
    products = sum(one * next_one for one, next_one in pairwise(offs))
    return min(MAX_LIKENESS, max(0.0, products / squares))


def difference(a: Estimate, b: Estimate, factor: float = 1.0) -> tuple[float, float]:
    """Return the ends of the 95 % interval of `b - factor × a`.

    What swings does so by a share of itself: it is how many times as much that is known so well,
    unless one of them is hardly more than nothing.
    """
    a = Estimate(factor * a.value, factor * a.error, a.freedom)
    if min(a.value - a.error, b.value - b.error) > 0:
        times = math.exp(spread(a, b))
        return b.value / times - a.value, b.value * times - a.value
    width = _width((a, b), (1.0, 1.0))
    middle = b.value - a.value
    return middle - width, middle + width


def spread(a: Estimate, b: Estimate) -> float:
    """Return half the 95 % interval of the logarithm of `b / a`: about the share that is noise."""
    return _width((a, b), (1 / a.value, 1 / b.value))


def _width(both: tuple[Estimate, Estimate], scales: tuple[float, float]) -> float:
    """Return half the 95 % interval of a difference, of which each side is scaled (Welch)."""
    pairs = list(zip(both, scales, strict=True))
    within = [(scale * each.error) ** 2 for each, scale in pairs]
    between = sum((BETWEEN_RUNS * scale * each.value) ** 2 for each, scale in pairs)
    variance = sum(within) + between
    shares = sum(square**2 / each.freedom for square, each in zip(within, both, strict=True))
    return _student(variance**2 / shares if shares > 0 else math.inf) * math.sqrt(variance)


def _student(freedom: float) -> float:
    """Return the 97.5th percentile of Student's distribution, by its expansion about the normal.

    >>> round(_student(4.0), 1), round(_student(10.0), 2), round(_student(math.inf), 2)
    (2.8, 2.23, 1.96)
    """
    z = Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
