"""The slowest lines of a run on the page."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.source import Source
from stoker.advise.verdict import NOUNS, slowest_rank
from stoker.report.lines import counted, heaviest, text_of
from stoker.report.page.markup import Child, Html, joined, section, table, tag
from stoker.units import render_number, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Line, Summary

MAX_LINES = 30
MAX_WORKER_LINES = 10
MAX_SOURCE = 160
MAX_PLACE = 90


def render_lines(summary: Summary) -> Html | None:
    """Return the slowest lines of the slowest rank, and of its loader workers."""
    rank = slowest_rank(summary)
    if rank is None:
        return None
    source = Source(known_number(summary.run.get("start")))
    home = str(summary.run.get("cwd") or "")
    own = heaviest(counted(rank), MAX_LINES)
    workers = heaviest(rank.worker_lines, MAX_WORKER_LINES)
    if not own and not workers:
        return None
    whose = f" of {summary.name_of(rank)} on {rank.host}" if len(summary.ranks) > 1 else ""
    worker_s = sum(line.own_s for line in rank.worker_lines)
    return section(
        "Slowest lines",
        _lines(f"Your code{whose}", own, summary.wall_s, source, home) if own else None,
        _lines("Loader workers, of their own time", workers, worker_s, source, home)
        if workers
        else None,
        id_="lines",
    )


def _lines(caption: str, lines: Sequence[Line], whole_s: float, source: Source, home: str) -> Html:
    extra = {
        "device ms a step": [known_number(line.device_ms) for line in lines],
        "hits": [known_number(line.hits) for line in lines],
    }
    extra = {name: values for name, values in extra.items() if any(v is not None for v in values)}
    doing = [_doing(line) for line in lines]
    has_doing = any(doing)
    rows: list[list[Child]] = []
    for index, line in enumerate(lines):
        rows.append(
            [
                _place(line, home, source),
                f"{line.own_s:.2f}",
                f"{line.total_s:.2f}",
                render_share(line.own_s / whole_s) if whole_s > 0 else "unknown",
                *(_count(values[index]) for values in extra.values()),
                *([doing[index]] if has_doing else ()),
            ]
        )
    head = ["line", "own s", "total s", "own share", *extra, *(["while"] if has_doing else ())]
    return table(caption, head, rows, f"numbers source{' last-text' if has_doing else ''}")


def _doing(line: Line) -> str:
    """Return in which phase a line ran, and whether the host waited for the device there."""
    waits = ["waits for the device"] if line.is_sync else []
    return ", ".join([*([NOUNS.get(line.phase, line.phase)] if line.phase else ()), *waits])


def _place(line: Line, home: str, source: Source) -> Html:
    file = line.file
    if home and file.startswith(home.rstrip("/") + "/"):
        file = file[len(home.rstrip("/")) + 1 :]
    where = f"{file}:{line.line}"
    where = where if len(where) <= MAX_PLACE else "…" + where[-MAX_PLACE:]
    function = "" if line.function == "<module>" else f" {line.function[:MAX_PLACE]}"
    text = text_of(line, source)[:MAX_SOURCE]
    return joined(
        [tag("code", text) if text else None, tag("span", where, function, class_="place")]
    )


def _count(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else render_number(value)
