"""The axes of a chart: round numbers, round times."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Nothing that is measured is smaller; what is divided by it would have no end.
SMALLEST = 1e-9
TICKS = 5
TICK_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800,
                21600, 43200, 86400)  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """What the values of a chart are: their unit, the top of the chart, and a limit within it."""

    unit: str
    top: float | None = None
    limit: float | None = None
    limit_name: str = ""


def nice_top(value: float) -> float:
    """Return a round number that is not below the value.

    >>> nice_top(0.7), nice_top(118), nice_top(0)
    (0.8, 120.0, 1.0)
    """
    if not SMALLEST < value < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
    return next(float(f"{step * size:.3g}") for step in steps if step * size >= value * 0.9999)


def tick_times(end_s: float) -> tuple[list[float], float]:
    """Return round times from the start to the end, and the step from one to the next.

    >>> tick_times(91)
    ([0, 30, 60, 90], 30)
    """
    wanted = end_s / TICKS
    step: float = next((each for each in TICK_STEPS_S if each >= wanted), TICK_STEPS_S[-1])
    while step < wanted:
        step *= 2
    return [index * step for index in range(int(end_s / step) + 1)], step


def render_clock(time_s: float, step_s: float) -> str:
    """Write a time since the start of the run as short as the step allows.

    >>> render_clock(45, 15), render_clock(90, 30), render_clock(5400, 900), render_clock(2.5, 0.5)
    ('45 s', '1:30', '1:30 h', '2.5 s')
    """
    if step_s >= 86400:
        return f"{time_s / 86400:g} d"
    if time_s < 60 and step_s < 60:
        return f"{time_s:.1f} s" if step_s < 1 else f"{time_s:.0f} s"
    minutes, seconds = divmod(time_s, 60)
    if step_s >= 900:
        return f"{int(minutes) // 60}:{int(minutes) % 60:02d} h"
    clock = f"{int(minutes) // 60}:{int(minutes) % 60:02d}" if minutes >= 60 else f"{int(minutes)}"
    return f"{clock}:{seconds:04.1f}" if step_s < 1 else f"{clock}:{int(seconds):02d}"
