"""Why a job waits, runs or has ended: rows of text, or JSON."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from stoker.engine.allowed import Limit
from stoker.engine.pending import Reservation, Room, Wait
from stoker.engine.queue import Job
from stoker.engine.reasons import ENDINGS, Meaning
from stoker.engine.trial import Request, Trial
from stoker.report.jobs import ending_words
from stoker.report.table import render_table
from stoker.units import plural, printable, render_mem, render_number, render_share, render_time

MAX_RESERVATIONS = 2
# What a shell says of a script's end.
CODES = {
    126: "a command of the script may not be run",
    127: "a command of the script was not found",
    134: "the program aborted",
    137: "the program was killed, most often for memory",
    139: "the program crashed: segmentation fault",
    143: "the program was told to end",
}

Rows = list[tuple[str, str]]


def render_wait(wait: Wait, now: datetime) -> str:
    """Return why a job waits."""
    since = f" for {_span(now, wait.since)}" if wait.since and now > wait.since else ""
    rows: Rows = [("why", f"{wait.meaning.what} ({wait.said})")]
    rows += [("", each) for each in wait.details]
    rows.append(("asks", _asks(wait.request, wait.gpus)))
    rows += [("limit", _limit(each)) for each in wait.limits]
    if wait.room is not None:
        rows.append(("free", _room(wait.room, wait.partition)))
    if wait.ahead is not None:
        rows.append(("ahead", _ahead(wait)))
    rows += [("kept", _reservation(each, now)) for each in wait.reservations[:MAX_RESERVATIONS]]
    if not wait.meaning.is_never:
        rows.append(("start", _start(wait, now)))
    rows += _earlier(wait, now)
    rows.append(("fix", wait.meaning.fix.format(job=wait.job)))
    return f"job {wait.job} {printable(wait.name)} waits{since}\n{_table(rows)}"


def render_running(job: Job) -> str:
    """Return since when a job runs, and how long it may."""
    rows: Rows = [("since", f"{job.started}, on {job.nodes}")]
    if job.elapsed_s is not None and job.limit_s is not None:
        left = render_time(max(0, job.limit_s - job.elapsed_s))
        used = f"{render_time(job.elapsed_s)} of {render_time(job.limit_s)}"
        rows.append(("time", f"{used} used, {left} left"))
    if job.attempt > 1:
        rows.append(
            ("attempt", f"{job.attempt}: it was requeued {plural(job.attempt - 1, 'time')}")
        )
    return f"job {job.id} {printable(job.name)} does not wait: it is {job.state}\n{_table(rows)}"


def render_end(job: Job) -> str:
    """Return how a job ended, and what to do about it."""
    meaning = ending_of(job)
    rows: Rows = [("how", meaning.what)]
    if job.exit_code in CODES:
        rows.append(("", f"exit code {job.exit_code}: {CODES[job.exit_code or 0]}"))
    elif job.exit_code:
        rows.append(("", f"exit code {job.exit_code}"))
    if job.signal:
        rows.append(("", f"signal {job.signal}"))
    if job.limit_s is not None and job.elapsed_s is not None:
        rows.append(("time", f"{render_time(job.elapsed_s)} of {render_time(job.limit_s)}"))
    if job.nodes:
        rows.append(("where", job.nodes))
    if job.cpu_share is not None:
        rows.append(("CPU", f"{render_share(job.cpu_share)} of the cores reserved"))
    if job.memory_gib:
        rows.append(("memory", f"{render_number(job.memory_gib)} GiB at most in one task"))
    rows.append(("fix", meaning.fix.format(job=job.id)))
    return f"job {job.id} {printable(job.name)} has ended: {ending_words(job)}\n{_table(rows)}"


def ending_of(job: Job) -> Meaning:
    """Return what a state at the end means."""
    meaning = ENDINGS.get(job.state) or Meaning(f"Slurm says: {job.state}", "stoker logs {job}")
    if job.state == "CANCELLED" and job.by is not None:
        whom = "you" if job.by == job.uid else _user(job.by)
        before = "" if job.started and job.elapsed_s else ", before it began"
        return Meaning(f"it was cancelled by {whom}{before}", meaning.fix)
    return meaning


def next_command(wait: Wait) -> str:
    """Return what to type next: what frees a job that is held, or ends one that cannot start."""
    fix = wait.meaning.fix.format(job=wait.job).partition(";")[0]
    if fix.startswith("scontrol release"):
        return fix
    return f"stoker {'cancel' if wait.meaning.is_never else 'logs -f'} {wait.job}"


def wait_json(wait: Wait) -> dict[str, Any]:
    """Return why a job waits, as JSON."""
    value = asdict(wait)
    value.update(value.pop("meaning"), state="PENDING")
    value["fix"] = wait.meaning.fix.format(job=wait.job)
    value["options"] = wait.request.options()
    del value["request"]
    return {key: _plain(each) for key, each in value.items()}


def job_json(job: Job) -> dict[str, Any]:
    """Return how a job runs or ended, as JSON."""
    value = asdict(job)
    if job.is_ended:
        meaning = ending_of(job)
        value.update(what=meaning.what, fix=meaning.fix.format(job=job.id))
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return render_table([(f"  {label}", printable(text)) for label, text in rows])


def _asks(request: Request, gpus: int) -> str:
    parts = [plural(request.nodes, "node"), plural(request.tasks, "task")]
    if gpus:
        parts.append(plural(gpus, "GPU"))
    if request.memory_gib:
        per = "CPU" if request.is_memory_per_cpu else "node"
        parts.append(f"{render_mem(request.memory_gib)} a {per}")
    if request.limit_s:
        parts.append(render_time(request.limit_s))
    return f"{', '.join(parts)} in {request.partition}"


def _limit(limit: Limit) -> str:
    used = f"{plural(limit.jobs, 'job')} with {plural(limit.gpus, 'GPU')} and {plural(limit.cpus, 'CPU')}"
    return f"{limit.column} {limit.value} of {limit.owner}; under it run {used}"


def _room(room: Room, partition: str) -> str:
    out = f"; {room.out} are on nodes that are down or drained" if room.out else ""
    return f"{room.free} of {plural(room.total, room.what)} in {partition}{out}"


def _ahead(wait: Wait) -> str:
    if not wait.ahead:
        return f"no job in {wait.partition} that you may see"
    gpus = (
        f", which {'asks' if wait.ahead == 1 else 'ask'} for {plural(wait.ahead_gpus, 'GPU')}"
        if wait.ahead_gpus
        else ""
    )
    return f"{plural(wait.ahead, 'job')} in {wait.partition}{gpus}; an array counts as one"


def _reservation(each: Reservation, now: datetime) -> str:
    what = "maintenance" if each.is_maintenance else "a reservation"
    if each.start <= now:
        when = f"until {_moment(each.end)}"
    else:
        when = f"from {_moment(each.start)} to {_moment(each.end)}"
    return f"{each.nodes} for {what} ({each.name}) {when}"


def _start(wait: Wait, now: datetime) -> str:
    if wait.expected is None:
        alike = f"; a job like it, submitted now, at {_moment(wait.alike)}" if wait.alike else ""
        return f"Slurm has no estimate yet{alike}"
    if wait.expected <= now:
        return "any moment, says Slurm"
    return f"expected at {_moment(wait.expected)}, in {_span(wait.expected, now)}, if no other comes before it"


def _earlier(wait: Wait, now: datetime) -> Rows:
    if not wait.tried:
        return []
    if not wait.earlier:
        tried = f"{plural(wait.tried, 'other request')} tried"
        return [("earlier", f"nothing: {tried} with sbatch --test-only")]
    return [("earlier", _trial(each, now)) for each in wait.earlier]


def _trial(trial: Trial, now: datetime) -> str:
    start = trial.start or now
    when = "at once" if (start - now).total_seconds() < 5 else f"at {_moment(start)}"
    return f"with {trial.change} it would start {when}: {trial.options}"


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _span(later: datetime, before: datetime | None) -> str:
    return render_time(max(0, round((later - before).total_seconds()))) if before else "unknown"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
