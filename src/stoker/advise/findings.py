"""All findings of a run, the one with the most to win first."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.finding import LEVELS, Finding, Rule
from stoker.advise.rules import RULES
from stoker.watch.summary import Summary


def find(summary: Summary, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return what is worth changing about a run."""
    found = [finding for rule in rules if (finding := rule(summary)) is not None]
    return sorted(found, key=lambda each: (LEVELS.index(each.level), -each.weight))
