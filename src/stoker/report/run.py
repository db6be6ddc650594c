"""A run as text for people: verdict, step split, machines, slowest lines.

Reads the folder's summary and the source lines that it names; whatever is missing or damaged is
shown as `unknown`.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.advise.crowd import Crowd, crowded
from stoker.advise.findings import find
from stoker.advise.spent import find_spent
from stoker.advise.stages import stages_of
from stoker.advise.verdict import (
    held_gpus,
    make_verdict,
    slowest_rank,
)
from stoker.engine.command import find_python
from stoker.plan.quote import quote
from stoker.report.accounting import Joined, render_joined
from stoker.report.efficiency import find_efficiency, render_efficiency
from stoker.report.findings import render_findings
from stoker.report.lines import render_lines
from stoker.report.machines import render_machines
from stoker.report.stages import render_stages
from stoker.report.steps import render_steps
from stoker.report.table import MAX_WIDTH, clipped, width
from stoker.units import plural, printable, render_number, render_seconds
from stoker.watch.entry import EXACT
from stoker.watch.folder import RUNS, free_name
from stoker.watch.series import known_number
from stoker.watch.summary import Summary


def render_run(
    summary: Summary,
    lines: int = 10,
    findings: int = 3,
    edge: int | None = None,
    job: Joined | None = None,
) -> str:
    """Return the report of a run: at most about 60 lines, `edge` columns wide."""
    edge = min(width() if edge is None else edge, MAX_WIDTH)
    sections = [
        _head(summary, edge, job),
        textwrap.wrap(make_verdict(summary), edge),
        render_findings(find(summary), findings, edge),
        render_steps(summary, edge),
        render_stages(stages_of(summary), edge),
        render_machines(summary, edge),
        render_lines(summary, lines, edge),
        _notes(summary, edge, job),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def next_command(summary: Summary) -> str:
    """Return the command that is worth typing next."""
    name = run_name(summary.folder)
    if is_running(summary):
        return f"stoker top {name}"
    rank = slowest_rank(summary)
    again = _run_words(summary.run)
    if again and summary.state == "failed":
        return f"stoker run {again}"
    first = next((finding for finding in find(summary) if finding.gain), None)
    if again and first is not None:
        # Once the change is made: what did it bring?
        made = "".join(f"{key}={shlex.quote(value)} " for key, value in first.environment.items())
        changed = free_name("changed")
        return f"{made}stoker run -o {changed} {again} && stoker compare {name} {changed}"
    if again and rank is not None and rank.lines and not rank.exact_lines:
        return f"{_counter(summary.run)}stoker run --lines {again}"
    if held_gpus(summary):
        return f"stoker report {name} --csv gpu.csv"
    has_more = rank is not None and len(rank.lines) > 10
    return f"stoker report {name} {'--lines 30' if has_more else '--json'}"


def run_name(folder: Path) -> str:
    """Return what to type for this run: its id where that is enough, else its folder."""
    if folder.parent == RUNS.absolute():
        return quote(folder.name)
    here = Path.cwd()
    return quote(str(folder.relative_to(here) if here in folder.parents else folder))


def _run_words(run: Mapping[str, Any]) -> str:
    """Return the words after `stoker run` that start the same command; empty if unknown."""
    if run.get("launch"):
        return ""  # srun or mpirun started it, with words of their own that we have not seen
    asked = run.get("asked")
    if isinstance(asked, list) and asked:
        return _joined(map(str, asked))
    words = command_of(run)
    if not words:
        return ""
    if not _is_python(words[0]):
        return "-- " + _joined(words)
    python, *rest = words
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        return "-- " + _joined([python, *rest])
    chosen = [] if python == find_python(None, os.environ) else ["--python", python]
    return _joined([*chosen, *rest])


def _joined(words: Iterable[str]) -> str:
    return " ".join(map(quote, words))


def _counter(run: Mapping[str, Any]) -> str:
    """Return what has to come first where lines were to be counted and could not be."""
    told = run.get("command")
    words = [str(each) for each in told] if isinstance(told, list) else []
    python = next(filter(_is_python, words), None)
    if str(EXACT) not in words or python is None:
        return ""
    return f"{shlex.quote(python)} -m pip install line_profiler && "


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[0-9.]*", Path(word).name) is not None


# -- the head ------------------------------------------------------------------------


def _head(summary: Summary, edge: int, job: Joined | None) -> list[str]:
    run, ranks = summary.run, summary.ranks
    command = shlex.join(command_of(run)) or "unknown"
    parts = [f"{render_seconds(summary.wall_s)} on {_hosts(summary)}"]
    if len(ranks) > 1:
        parts.append(summary.count_of(len(summary.ranks)))
    steps, epochs = (
        max((getattr(r, each) for r in ranks), default=0) for each in ("steps", "epochs")
    )
    if steps:
        parts.append(plural(steps, "step") + (f" in {plural(epochs, 'epoch')}" if epochs else ""))
    title = str(run.get("id") or summary.folder.name)
    rows = [
        f"run      {title}: {ending(summary)}",
        f"command  {command}",
        f"time     {', '.join(parts)}",
        *_model(summary),
        *render_efficiency(find_efficiency(summary), find_spent(summary)),
        *render_joined(job, summary.wall_s),
    ]
    return [clipped(row, edge) for row in rows]


def _model(summary: Summary) -> list[str]:
    """What was trained, where that is known: whoever reads an old report wants to know."""
    rank = slowest_rank(summary)
    told = None if rank is None else rank.facts.get("model")
    if not isinstance(told, Mapping) or not told.get("name"):
        return []
    size = known_number(told.get("parameters"))
    parts = [
        str(told["name"]),
        *([plural(size, "parameter")] if size is not None else []),
        *(str(told[each]) for each in ("dtype", "optimizer") if told.get(each)),
        *(["compiled"] if told.get("is_compiled") is True else []),
    ]
    return [f"model    {printable(', '.join(parts))}"]


def ending(summary: Summary) -> str:
    """How the run ended, or that it goes on."""
    if not summary.run:
        return "unknown how it ended"
    return "still running" if is_running(summary) else printable(summary.ending)


def is_running(summary: Summary) -> bool:
    """Say whether the run goes on, as far as its folder tells; without run.json nothing does."""
    return summary.state == "running" and bool(summary.run)


def _hosts(summary: Summary) -> str:
    hosts = [machine.host for machine in summary.machines] + [rank.host for rank in summary.ranks]
    names = list(dict.fromkeys(host for host in hosts if host))
    names = names or [str(summary.run.get("host") or "an unknown host")]
    return (
        ", ".join(names) if len(names) < 4 else f"{len(names):,} hosts ({names[0]} … {names[-1]})"
    )


# -- the notes -----------------------------------------------------------------------


def notes(summary: Summary, job: Joined | None = None) -> list[str]:
    """Return what could not be watched or must be known to read the figures, each once."""
    told = [_crowd_note(host, crowd) for host, crowd in crowded(summary.machines)[:1]]
    told += [note for rank in summary.ranks for note in rank.notes]
    own = summary.run.get("notes")
    told += own if isinstance(own, list) else []
    read = _machine_notes(summary)
    told = [*(note for note in told if str(note) not in read), *read.values()]
    if summary.run.get("is_whole") is False:
        told.append("recording stopped before the end: the disk refused")
    if not summary.run:
        told.append("run.json is missing: command, start and end are unknown")
    if summary.damaged:
        verb = "was" if summary.damaged == 1 else "were"
        told.append(f"{plural(summary.damaged, 'damaged line')} {verb} left out")
    # Without a step only the busiest process of each machine is told.
    if len(summary.ranks) < summary.world and any(rank.steps for rank in summary.ranks):
        told.append(f"only {len(summary.ranks)} of {summary.world} ranks left a record")
    if job is not None and job.note is not None:
        told.append(job.note)
    return [printable(str(note)) for note in dict.fromkeys(map(str, told))]


def _machine_notes(summary: Summary) -> dict[str, str]:
    """Return what could not be read of machines, and with it of which, where there are several."""
    hosts: dict[str, list[str]] = {}
    for machine in summary.machines:
        told = machine.facts.get("notes")
        for note in told if isinstance(told, list) else []:
            hosts.setdefault(str(note), []).append(machine.host)
    if len(summary.machines) < 2:
        return {note: note for note in hosts}
    names = {
        note: each[0] if len(each) == 1 else f"{len(each):,} machines"
        for note, each in hosts.items()
    }
    return {note: f"{note} ({name})" for note, name in names.items()}


def _crowd_note(host: str, crowd: Crowd) -> str:
    others = f"{render_number(crowd.others * crowd.cores)} of the {crowd.cores:g} cores of {host}"
    return f"others kept {others} busy: on a free machine the run is faster, and may wait for other things"


def _notes(summary: Summary, edge: int, job: Joined | None) -> list[str]:
    told = notes(summary, job)
    more = f" (and {len(told) - 2} more, with --json)" if len(told) > 2 else ""
    return textwrap.wrap("note: " + "; ".join(told[:2]) + more, edge) if told else []


def command_of(run: Mapping[str, Any]) -> list[str]:
    """Return the command as the user means it: without the program of ours that counts lines."""
    told = run.get("command")
    return [str(each) for each in told if each != str(EXACT)] if isinstance(told, list) else []
