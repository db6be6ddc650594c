"""What Slurm's accounting says of a job: beside what we saw of it, or alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.engine.accounting import OWN_STEPS, Attempt, Step, read_attempts
from stoker.errors import SlurmError
from stoker.report.table import clipped, render_table
from stoker.units import printable, render_number, render_seconds, render_share, render_time
from stoker.watch.folder import RunFolder
from stoker.watch.series import known_number
from stoker.watch.summary import Summary

FORMAT = 1
JOB = re.compile(r"[0-9]+(_[0-9]+)?")
# Clocks of nodes and of the accounting may differ by so much.
CLOCKS_S = 120.0
# Slurm's words for an end, and ours.
ENDS = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "ended by its time limit",
    "OUT_OF_MEMORY": "killed: out of memory",
    "NODE_FAIL": "lost with its node",
    "PREEMPTED": "preempted",
    "REQUEUED": "put back into the queue",
    "BOOT_FAIL": "its node did not boot",
    "DEADLINE": "ended by its deadline",
}
MANY = 20


@dataclass(frozen=True)
class Joined:
    """The attempt of a job that a run belongs to, or why it is not known."""

    attempt: Attempt | None = None
    attempts: int = 0
    note: str | None = None


def join_job(
    summary: Summary, read: Callable[[str], list[Attempt]] = read_attempts
) -> Joined | None:
    """Find the job of a run in Slurm's accounting; None where the run was no job."""
    job = job_of(summary)
    if job is None:
        return None
    try:
        attempts = read(job)
    except SlurmError as error:
        return Joined(note=f"what Slurm accounted of job {job} is not here: {error.why}")
    mine = [each for each in attempts if job in (each.id, each.raw_id)]
    fitting = [each for each in mine if _holds(each, known_number(summary.run.get("start")))]
    if not fitting:
        why = "it has no job of that time" if mine else "it does not know the job"
        return Joined(note=f"what Slurm accounted of job {job} is not here: {why}")
    return Joined(fitting[-1], len(mine))


def job_of(summary: Summary) -> str | None:
    """Return the number of the job that a run was."""
    told = summary.run.get("environment")
    number = told.get("SLURM_JOB_ID") if isinstance(told, dict) else None
    for path in (summary.folder, *summary.folder.parents[:2]):
        # A run that has not begun, or whose environment is unknown, was still submitted.
        folder = RunFolder(path)
        number = number or folder.read(folder.job_json).get("id")
    return str(number) if number and JOB.fullmatch(str(number)) else None


def _holds(attempt: Attempt, start: float | None) -> bool:
    """Say whether a run that started then can be of this attempt: numbers of jobs come again."""
    if start is None or attempt.start is None:
        return start is None
    end = attempt.end if attempt.end is not None else start
    return attempt.start - CLOCKS_S <= start <= end + CLOCKS_S


def render_joined(joined: Joined | None, wall_s: float) -> list[str]:
    """Return the lines about the job at the head of a run's report."""
    return [f"{name:<9}{text}" for name, text in job_facts(joined, wall_s)]


def job_facts(joined: Joined | None, wall_s: float) -> list[tuple[str, str]]:
    """Return what Slurm accounted of the job of a run, each fact with its name."""
    if joined is None or joined.attempt is None:
        return []
    attempt = joined.attempt
    ended = f"{_title(attempt, joined.attempts)}: {_end(attempt)}, {_time(attempt)}"
    outside = (attempt.elapsed_s or 0) - wall_s
    if not attempt.is_running and outside > max(5.0, 0.02 * wall_s):
        ended += f", {render_seconds(outside)} of it before and after the run"
    used = ", ".join([*_cpu(attempt), *_memory(attempt)])
    return [
        ("job", ended),
        *([("Slurm", used)] if used else []),
        *(("step", line) for line in _wrong_steps(attempt)),
    ]


def render_jobs(attempts: Sequence[Attempt], edge: int) -> str:
    """Return jobs of which Slurm's accounting is all that is known: one in full, several as a table."""
    if len(attempts) == 1:
        return "\n".join(clipped(line, edge) for line in _whole_job(attempts[0]))
    rows: list[tuple[str, ...]] = [("job", "state", "time", "CPU", "memory", "nodes")]
    for each in attempts[:MANY]:
        rows.append(
            (
                each.id,
                each.state,
                render_time(each.elapsed_s or 0),
                _share(each.cpu_share),
                _share(each.memory_share),
                printable(each.nodes or ""),
            )
        )
    more = f"\nand {len(attempts) - MANY} more, with --json" if len(attempts) > MANY else ""
    return render_table(rows) + more


def _whole_job(attempt: Attempt) -> list[str]:
    where = f" on {attempt.nodes}" if attempt.nodes else ""
    lines = [
        f"job      {_title(attempt, attempt.number)}: {_end(attempt)}",
        f"time     {_time(attempt)}{where}",
    ]
    if attempt.is_running:
        return [*lines, "used     not accounted before the job has ended"]
    if attempt.cpu_share is not None:
        lines.append(f"cores    {attempt.cpus} reserved: {_cpu(attempt)[0]}")
    lines += [f"memory   {line}" for line in _memory(attempt)]
    if attempt.gpus:
        lines.append(f"GPUs     {attempt.gpus} reserved; Slurm does not tell what they did")
    return [*lines, *(f"step     {line}" for line in _wrong_steps(attempt))]


def _title(attempt: Attempt, attempts: int) -> str:
    # The accounting may learn of a short job's end first, and calls it so until it knows the name.
    words = [attempt.name] if attempt.name not in ("", "allocation") else []
    words += [f"attempt {attempt.number} of {attempts}"] if attempts > 1 else []
    return f"{attempt.id} ({', '.join(words)})" if words else attempt.id


def _end(part: Attempt | Step) -> str:
    words = ENDS.get(part.state, part.state.lower().replace("_", " "))
    # 125 is no signal, but Slurm's mark for a step that ran out of memory.
    if part.signal and part.state != "OUT_OF_MEMORY":
        return f"{words} (signal {part.signal})"
    return f"{words} (exit code {part.exit_code})" if part.exit_code else words


def _time(attempt: Attempt) -> str:
    limit = f" of {render_time(attempt.limit_s)} reserved" if attempt.limit_s else ""
    return f"{render_time(attempt.elapsed_s or 0)}{limit}"


def _cpu(attempt: Attempt) -> list[str]:
    share = attempt.cpu_share
    return [] if share is None else [f"CPU efficiency {render_share(share)}"]


def _memory(attempt: Attempt) -> list[str]:
    used, reserved, share = attempt.memory_gib, attempt.reserved_gib, attempt.memory_share
    if attempt.is_running or used is None or reserved is None or share is None:
        return []
    sizes = f"{render_number(used)} of {render_number(reserved)} GiB"
    return [f"{sizes} at most: memory efficiency {render_share(share)}"]


def _wrong_steps(attempt: Attempt) -> list[str]:
    """Return the steps that went wrong: a batch script that goes on after one hides it."""
    wrong = [
        step
        for step in attempt.steps
        if step.state not in ("COMPLETED", "RUNNING", "PENDING")
        # The batch script ends as the job does; that is told already.
        and (step.name not in OWN_STEPS or step.state != attempt.state)
    ]
    lines = [f"{step.name}: {_end(step)}{_step_memory(step)}" for step in wrong[:3]]
    return [*lines, f"and {len(wrong) - 3} more, with --json"] if len(wrong) > 3 else lines


def _step_memory(step: Step) -> str:
    if step.memory_gib is None or step.state != "OUT_OF_MEMORY":
        return ""
    return f", its largest task at {render_number(step.memory_gib)} GiB or more"


def _share(share: float | None) -> str:
    return "unknown" if share is None else render_share(share)


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as plain values; null where Slurm does not tell."""
    return {
        **asdict(attempt),
        "cpu_share": attempt.cpu_share,
        "memory_gib": attempt.memory_gib,
        "memory_share": attempt.memory_share,
    }


def jobs_json(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return jobs of which there is no run folder."""
    return {"format": FORMAT, "jobs": [attempt_json(each) for each in attempts]}
