"""Rows into aligned, wrapped text."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Sequence

from stoker.units import printable, render_number

# Wide enough for a sentence, narrow enough to be read.
MAX_WIDTH = 110


# A file or a pipe has no edge: one line a row, for grep and awk.
NO_EDGE = 10_000


def width(stream: int = 1) -> int:
    """Return how wide text may be: the terminal's width, if somebody is looking at one.

    `stream` is where it goes, 1 for standard output and 2 for standard error.
    """
    told = os.environ.get("COLUMNS", "")
    if not os.isatty(stream) and not told:
        return NO_EDGE
    columns = int(told) if told.isdecimal() else 0
    if not columns and os.isatty(stream):
        columns = os.get_terminal_size(stream).columns
    return max(60, min(MAX_WIDTH, columns or MAX_WIDTH))


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


def render_known(value: float | None) -> str:
    """Write a number, or `unknown`."""
    return "unknown" if value is None or not math.isfinite(value) else render_number(value)


def render_bar(share: float, size: int) -> str:
    """Return a share as a bar of that many characters.

    >>> render_bar(0.5, 4), render_bar(0.3, 4)
    ('██  ', '█▎  ')
    """
    share = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    eighths = round(share * size * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(size)


def clipped(text: str, size: int) -> str:
    """Return text that fits on a line of that size."""
    text = printable(text).rstrip()
    return text if len(text) <= size else text[: max(0, size - 1)] + "…"


def columns(rows: Sequence[Sequence[str]], left: Iterable[int] | None = None) -> list[str]:
    """Return rows as aligned lines: numbers to the right, the first and the last column left."""
    if not rows:
        return []
    kept_left = {0, len(rows[0]) - 1} if left is None else set(left)
    sizes = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(size) if index in kept_left else cell.rjust(size)
            for index, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ).rstrip()
        for row in rows
    ]


def digits(value: float) -> int:
    """Return how many digits after the point a number of this size deserves."""
    size = abs(value)
    return 0 if not size < 100 else 1 if size >= 10 else 2 if size >= 0.05 or not size else 3
