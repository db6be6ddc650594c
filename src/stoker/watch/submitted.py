"""Runs that were submitted as jobs: found by the job's id, with where their logs are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.engine.logs import Source, task_logs
from stoker.engine.output import array_outputs, filled
from stoker.engine.queue import JOB_ID, base_id
from stoker.errors import UsageError
from stoker.watch.folder import RUNS, RunFolder, changed, find_job
from stoker.watch.series import known_number, read_whole

# Of the newest only: nobody asks for older ones by their job.
MAX_RUNS = 500


@dataclass(frozen=True)
class Submitted:
    """One run and its job."""

    folder: RunFolder
    job: str
    name: str
    # The file of the batch script's own output, with Slurm's marks in it.
    log: str
    tasks: int
    # Processes that write to the log of one task.
    processes: int
    is_array: bool

    def logs(self, element: int | None = None) -> list[Source]:
        """Return the logs: of the batch script, which may come yet, and of the tasks there are."""
        # One task alone has no log of its own.
        task = 0 if self.tasks == 1 else None
        if not self.is_array:
            own = [Source(Path(filled(self.log, self.job, self.name, self.job)), task)]
        elif element is not None:
            job = f"{self.job}_{element}"
            own = [Source(Path(filled(self.log, job, self.name, self.job)), task, element)]
        else:
            found = array_outputs(self.log, self.job, self.name)
            own = [Source(path, task, number) for path, number in found]
        return [*own, *task_logs(self.folder.task_logs, element)]


@dataclass(frozen=True)
class Used:
    """What a run used so far: cores of those allowed, 0 to 1, and the load of its GPUs, in percent."""

    cpu_share: float | None
    gpu_pct: float | None


def submitted_runs() -> Iterator[Submitted]:
    """Yield the runs here that are jobs, the newest first."""
    for folder in _newest("job.json"):
        run = read_submitted(folder)
        if run is not None:
            yield run


def find_run_inside(job: str) -> RunFolder | None:
    """Return the newest run here that was started inside a job which Stoker did not submit."""
    for folder in _newest("run.json"):
        told = folder.read(folder.run_json).get("environment")
        if isinstance(told, dict) and told.get("SLURM_JOB_ID") == job:
            return folder
    return None


def read_submitted(folder: RunFolder) -> Submitted | None:
    """Return the job of a run; None if it is none."""
    facts = folder.read(folder.job_json)
    if not facts.get("id"):
        return None
    tasks, processes = (
        max(1, int(known_number(facts.get(key)) or 1)) for key in ("tasks", "processes_per_task")
    )
    log = str(facts.get("log") or folder.log())
    name = str(facts.get("name") or "")
    return Submitted(
        folder, str(facts["id"]), name, log, tasks, processes, bool(facts.get("array"))
    )


def find_submitted(text: str | None) -> tuple[str, Submitted | None]:
    """Return the id of a job and its run, if that is here: for a job's id, a run, or the newest.

    Raises UsageError where there is neither.
    """
    if text is not None and JOB_ID.fullmatch(text):
        folder = find_job(base_id(text))
        return text, read_submitted(folder) if folder else None
    if text is None:
        run = next(submitted_runs(), None)
        if run is None:
            raise UsageError(
                "there is no job here", why=f"no run in `{RUNS}` was submitted", fix="stoker jobs"
            )
        return run.job, run
    run = _run_of(text)
    if run is None:
        raise UsageError(
            f"`{text}` is no job",
            why="it is neither the number of one nor a run that was submitted to Slurm",
            fix="stoker jobs",
        )
    return run.job, run


def _run_of(text: str) -> Submitted | None:
    """Return the run of that folder or id; it may not have begun yet."""
    for path in (Path(text), RUNS / text):
        run = read_submitted(RunFolder(path.absolute()))
        if run is not None:
            return run
    return None


def read_used(folder: RunFolder) -> Used:
    """Return what a run used so far, from the totals of its readings."""
    busy, allowed, loads = 0.0, 0.0, []
    for path in folder.all_samples():
        whole = read_whole(path)
        stats = whole.row.stats if whole.row else {}
        facts = folder.read(folder.machine(str(whole.head.get("host") or path.stem)))
        cores = stats.get("cpu.cores")
        busy += cores.mean if cores else 0.0
        allowed += known_number(facts.get("cores_allowed")) or 0.0
        loads += [stat.mean for name, stat in stats.items() if name.endswith(".duty_pct")]
    return Used(busy / allowed if allowed else None, sum(loads) / len(loads) if loads else None)


def _newest(file: str) -> list[RunFolder]:
    """Return the runs here that have such a file, the newest first."""
    paths = sorted(RUNS.glob(f"*/{file}"), key=changed, reverse=True)[:MAX_RUNS]
    return [RunFolder(path.parent.absolute()) for path in paths]
