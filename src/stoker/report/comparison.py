"""Two runs side by side, as text for people and as JSON for programs. docs/compare.md tells the keys."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from stoker.advise.comparison import Comparison, Figure
from stoker.report.run import ending, run_name
from stoker.report.table import MAX_WIDTH, clipped, columns, width
from stoker.units import plural, printable, render_part, render_seconds
from stoker.watch.series import known_number
from stoker.watch.summary import Summary

# Raised when a key changes its meaning or goes away; keys may be added.
FORMAT = 1
MAX_SETTINGS = 20
# A command or a path that is longer says no more at this place.
MAX_CELL = 44


def render_comparison(comparison: Comparison, edge: int | None = None) -> str:
    """Return both runs, which is faster, what was set differently, and every figure."""
    edge = min(width() if edge is None else edge, MAX_WIDTH)
    sections = [
        [clipped(f"{name}  {_run(run)}", edge) for name, run in _both(comparison)],
        textwrap.wrap(printable(comparison.verdict), edge),
        _settings(comparison),
        _figures(comparison),
        textwrap.wrap("note: " + "; ".join(map(printable, comparison.notes)), edge)
        if comparison.notes
        else [],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def next_command(comparison: Comparison) -> str:
    """Return the command that is worth typing next: the report of the run that came second."""
    return f"stoker report {run_name(comparison.b.folder)}"


def _both(comparison: Comparison) -> tuple[tuple[str, Summary], tuple[str, Summary]]:
    return ("A", comparison.a), ("B", comparison.b)


def _run(summary: Summary) -> str:
    steps = max((rank.steps for rank in summary.ranks), default=0)
    parts = [ending(summary), render_seconds(summary.wall_s), plural(steps, "step")]
    if len(summary.ranks) > 1:
        parts.append(summary.count_of(len(summary.ranks)))
    return f"{summary.run.get('id') or summary.folder.name}: {', '.join(parts)}"


def _settings(comparison: Comparison) -> list[str]:
    told = comparison.settings
    if not told:
        return ["settings: the same in both, as far as they were recorded"]
    rows = [["set differently", "A", "B"]]
    for each in told[:MAX_SETTINGS]:
        cells = [each.key, each.a or "not told", each.b or "not told"]
        rows.append([f"  {_cut(cells[0])}", *(_cut(cell) for cell in cells[1:])])
    more = len(told) - MAX_SETTINGS
    return [
        *columns(rows, range(3)),
        *([f"  and {more} more, with --json"] if more > 0 else []),
    ]


def _cut(text: str) -> str:
    """Keep the end: of commands and paths that differ, the start is often the same."""
    text = printable(text)
    return text if len(text) <= MAX_CELL else "…" + text[1 - MAX_CELL :]


def _figures(comparison: Comparison) -> list[str]:
    rows = [["figure", "A", "B", "change", "95 % interval", ""]]
    for figure in comparison.figures:
        if figure.a is None and figure.b is None:
            continue
        change = "" if figure.change is None else _percent(figure.change)
        rows.append(
            [f"  {figure.key}", _value(figure, figure.a), _value(figure, figure.b), change,
             _interval(figure), _judged(figure)]
        )  # fmt: skip
    return columns(rows) if len(rows) > 1 else []


def _value(figure: Figure, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "unknown"
    if figure.unit == "s":
        largest = max(each for each in (figure.a, figure.b) if each is not None)
        return render_seconds(value) if largest >= 120 else _three(value, largest)
    return f"{value:.3g} {figure.unit}".rstrip() if value < 1000 else f"{value:,.0f} {figure.unit}"


def _three(seconds: float, largest: float) -> str:
    """Write seconds with three digits, in the unit that suits the larger of two."""
    unit = render_part(largest, largest).split()[1]
    return f"{seconds * {'s': 1, 'ms': 1e3, 'µs': 1e6}[unit]:.3g} {unit}"


def _percent(share: float) -> str:
    if abs(share) >= 10:
        return f"× {share + 1:.0f}"
    return f"{100 * share:+.0f} %" if abs(share) >= 0.0995 else f"{100 * share:+.1f} %"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None or not figure.a or figure.a < 0:
        return ""
    # No figure falls by more than all of itself, as far as its error may reach.
    low, high = (max(-1.0, each / figure.a) for each in (figure.low, figure.high))
    return f"{_percent(low)} to {_percent(high)}"


def _judged(figure: Figure) -> str:
    if figure.judgement != "not judged":
        return figure.judgement
    return "one number each" if figure.key in ("start-up", "whole time") else "not judged"


# -- for programs -----------------------------------------------------------------------


def comparison_json(comparison: Comparison, limit: float | None) -> dict[str, Any]:
    """Return the comparison as plain values; docs/compare.md tells what each key means."""
    value: dict[str, Any] = {"format": FORMAT}
    for name, summary in _both(comparison):
        value[name.lower()] = {
            "id": str(summary.run.get("id") or summary.folder.name),
            "folder": str(summary.folder),
            "state": summary.state,
            "ending": ending(summary),
            "num_ranks": len(summary.ranks),
            "num_machines": len(summary.machines),
        }
    slowdown = None if limit is None else comparison.slower_by(limit)
    return {
        **value,
        "verdict": comparison.verdict,
        "compared": comparison.of,
        "limit": limit,
        "is_slower": None if slowdown is None else slowdown.is_slower,
        "settings": [{"key": each.key, "a": each.a, "b": each.b} for each in comparison.settings],
        "figures": [_figure_json(figure) for figure in comparison.figures],
        "notes": list(comparison.notes),
        "next": next_command(comparison),
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    numbers = {
        "a": figure.a, "b": figure.b, "change": figure.change, "low": figure.low, "high": figure.high,
    }  # fmt: skip
    known = {name: known_number(value) for name, value in numbers.items()}
    return {"key": figure.key, "unit": figure.unit, **known, "judgement": figure.judgement}
