"""Time lines in numbers: mean and quantiles of the whole, and a few stretches as a table."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.stages import QUANTILES, quantiles
from stoker.report.page.axis import render_clock
from stoker.report.page.markup import Html, joined, table, tag
from stoker.report.page.points import make_curve, make_grid, reading
from stoker.units import render_number
from stoker.watch.summary import Machine

TABLE_ROWS = 10
CAPTION = "Mean; below it what 10 %, 50 % and 90 % of the time stay under, and the highest"


def render_cell(machine: Machine, metric: str) -> Html:
    """Return mean, quantiles and highest of a metric over the whole run."""
    whole, found = machine.stats.get(metric), quantiles(machine.rows, metric, QUANTILES)
    if whole is None or found is None:
        return tag("span", "unknown", class_="unknown")
    low, middle, high = (render_number(each) for each in found)
    small = tag("small", f"{low} · {middle} · {high}, max {render_number(whole.max)}")
    return joined([render_number(whole.mean), tag("br"), small])


def time_table(
    caption: str, machine: Machine, columns: Sequence[tuple[str, str]], end_s: float
) -> Html:
    """Return a few stretches of the run with the mean of each metric, folded away."""
    count = max(1, min(TABLE_ROWS, len(machine.rows)))
    buckets = make_grid(machine.rows, end_s, count)
    known = [each for each in columns if each[1] in machine.stats]
    curves = [make_curve(title, buckets, reading(metric)) for title, metric in known]
    step = end_s / count
    rows: list[list[str]] = []
    for index, bucket in enumerate(buckets):
        values = [curve.middle[index] for curve in curves]
        cells = ["–" if value is None else render_number(value) for value in values]
        span = f"{render_clock(bucket.start_s, step)} – {render_clock(bucket.end_s, step)}"
        rows.append([span, *cells])
    head = ["time", *(title for title, _ in known)]
    return tag(
        "details",
        tag("summary", f"{caption}, as a table"),
        table(f"{caption}: means", head, rows, "numbers"),
    )
