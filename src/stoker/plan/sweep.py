"""A sweep: the same script with every combination of some options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from stoker.errors import UsageError
from stoker.plan.quote import quote

# Slurm's own default for the largest array is 1,001.
MAX_POINTS = 100_000

Point = tuple[str, ...]


def parse_sweep(texts: Sequence[str]) -> list[Point]:
    """Return the words of each point: `lr=0.1,0.01` and `seed=1,2` make four.

    >>> parse_sweep(["lr=0.1,0.01", "seed=1"])
    [('--lr=0.1', '--seed=1'), ('--lr=0.01', '--seed=1')]
    """
    axes = [_axis(text) for text in texts]
    names = [axis[0].partition("=")[0] for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{twice} is swept twice",
            why="each option has one list of values",
            fix=f"put all values into one --sweep {twice.lstrip('-')}=A,B",
        )
    points = list(product(*axes))
    if len(points) > MAX_POINTS:
        raise UsageError(
            f"the sweep has {len(points):,} points",
            why="that is more than any site's largest array",
            fix="sweep fewer values, or submit it in parts",
        )
    return points


def render_points(points: Sequence[Point]) -> str:
    """Return a file with the words of each point, quoted for bash, a line each."""
    return "".join(" ".join(quote(word) for word in point) + "\n" for point in points)


def _axis(text: str) -> list[str]:
    name, equals, values = text.partition("=")
    option = name if name.startswith("-") else f"--{name}"
    if not equals or not re.fullmatch(r"--?[A-Za-z_][\w.:/-]*", option):
        raise UsageError(
            f"`{text}` is no sweep",
            why="it is the name of an option of your script, and its values",
            fix="--sweep lr=0.1,0.01",
        )
    return [f"{option}={value}" for value in values.split(",")]
