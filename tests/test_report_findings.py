"""Findings as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.advise.finding import Finding, Gain, Waste
from stoker.advise.findings import find
from stoker.report.findings import render_findings, render_gain, render_promise
from stoker.watch.summary import Summary


def finding(level: str = "problem", key: str = "loader-workers", **changes: object) -> Finding:
    told = {
        "what": "The loader has too few workers.",
        "why": "A batch takes 80 ms to load.",
        "fix": "DataLoader(num_workers=4)",
        "confidence": "high",
        **changes,
    }
    return Finding(key, level, **told)  # type: ignore[arg-type]


SLOW = finding(gain=Gain(1.5, 2.0, 2.5, 1.7), safety="B")
SMALL = finding("advice", "pin", gain=Gain(1.0, 1.1, 1.2, 1.05), safety="A")
NOTE = finding("information", "note")
WASTE = finding("problem", "cpus", waste=Waste("14 of 16 CPUs", 0.6))


def test_the_most_to_win_comes_first_and_information_last() -> None:
    rules = [lambda _, each=each: each for each in (NOTE, SMALL, SLOW, None, WASTE)]
    summary = Summary(Path("run"), {}, "ended", 1.0, (), ())
    assert find(summary, rules) == [WASTE, SLOW, SMALL, NOTE]


def test_a_finding_says_what_why_fix_and_gain() -> None:
    text = render_findings([SLOW], 3, 100)
    assert text == [
        "what to change, the most to win first",
        "  problem: The loader has too few workers.",
        "     why   A batch takes 80 ms to load.",
        "     fix   DataLoader(num_workers=4)",
        "     gain  the run 1.5–2× as fast, 2.5× at most; the same mathematics, rounded or ordered otherwise;",
        "           confidence high",
    ]


def test_more_than_are_shown_are_counted() -> None:
    text = render_findings([SLOW, SMALL, NOTE], 1, 100)
    assert text[-1] == "  and 2 more findings: stoker report --findings 3"
    assert not render_findings([], 3, 100)


def test_waste_is_told_with_its_share_and_information_promises_nothing() -> None:
    assert render_promise(WASTE) == "14 of 16 CPUs unused (60 % of the cost); confidence high"
    assert render_promise(NOTE) == ""


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain(1.0, 1.0, 1.0, 1.0), "the run 1× as fast, 1× at most"),
        (Gain(1.234, 1.236, 12.4, 1.235), "the run 1.23–1.24× as fast, 12× at most"),
    ],
)
def test_gains_have_no_more_digits_than_they_deserve(gain: Gain, text: str) -> None:
    assert render_gain(gain) == text


@pytest.mark.parametrize(
    "numbers",
    [(0.9, 1.1, 1.2, 1.0), (1.2, 1.1, 1.3, 1.1), (1.1, 1.4, 1.3, 1.2), (1.1, 1.3, 1.4, 1.5)],
)
def test_a_gain_that_contradicts_itself_cannot_be_made(numbers: tuple[float, ...]) -> None:
    with pytest.raises(AssertionError):
        Gain(*numbers)
