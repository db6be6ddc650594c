"""All findings of a run, the one with the most to win first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stoker.advise.crowd import crowded
from stoker.advise.finding import LEVELS, Finding, Rule
from stoker.advise.rules import RULES
from stoker.watch.summary import Summary


def find(summary: Summary, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return what is worth changing about a run."""
    found = [finding for rule in rules if (finding := rule(summary)) is not None]
    if crowded(summary.machines):
        found = [_less_sure(each) for each in found]
    return sorted(found, key=lambda each: (LEVELS.index(each.level), -each.weight))


def _less_sure(finding: Finding) -> Finding:
    """Return a finding of a time in which others had the cores: a gain may be theirs to give."""
    is_sure = finding.gain is not None and finding.confidence == "high"
    return replace(finding, confidence="medium") if is_sure else finding
