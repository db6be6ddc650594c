"""A run as one HTML page: opens anywhere, asks the network for nothing, and runs only our own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from stoker.advise.finding import Finding
from stoker.advise.spent import Spent
from stoker.advise.stages import Stage
from stoker.report.accounting import Joined
from stoker.report.page.charts import Charts
from stoker.report.page.findings import render_cost, render_findings
from stoker.report.page.fleet import Fleet, find_gpus, find_paces
from stoker.report.page.gpus import render_gpus
from stoker.report.page.head import render_head, render_verdict, render_weakness, title_of
from stoker.report.page.lines import render_lines
from stoker.report.page.machines import render_machines
from stoker.report.page.made import render_made, render_reading
from stoker.report.page.markup import Html, joined, script_json, tag
from stoker.report.page.stages import make_bands, render_stages
from stoker.report.page.steps import render_step
from stoker.report.run import next_command
from stoker.watch.summary import Summary

HERE = Path(__file__).parent
# A time line must have a length.
SHORTEST_S = 0.001
# A line across, dots, and so on: phases that are told apart without colours.
HATCHES = {
    "data": "M-1 1l2-2M0 6l6-6M5 7l2-2",
    "h2d": "M1 1h1M4 4h1",
    "backward": "M0 3h6",
    "optimizer": "M3 0v6",
    "graph": "M0 3h6M3 0v6",
    "comm": "M-1 5l2 2M0 0l6 6M5-1l2 2",
}


def render_page(
    summary: Summary,
    findings: Sequence[Finding],
    stages: Sequence[Stage],
    cost: Spent | None = None,
    job: Joined | None = None,
) -> str:
    """Return the report of a run as a page that is whole in itself."""
    charts = Charts(max(summary.wall_s, SHORTEST_S), make_bands(stages))
    paces = find_paces(summary)
    machines = [pace.machine for pace in paces]
    fleet = Fleet(machines, charts.end_s)
    weakness = render_weakness(summary)
    # The buttons stay in sight as long as there are charts.
    timelines = tag(
        "div",
        _tools(),
        render_step(summary, charts),
        render_gpus(find_gpus(summary, paces), charts, machines, fleet),
        render_machines(paces, charts, fleet),
    )
    body = [
        _theme(),
        _patterns(),
        render_head(summary, job),
        tag(
            "main",
            weakness,
            render_verdict(summary),
            render_findings(findings, next_command(summary), weakness is not None),
            timelines,
            render_lines(summary),
            render_stages(stages, summary.wall_s),
            render_cost(cost),
            render_reading(),
            render_made(summary),
        ),
    ]
    return _document(title_of(summary), joined(body), script_json(charts.data()))


def _document(title: str, body: Html, data: Html) -> str:
    style = Html((HERE / "page.css").read_text("utf-8"))
    script = Html((HERE / "page.js").read_text("utf-8"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        # Otherwise a browser asks the server that the page came from for an icon.
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} – Stoker"),
        tag("style", style),
    )
    text = tag("html", head, _body(body, data, script), lang="en-GB")
    return f"<!doctype html>\n{text}\n"


def _body(body: Html, data: Html, script: Html) -> Html:
    return tag(
        "body",
        body,
        tag("script", data, type="application/json", id="data"),
        tag("script", script),
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _theme() -> Html:
    return tag("button", "dark / light", type="button", id="theme", hidden=True)


def _tools() -> Html:
    """Return the buttons that move all charts; only a script can make them work."""
    buttons = [
        tag("button", text, type="button", data_do=action, aria_label=label)
        for text, action, label in (
            ("+", "in", "zoom in"),
            ("−", "out", "zoom out"),
            ("←", "left", "earlier"),
            ("→", "right", "later"),
            ("whole run", "reset", "show the whole run"),
        )
    ]
    return tag(
        "div",
        tag(
            "div",
            "Charts: ",
            *buttons,
            role="group",
            aria_label="stretch of time shown by all charts",
        ),
        tag("span", id="window", role="status"),
        tag("span", id="moment", role="status"),
        id="tools",
        hidden=True,
    )


def _patterns() -> Html:
    """Return the patterns of the phases, which the style sheet refers to."""
    patterns = [
        tag(
            "pattern",
            tag("rect", width=6, height=6, class_=f"ground-{phase}"),
            tag("path", d=path, class_="hatch"),
            id=f"hatch-{phase}", width=6, height=6, patternUnits="userSpaceOnUse",
        )
        for phase, path in HATCHES.items()
    ]  # fmt: skip
    return tag("svg", tag("defs", *patterns), width=0, height=0, class_="defs", aria_hidden="true")
