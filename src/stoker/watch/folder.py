"""The run folder: one execution and the name of every file in it. Nobody else joins these paths."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import FileError, UsageError, nearest
from stoker.watch.series import known_number

if TYPE_CHECKING:
    from stoker.engine.task import Task

FORMAT = 1
RUNS = Path(".stoker/runs")


class RunFolder:
    """One folder; everything in it is appended to, or written elsewhere and renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def run_json(self) -> Path:
        """What was run, where, when, and how it ended."""
        return self.path / "run.json"

    @property
    def job_json(self) -> Path:
        """The job that was submitted for it: written by who submits, before and after."""
        return self.path / "job.json"

    @property
    def job_script(self) -> Path:
        """The batch script."""
        return self.path / "job.sh"

    @property
    def points(self) -> Path:
        """The words of each point of a sweep, a line each."""
        return self.path / "points"

    @property
    def preflight(self) -> Path:
        """The checks that the nodes of the job make first."""
        return self.path / "preflight.py"

    @property
    def task_logs(self) -> Path:
        """Where each task of a job with several writes what it prints."""
        return self.path / "logs"

    def log(self, element: str = "") -> Path:
        """What the batch script prints, or one element of an array; `%a` in a header."""
        return self.path / (f"out-{element}.log" if element else "out.log")

    def latest(self, element: str = "") -> RunFolder:
        """Return the folder of the latest attempt of a job, or of one element of an array."""
        base = self.path / element if element else self.path
        attempts = sorted(base.glob("attempt-*/run.json"), key=lambda each: _by_number(each.parent))
        return RunFolder(attempts[-1].parent if attempts else base)

    def samples(self, host: str) -> Path:
        """Readings of one machine."""
        return self.path / "samples" / f"{_safe(host)}.jsonl"

    def machine(self, host: str) -> Path:
        """What one machine has."""
        return self.path / "samples" / f"{_safe(host)}.json"

    def steps(self, label: str) -> Path:
        """Steps of one rank over time."""
        return self.path / "steps" / f"{_safe(label)}.jsonl"

    def facts(self, label: str) -> Path:
        """What is known of one rank, its slowest lines among it."""
        return self.path / "steps" / f"{_safe(label)}.json"

    def claim(self, host: str) -> bool:
        """Say whether we are the first to take readings of a machine in this run."""
        try:
            (self.path / "samples" / f"{_safe(host)}.claim").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def join(self, task: Task) -> bool:
        """Make the folder, and say whether the run in it is that of a task which begins now.

        It is not if another launch began it, or this task had its part in it before.
        """
        self.make()
        run = self.read(self.run_json)
        if run and run.get("launch") != task.launch_of_all:
            return False
        return self.claim(f"rank_{task.rank}_of_{task.launch_of_all}")

    def all_samples(self) -> list[Path]:
        """Return the sample files, one a machine."""
        return sorted((self.path / "samples").glob("*.jsonl"))

    def all_facts(self) -> list[Path]:
        """Return the fact files, one a rank."""
        return sorted((self.path / "steps").glob("*.json"), key=_by_number)

    def was_written_since(self, moment: float) -> bool:
        """Say whether somebody has recorded here since then; the files' own times tell."""
        folders = (self.path / "samples", self.path / "steps")
        paths = chain([self.run_json], *(each.glob("*") for each in folders))
        return any(changed(path) > moment for path in paths)

    def write(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write one JSON file, whole or not at all."""
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps({"format": FORMAT, **value}, indent=1) + "\n")
        temporary.replace(path)

    def read(self, path: Path) -> dict[str, Any]:
        """Return one JSON file; empty if it is not there or cannot be read."""
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def make(self) -> None:
        """Create the folder. Raises OSError where that cannot be done."""
        (self.path / "samples").mkdir(parents=True, exist_ok=True)
        (self.path / "steps").mkdir(exist_ok=True)


def new_run(script: str, wanted: Path | None, now: float | None = None) -> RunFolder:
    """Make the folder of a new run: `wanted`, or one named after the time and the script.

    Raises FileError where a wanted folder already holds a run, OSError where none can be made.
    """
    if wanted is not None:
        folder = RunFolder(wanted.absolute())
        if folder.run_json.exists():
            raise _taken(wanted)
        folder.make()
        return folder
    base = _make_base()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for name in _names(f"{stamp}-{_script_name(script)}"):
        folder = RunFolder(base / name)
        try:
            folder.path.mkdir()
        except FileExistsError:
            continue
        folder.make()
        return folder
    raise AssertionError("names never end")


def free_name(stem: str) -> str:
    """Return a name that nothing has: `stem`, or the first of `stem-2`, `stem-3` and so on."""
    return next(name for name in _names(stem) if not os.path.lexists(name))


def join_run(task: Task, script: str, wanted: Path | None) -> RunFolder:
    """Return the folder that all tasks of one launch write to, made by whoever comes first.

    Each task may run several programs in turn, and some launchers name each launch the same: what
    a task runs next has another folder. Raises FileError where a wanted one holds another run.
    """
    if wanted is not None:
        folder = RunFolder(wanted.absolute())
        if not folder.join(task):
            raise _taken(wanted)
        return folder
    base = _make_base()
    for name in _names(f"{_safe(task.launch)}-{_script_name(script)}"):
        folder = RunFolder(base / name)
        if folder.join(task):
            return folder
    raise AssertionError("names never end")


def _taken(wanted: Path) -> FileError:
    return FileError(
        f"`{wanted}` already holds a run",
        why="a run is never overwritten",
        fix=f"-o {shlex.quote(free_name(str(wanted)))}, or remove it",
    )


def find_job(job: str) -> RunFolder | None:
    """Return the folder of a job that was submitted from here: `1234`, or `1234_5` of an array."""
    number = job.partition("_")[0]
    for path in RUNS.glob("*/job.json"):
        folder = RunFolder(path.parent.absolute())
        if number and str(folder.read(folder.job_json).get("id")) == number:
            return folder
    return None


def find_run(text: str | None) -> RunFolder:
    """Return the run of that folder, id or job, or the newest one; of a job its latest attempt."""
    if text and _is_folder(text):
        return RunFolder(Path(text).absolute()).latest()
    job = find_job(text) if text and re.fullmatch(r"\d+(_\d+)?", text) else None
    if text and job is not None:
        return job.latest(text.partition("_")[2])
    ids = _latest_attempts()
    if text is None:
        if ids:
            return RunFolder(max(ids.values(), key=_age).absolute())
        raise UsageError(
            "there is no run here", why=f"`{RUNS}` has none", fix="stoker run train.py, or name one"
        )
    if text in ids:
        return RunFolder(ids[text].absolute())
    match = nearest(text, ids)
    raise UsageError(
        f"there is no run `{text}`",
        why=f"it is neither a folder nor one of the {len(ids)} runs in `{RUNS}`",
        fix=f"did you mean {match}?" if match else f"ls {RUNS}",
    )


def _latest_attempts() -> dict[str, Path]:
    """Return the runs here by their ids, each where its latest attempt was recorded."""
    runs = {each.parent.name: each.parent for each in RUNS.glob("*/run.json")}
    again = [each.parent for each in RUNS.glob("*/attempt-*/run.json")]
    return runs | {each.parent.name: each for each in sorted(again, key=_by_number)}


def _make_base() -> Path:
    base = RUNS.absolute()
    base.mkdir(parents=True, exist_ok=True)
    ignore = base.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return base


def _script_name(script: str) -> str:
    return _safe(Path(script).name.removesuffix(".py"))


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # too long, or no name at all
        return False


def _age(path: Path) -> tuple[float, int, str]:
    """Return what sorts runs by when they began; a launcher's are not named after the time."""
    folder = RunFolder(path)
    start = known_number(folder.read(folder.run_json).get("start"))
    return (start or 0.0, len(path.name), path.name)


def changed(path: Path) -> float:
    """Return when a file was last written to; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _names(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80].lstrip(".-") or "run"


def _by_number(path: Path) -> tuple[int, str]:
    digits = re.search(r"\d+", path.name)
    return (int(digits.group()) if digits else 0, path.name)
