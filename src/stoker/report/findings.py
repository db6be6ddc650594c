"""Findings as text: what, why, fix, and what it would bring."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from stoker.advise.finding import Finding, Gain
from stoker.report.table import clipped
from stoker.units import plural, printable, render_share

# From here on a range tells more of the machine than of the fix: what is expected is told first.
WORTH_NOISE = 0.25
CLASSES = {
    "A": "results unchanged",
    "B": "the same mathematics, rounded or ordered otherwise",
    "C": "changes the training",
}


def render_findings(findings: Sequence[Finding], most: int, edge: int) -> list[str]:
    """Return the findings, the one with the most to win first; information comes last."""
    told = list(findings[:most])
    if not told:
        return []
    text = [clipped("what to change, the most to win first", edge)]
    for number, finding in enumerate(told, 1):
        head = f"{number}. " if len(told) > 1 else ""
        text += _wrapped(f"  {head}{finding.level}: ", finding.what, edge)
        text += _wrapped("     why   ", finding.why, edge)
        text += _wrapped("     fix   ", finding.fix, edge)
        gain = render_promise(finding)
        if gain:
            text += _wrapped("     gain  ", gain, edge)
    left = len(findings) - len(told)
    if left > 0:
        text.append(
            f"  and {plural(left, 'more finding')}: stoker report --findings {len(findings)}"
        )
    return text


def render_promise(finding: Finding) -> str:
    """Return what a fix brings, how safe it is and how sure we are; empty for information."""
    parts = []
    if finding.gain is not None:
        parts.append(render_gain(finding.gain))
    if finding.waste is not None:
        parts.append(
            f"{finding.waste.what} unused ({render_share(finding.waste.share)} of the cost)"
        )
    if not parts:
        return ""
    if finding.safety is not None:
        parts.append(CLASSES[finding.safety])
    return "; ".join([*parts, f"confidence {finding.confidence}"])


def render_gain(gain: Gain) -> str:
    """Return a gain as people say it.

    >>> render_gain(Gain(1.4, 1.8, 2.0, 1.6))
    'the run 1.4–1.8× as fast, 2× at most'
    >>> render_gain(Gain(1.0, 2.4, 2.6, 1.07, noise=1.3))
    'the run about 1.07× as fast (1–2.4×, as two runs of it differ by up to 2.3×)'
    """
    low, high = _times(gain.low), _times(gain.high)
    span = low if low == high else f"{low}–{high}"
    if gain.noise < WORTH_NOISE:
        return f"the run {span}× as fast, {_times(gain.ceiling)}× at most"
    noise = f"as two runs of it differ by up to {_times(1 + gain.noise)}×"
    return f"the run about {_times(gain.expected)}× as fast ({span}×, {noise})"


def _times(value: float) -> str:
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _wrapped(lead: str, text: str, edge: int) -> list[str]:
    return textwrap.wrap(
        printable(text), edge, initial_indent=lead, subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    )  # fmt: skip
