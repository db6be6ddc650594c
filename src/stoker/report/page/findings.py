"""Findings and cost on the page."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.finding import Finding
from stoker.advise.spent import Spent
from stoker.report.findings import CLASSES, render_gain
from stoker.report.page.markup import Child, Html, code, pairs, section, sentence, table, tag
from stoker.units import plural, render_number, render_share

MAX_FINDINGS = 40
SIGNS = {"problem": "▲", "advice": "◆", "information": "ℹ"}
CONFIDENCE = {
    "high": "high: measured directly",
    "medium": "medium: follows from what was measured",
    "low": "low: a likely cause; try it before relying on it",
}


def render_findings(findings: Sequence[Finding], next_command: str, is_weak: bool) -> Html:
    """Return what is worth changing, each with its reason, its fix and what that would bring."""
    shown = findings[:MAX_FINDINGS]
    left = len(findings) - len(shown)
    return section(
        "Findings",
        tag("p", _intro(findings, is_weak)),
        tag("ol", *(tag("li", _article(each)) for each in shown), class_="findings")
        if shown
        else None,
        tag("p", f"And {plural(left, 'more finding')}: stoker report --json.") if left else None,
        tag("p", "Worth typing next: ", code(next_command, can_copy=True)),
        id_="findings",
    )


def render_cost(cost: Spent | None) -> Html | None:
    """Return what the run has cost and what part of it bought nothing."""
    if cost is None or not cost.total > 0:
        return None
    share = min(1.0, max(0.0, cost.wasted / cost.total))
    sums = pairs(
        [
            ("in all", f"{render_number(cost.total)} {cost.unit}"),
            ("bought nothing", f"{render_number(cost.wasted)} {cost.unit}, {render_share(share)}"),
        ]
    )
    return section("Cost", sums, tag("p", f"How: {cost.how}."), id_="cost")


def _intro(findings: Sequence[Finding], is_weak: bool) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    asking = sum(finding.level != "information" for finding in findings)
    if not asking:
        if is_weak:
            return "Nothing to change was found; the data may be too weak to find it."
        return "Nothing to change was found."
    things = plural(asking, "thing")
    first = "The one with the most to win comes first." if asking > 1 else ""
    what = f"{things} worth changing" + (f", {problems} of weight" if problems else "")
    return f"{what}. {first}".strip()


def _article(finding: Finding) -> Html:
    level = tag("span", f"{SIGNS[finding.level]} {finding.level}", class_=f"level {finding.level}")
    figures = None
    if finding.figures:
        rows = [[name, _figure(value)] for name, value in finding.figures.items()]
        figures = tag(
            "details",
            tag("summary", "The numbers behind it"),
            table("Numbers behind the finding", ["number", "value"], rows),
        )
    facts: list[tuple[str, Child]] = [
        ("why", sentence(finding.why)),
        ("fix", sentence(finding.fix, can_copy=True)),
        ("expected gain", None if finding.gain is None else render_gain(finding.gain)),
        ("unused", _waste(finding)),
        (
            "safety",
            None if finding.safety is None else f"{finding.safety}: {CLASSES[finding.safety]}",
        ),
        ("confidence", CONFIDENCE[finding.confidence]),
    ]
    return tag(
        "article", tag("h3", level, " ", sentence(finding.what)), pairs(facts), figures,
        id=f"finding-{finding.key}",
    )  # fmt: skip


def _waste(finding: Finding) -> str | None:
    waste = finding.waste
    return None if waste is None else f"{waste.what}: {render_share(waste.share)} of the cost"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else render_number(value)
