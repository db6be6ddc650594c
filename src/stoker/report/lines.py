"""The slowest lines of a run, with the text of each where its file is still what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.advise.source import Source
from stoker.advise.verdict import slowest_rank
from stoker.report.table import clipped, columns
from stoker.units import printable, render_number, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Line, Rank, Summary

MIN_SOURCE_WIDTH = 12


def render_lines(summary: Summary, count: int, edge: int) -> list[str]:
    """Return a table of the slowest lines of the slowest rank, and of its loader workers."""
    rank = slowest_rank(summary)
    if rank is None or count <= 0:
        return []
    workers = heaviest(rank.worker_lines, count // 3 if rank.lines else count)
    own = heaviest(counted(rank), count - len(workers))
    home = str(summary.run.get("cwd") or "")
    page = Page(edge, home, Source(known_number(summary.run.get("start"))))
    text = []
    if own:
        whose = f" of {summary.name_of(rank)}" if len(summary.ranks) > 1 else ""
        text += _line_table(f"slowest lines{whose}", own, summary.wall_s, page)
    if workers:
        all_s = sum(line.own_s for line in rank.worker_lines)
        text += _line_table("slowest lines of loader workers", workers, all_s, page)
    return text


def counted(rank: Rank) -> Sequence[Line]:
    """Return the lines of a rank with their hits, where they were counted one by one."""
    hits = {(line.file, line.line): line.hits for line in rank.exact_lines}
    if not rank.lines:
        return rank.exact_lines
    return [replace(line, hits=hits.get((line.file, line.line), line.hits)) for line in rank.lines]


def heaviest(lines: Sequence[Line], count: int) -> list[Line]:
    """Return the lines with the most time of their own, that first."""
    known = [line for line in lines if known_number(line.own_s) is not None]
    return sorted(known, key=lambda line: (line.own_s, line.total_s), reverse=True)[:count]


def _line_table(title: str, lines: Sequence[Line], whole_s: float, page: Page) -> list[str]:
    """Return a table of lines with the share of `whole_s` that each takes itself."""
    device = [known_number(line.device_ms) for line in lines]
    hits = [known_number(line.hits) for line in lines]
    extra = {"device ms": device, "hits": hits}
    extra = {name: values for name, values in extra.items() if any(v is not None for v in values)}
    rows = [[title, "own s", "total s", "share", *extra, ""]]
    for index, line in enumerate(lines):
        rows.append(
            [
                f"  {_place(line, page.home)}",
                f"{line.own_s:.2f}",
                f"{line.total_s:.2f}" if known_number(line.total_s) is not None else "unknown",
                render_share(line.own_s / whole_s) if whole_s > 0 else "unknown",
                *(_count_text(values[index]) for values in extra.values()),
                printable(f"{line.phase or ''}{' sync' if line.is_sync else ''}"),
            ]
        )
    table = columns(rows)
    wide = max(len(row) for row in table)
    room = page.edge - wide - 2
    if room >= MIN_SOURCE_WIDTH:
        texts = ["", *(text_of(line, page.source) for line in lines)]
        pairs = zip(table, texts, strict=True)
        table = [f"{row:<{wide}}  {clipped(text, room)}" for row, text in pairs]
    return [clipped(row, page.edge) for row in table]


def _count_text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else render_number(value)


@dataclass(frozen=True)
class Page:
    """What lines are shown on: how wide, as seen from which folder, with what sources."""

    edge: int
    home: str
    source: Source


def _place(line: Line, home: str) -> str:
    """Return where a line is, short: as seen from the folder of the run."""
    file = line.file
    if home and file.startswith(home.rstrip("/") + "/"):
        file = file[len(home.rstrip("/")) + 1 :]
    text = printable(f"{file}:{line.line} {line.function if line.function != '<module>' else ''}")
    text = text.rstrip()
    return text if len(text) <= 44 else "…" + text[-43:]


def text_of(line: Line, source: Source) -> str:
    """Return what stands in a line, or that its file has changed."""
    text = source.line(line.file, line.line)
    return "(changed since the run)" if text is None else text
