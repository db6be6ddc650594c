"""Every rule, in the order of their codes."""

from __future__ import annotations

from stoker.check.findings import Rule
from stoker.check.rules import (
    environment,
    gpus,
    header,
    launch,
    limits,
    numbers,
    rendezvous,
    site,
    survival,
    values,
)

RULES: tuple[Rule, ...] = (
    *header.RULES,
    *values.RULES,
    *numbers.RULES,
    *gpus.RULES,
    *launch.RULES,
    *rendezvous.RULES,
    *survival.RULES,
    *environment.RULES,
    *limits.RULES,
    *site.RULES,
)
