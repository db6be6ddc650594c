"""From a plan to a job: the run folder with all that the job needs, made before it is submitted."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker import engine
from stoker.engine.submit import submit
from stoker.errors import FileError, StokerError
from stoker.plan.plan import Plan
from stoker.plan.script import render_script
from stoker.plan.submission import Submission
from stoker.plan.sweep import Point, render_points
from stoker.watch.folder import RunFolder, new_run

# Run on the nodes by the job's own Python; importing it here would only take time.
PREFLIGHT = Path(engine.__file__).with_name("preflight.py")
# What stands for the folder of a run that is not made.
NOWHERE = Path(".stoker/runs/ID")


@dataclass(frozen=True)
class Order:
    """How a plan is to be submitted."""

    output: Path | None = None
    array: str | None = None
    points: Sequence[Point] = ()
    is_watched: bool = True
    has_preflight: bool = False


def render_order(plan: Plan, order: Order) -> str:
    """Return the script that would be submitted."""
    folder = RunFolder(NOWHERE)
    return render_script(_with_log(plan, folder, order), _submission(plan, folder, order))


def submit_order(
    plan: Plan, order: Order, env: Mapping[str, str]
) -> tuple[RunFolder, dict[str, Any]]:
    """Make the run folder, submit the job, and return what is known of it.

    Whatever goes wrong, the folder stays, and its script can be submitted by hand.
    """
    _refuse_taken(order.output)
    try:
        folder = new_run(plan.spec.script, order.output)
        plan = _with_log(plan, folder, order)
        facts = _facts(plan, order)
        _fill(folder, render_script(plan, _submission(plan, folder, order)), order)
        folder.write(folder.job_json, facts)
    except OSError as error:
        raise FileError(
            "the run folder cannot be made",
            why=f"{error.strerror}: {error.filename}",
            fix="submit from a folder that you may write to, or -o DIR",
        ) from None
    try:
        facts["id"] = submit(folder.job_script, env)
    except StokerError as error:
        folder.write(folder.job_json, {**facts, "error": error.why})
        raise
    folder.write(folder.job_json, facts)
    return folder, facts


def _refuse_taken(wanted: Path | None) -> None:
    """Raise where a job was submitted that has this folder; it may not have begun to record."""
    if wanted is None:
        return
    folder = RunFolder(wanted)
    job = folder.read(folder.job_json).get("id")
    if job:
        raise FileError(
            f"`{wanted}` already holds a job",
            why=f"job {job} records its run there, and a run is never overwritten",
            fix=f"-o {shlex.quote(f'{wanted}-2')}, or remove it",
        )


def _with_log(plan: Plan, folder: RunFolder, order: Order) -> Plan:
    """Return the plan with the log in the run folder, unless the user wants it elsewhere."""
    options = dict(plan.directives)
    # In the name of a log Slurm fills in what stands after a percent sign.
    marked = RunFolder(Path(str(folder.path).replace("%", "%%")))
    options.setdefault("output", str(marked.log("%a" if order.array else "")))
    options.setdefault("open-mode", "append")
    return replace(plan, directives=tuple(options.items()))


def _submission(plan: Plan, folder: RunFolder, order: Order) -> Submission:
    return Submission(
        folder=str(folder.path),
        watcher=_watcher() if order.is_watched else None,
        points=str(folder.points) if order.points else None,
        preflight=str(folder.preflight) if order.has_preflight else None,
        has_task_logs=_num_tasks(plan) > 1,
    )


def _watcher() -> str | None:
    """Return the `stoker` that was started, as a program that a node can start."""
    for path in (Path(sys.argv[0]), Path(sys.executable).with_name("stoker")):
        if path.name == "stoker" and os.access(path, os.X_OK):
            return str(path.absolute())
    return None


def _fill(folder: RunFolder, script: str, order: Order) -> None:
    folder.job_script.write_bytes(script.encode("utf-8", "surrogateescape"))
    folder.task_logs.mkdir(exist_ok=True)
    if order.points:
        folder.points.write_bytes(render_points(order.points).encode("utf-8", "surrogateescape"))
    if order.has_preflight:
        folder.preflight.write_text(PREFLIGHT.read_text())


def _facts(plan: Plan, order: Order) -> dict[str, Any]:
    return {
        "id": None,
        "cluster": plan.cluster.name,
        "name": dict(plan.directives).get("job-name"),
        "submitted": time.time(),
        "command": list(plan.spec.command),
        "cwd": str(Path.cwd()),
        "log": dict(plan.directives)["output"],
        "tasks": _num_tasks(plan),
        "processes_per_task": plan.launch.processes_per_node // plan.launch.tasks_per_node,
        "array": order.array,
    }


def _num_tasks(plan: Plan) -> int:
    return plan.launch.tasks_per_node * plan.shape.nodes
