"""Jobs as a table or as JSON: what each does, for how long, where, and how well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stoker.engine.queue import Job, Listing
from stoker.report.table import clipped, columns, width
from stoker.units import plural, printable, render_share, render_time
from stoker.watch.submitted import Submitted, Used, read_used

# Ended ones that are shown unless all are asked for.
FEW_ENDED = 5
# Longer names and node lists leave no room for the rest.
MAX_NAME = 24
# Runs whose readings are looked at: a listing stays quick.
MAX_READ = 50
HEAD = ("job", "name", "state", "attempt", "time", "GPUs", "CPU", "GPU load", "where or why")
# The columns of numbers, which stand to the right.
NUMBERS = (3, 5, 6, 7)


def shown_jobs(listing: Listing, *, is_all: bool) -> tuple[list[Job], int]:
    """Return the jobs to show, and how many ended ones are left out."""
    ended = [job for job in listing.jobs if job.is_ended]
    others = [job for job in listing.jobs if not job.is_ended]
    shown = ended if is_all else ended[:FEW_ENDED]
    return [*others, *shown], len(ended) - len(shown)


def used_by(jobs: Sequence[Job], runs: Iterable[Submitted]) -> dict[str, Used]:
    """Return what each job used so far in its last attempt, where it left a run here."""
    begun = [job for job in jobs if job.started and "[" not in job.id][:MAX_READ]
    folders = {run.job: run.folder for run in runs} if begun else {}
    return {
        job.id: read_used(folders[job.base].latest(job.id.partition("_")[2]))
        for job in begun
        if job.base in folders
    }


def render_jobs(jobs: Sequence[Job], used: Mapping[str, Used]) -> str:
    """Return a table, a row a job."""
    rows = [_row(job, used.get(job.id)) for job in jobs]
    # What nobody knows needs no column: a terminal is narrow.
    kept = [index for index in range(len(HEAD)) if any(row[index] for row in rows)]
    table = [[row[index] for index in kept] for row in (HEAD, *rows)]
    left = [place for place, index in enumerate(kept) if index not in NUMBERS]
    return "\n".join(clipped(line, width()) for line in columns(table, left))


def render_left_out(count: int) -> str:
    """Return a note about ended jobs that are not shown."""
    return f"note: {plural(count, 'job')} of the last day more: stoker jobs --all"


def jobs_json(
    jobs: Sequence[Job], notes: Sequence[str], used: Mapping[str, Used]
) -> dict[str, Any]:
    """Return the jobs as JSON."""
    return {"jobs": [_json(job, used.get(job.id)) for job in jobs], "notes": list(notes)}


def next_command(jobs: Sequence[Job]) -> str:
    """Return what to type next: why the first one waits, or what a running one says."""
    for state, words in (("PENDING", "stoker why"), ("RUNNING", "stoker logs -f")):
        job = next((each for each in jobs if each.state == state), None)
        if job is not None:
            return f"{words} {_typed(job)}"
    return f"stoker why {_typed(jobs[0])}" if jobs else "stoker plan train.py"


def _typed(job: Job) -> str:
    # Nobody types the elements that wait together, nor does a shell like them.
    return job.base if "[" in job.id else job.id


def ending_words(job: Job) -> str:
    """Return how a job stands or ended, in a few words.

    >>> from stoker.engine.queue import Job
    >>> ending_words(Job("7", "a", "FAILED", None, 2, 90, 3600, "n1", "gpu", None, None, None, 1, exit_code=3))
    'FAILED, exit code 3, after 00:01:30, attempt 2'
    """
    parts = [job.state]
    if job.exit_code:
        parts.append(f"exit code {job.exit_code}")
    if job.signal:
        parts.append(f"signal {job.signal}")
    if job.elapsed_s:
        parts.append(f"after {render_time(job.elapsed_s)}")
    if job.attempt > 1:
        parts.append(f"attempt {job.attempt}")
    return ", ".join(parts)


def _row(job: Job, used: Used | None) -> tuple[str, ...]:
    cpu = _cpu(job, used)
    load = used.gpu_pct if used else None
    code = f"exit code {job.exit_code}" if job.exit_code else ""
    where = job.reason if job.state == "PENDING" else job.nodes
    return (
        job.id,
        clipped(job.name, MAX_NAME),
        job.state,
        str(job.attempt),
        _time(job),
        str(job.gpus or ""),
        "" if cpu is None else render_share(cpu),
        "" if load is None else f"{load:.0f} %",
        printable(", ".join(part for part in (code, where or "") if part)),
    )


def _time(job: Job) -> str:
    limit = "" if job.limit_s is None else f" of {render_time(job.limit_s)}"
    if job.state == "PENDING" or job.elapsed_s is None:
        return limit.strip()
    return render_time(job.elapsed_s) + limit


def _cpu(job: Job, used: Used | None) -> float | None:
    # Slurm counts all that was reserved, from the first second: where it knows, it knows best.
    return job.cpu_share if job.cpu_share is not None or used is None else used.cpu_share


def _json(job: Job, used: Used | None) -> dict[str, Any]:
    value = asdict(job)
    value["cpu_share"] = _cpu(job, used)
    value["gpu_load_pct"] = used.gpu_pct if used else None
    return value


def cancelled_words(job: str, found: Sequence[Job], verb: str) -> str:
    """Return a line about a job that is cancelled, with how many elements of an array there are."""
    states = ", ".join(sorted({each.state for each in found}))
    several = f", {plural(len(found), 'part')} of an array" if len(found) > 1 else ""
    return f"{verb}: {job} {printable(found[0].name)} ({states}{several})"
