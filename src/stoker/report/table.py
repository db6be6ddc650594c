"""Rows into aligned, wrapped text."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

# Wide enough for a sentence, narrow enough to be read.
MAX_WIDTH = 110


# A file or a pipe has no edge: one line a row, for grep and awk.
NO_EDGE = 10_000


def width() -> int:
    """Return how wide text may be: the terminal's width, if somebody is looking at one."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return NO_EDGE
    return max(60, min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns))


def render_table(rows: Sequence[Sequence[str]], gap: str = "  ") -> str:
    """Return rows as columns; the last column is wrapped under itself."""
    if not rows:
        return ""
    columns = list(zip(*(row[:-1] for row in rows), strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for row in rows:
        head = gap.join(cell.ljust(size) for cell, size in zip(row[:-1], widths, strict=True))
        start = head + gap if head else ""
        lines.append(
            textwrap.fill(
                row[-1],
                width(),
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            )
            if row[-1]
            else head.rstrip()
        )
    return "\n".join(lines)


def render_advice(what: str, why: str, fix: str, label: str) -> str:
    """Return what / why / fix, as errors print them."""
    return f"{label}: {what}\n  why: {why}\n  fix: {fix}"
