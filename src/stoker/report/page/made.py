"""The end of the page: how to read it, and how it was made."""

from __future__ import annotations

import stoker
from stoker.report.machines import cost_s
from stoker.report.page.markup import Html, code, pairs, section
from stoker.report.run_json import FORMAT
from stoker.units import plural, render_seconds, render_share
from stoker.watch.folder import FORMAT as FOLDER_FORMAT
from stoker.watch.summary import Summary

READING = (
    ("One step", "The phases add up to the step: each moment belongs to one of them. Waiting that the "
     "device does not notice is not in it; it is named as hidden."),
    ("Load and SM", "Load is the share of time in which anything at all ran on the GPU; one small kernel "
     "is enough for 100 %. SM is the share of its multiprocessors that was busy, and the number to "
     "believe where the GPU tells it. Tensor is the share of time in which the tensor cores worked."),
    ("Curves", "A line is the mean of a stretch of time, the shade behind it reaches from the lowest to "
     "the highest. Of a long run the older readings are kept as mean, standard deviation and highest: "
     "there the lowest and the quantiles are estimates. A gap in a "
     "line: nothing was recorded. A reading far above all others may leave the chart; its value is "
     "shown when you point at it. Of the lengths of steps the shade leaves out the longest of each stretch."),
    ("Charts", "They all show the same stretch of time. Drag over a chart to zoom in; the buttons, or "
     "+, − and 0 on a chart that has the focus, do the same. The wheel zooms on a chart that has the "
     "focus, or with Ctrl. Point at a chart, or use ← and →, to see all values at that moment; "
     "Shift with ← and → moves the window."),
    ("Mean and quantiles", "A GPU that is busy half of the time and one that is half busy have the same "
     "mean: the quantiles tell them apart."),
    ("Expected gain", "How many times as fast the whole run would be: the range that we expect, and what "
     "it cannot exceed, since the cause would then cost nothing."),
    ("Safety", "A: results unchanged. B: the same mathematics in another order, rounding or random "
     "stream. C: changes the training; compare results before you rely on it."),
    ("Unknown", "It was not measured. It is never 0."),
)  # fmt: skip


def render_reading() -> Html:
    """Return how to read the page."""
    return section("How to read this page", pairs(READING), id_="reading")


def render_made(summary: Summary) -> Html:
    """Return by what and from what the page was made."""
    run = summary.run
    return section(
        "How it was made",
        pairs(
            [
                ("recorded by", str(run.get("made_by") or "unknown")),
                ("page by", f"stoker {stoker.__version__}"),
                ("made with", code("stoker report --html", can_copy=False)),
                ("from", code(str(summary.folder))),
                ("working folder", code(str(run["cwd"])) if run.get("cwd") else "unknown"),
                ("Python", str(run.get("python") or "unknown")),
                ("recording cost", _cost(summary)),
                ("records", f"{plural(len(summary.machines), 'machine')}, {summary.count_of(len(summary.ranks))}"),
                ("schema", f"run folder {FOLDER_FORMAT}, report {FORMAT}"),
            ]
        ),
        id_="made",
    )  # fmt: skip


def _cost(summary: Summary) -> str:
    cost = cost_s(summary)
    if cost is None or not summary.wall_s > 0:
        return "unknown"
    whose = "ranks" if summary.is_ranked else "processes"
    together = f", all {whose} together" if len(summary.ranks) > 1 else ""
    share = render_share(cost / summary.wall_s)
    return f"{render_seconds(cost)} of CPU time: {share} of one core{together}"
