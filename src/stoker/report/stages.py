"""The stages of a run as text: when each began, how long it took, and its steps."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.stages import Stage
from stoker.report.table import clipped, columns
from stoker.units import render_number, render_seconds

MAX_STAGES = 8
# What takes less than this of the run is not worth a row.
LEAST_SHARE = 0.01
LEVELS = (("CPU cores", "cpu.cores"), ("GPU load %", "gpu.duty_pct"), ("SM %", "gpu.sm_pct"))


def render_stages(stages: Sequence[Stage], edge: int) -> list[str]:
    """Return a table of the stages; nothing for a run that did the same all the time."""
    whole_s = sum(stage.seconds for stage in stages)
    stages = [stage for stage in stages if stage.seconds >= LEAST_SHARE * whole_s]
    if sum(stage.name != "start-up" for stage in stages) < 2:
        return []
    known = [(title, name) for title, name in LEVELS if any(name in each.levels for each in stages)]
    rows = [["stages", "from", "takes", "steps", "one step", *(title for title, _ in known), ""]]
    for stage in stages[:MAX_STAGES]:
        rows.append(
            [
                f"  {stage.name}",
                render_seconds(stage.start_s) if stage.start_s else "0 s",
                render_seconds(stage.seconds),
                f"{stage.steps:,}" if stage.steps else "",
                render_seconds(stage.step.mean) if stage.step else "",
                *(_level(stage, name) for _, name in known),
                "",
            ]
        )
    text = columns(rows)
    if len(stages) > MAX_STAGES:
        text.append(f"  and {len(stages) - MAX_STAGES} more, with --json")
    return [clipped(row, edge) for row in text]


def _level(stage: Stage, name: str) -> str:
    level = stage.levels.get(name)
    return "" if level is None else render_number(level.mean)
