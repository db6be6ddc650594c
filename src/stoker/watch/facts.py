"""Fact files: what is known of one rank or machine, of a rank with the long lists of its lines last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# How a rank's file goes on after its facts: by far the most of it are lines.
LISTS = b',\n "lines": ['
# More than comes before them, as a rule.
BEGIN_BYTES = 1 << 14
# A beginning with these has all that is known beside the lists.
KNOWN = {"facts", "notes", "cost_s"}


def read_facts(path: Path, *, is_checked: bool = False) -> tuple[Mapping[str, Any], int]:
    """Return a file without its long lists, as far as that is the quicker way, and its damage: 0 or 1.

    `is_checked`: all of it is read, for damage; what comes before the lists is told nevertheless.
    """
    try:
        with path.open("rb") as file:
            data = file.read() if is_checked else file.read(BEGIN_BYTES)
            begin = None if is_checked else _read_begin(data)
            if begin is not None:
                return begin, 0
            data += file.read()
    except OSError:
        return {}, 0
    whole = _read_object(data)
    return (whole, 0) if whole else (_read_begin(data) or {}, 1)


def _read_begin(data: bytes) -> Mapping[str, Any] | None:
    """Return what comes before the lists; None if that is not all there is besides."""
    begin, lists, _ = data.partition(LISTS)
    value = _read_object(begin + b"}") if lists else {}
    return value if value.keys() >= KNOWN else None


def _read_object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
