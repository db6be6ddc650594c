"""Where the output of a job goes: Slurm's names of files, filled in."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from stoker.check.batch import parse_batch
from stoker.engine.queue import ask_accounting, base_id, known, record_id, show_job
from stoker.errors import SlurmError

# The header of a script is at its beginning.
MAX_HEADER = 1 << 16


def array_outputs(pattern: str, job: str, name: str) -> list[tuple[Path, int]]:
    """Return the files of an array that are there, each with its element."""
    mark = "\x1f"
    path = Path(filled(re.sub(r"%\d*a", mark, pattern), job, name, job))
    form = re.compile(re.escape(path.name).replace(mark, r"0*(\d+)", 1).replace(mark, r"\d+"))
    try:
        matches = [(each, form.fullmatch(each.name)) for each in path.parent.iterdir()]
    except OSError:
        return []
    found = [(each, int(match[1])) for each, match in matches if match and match.lastindex]
    return sorted(found, key=lambda each: each[1])


def job_outputs(job: str) -> list[tuple[Path, int | None]]:
    """Return the files of a job's output, each with its element if it is one of an array.

    From the controller, or else from the accounting.
    """
    records = show_job(job)
    found = []
    for record in records:
        path, element = known(record.get("StdOut")), record.get("ArrayTaskId", "")
        # Elements that wait together have no file yet.
        if path and (element.isdigit() or not element):
            name, raw = record.get("JobName", ""), record.get("JobId", "")
            number = int(element) if element else None
            found.append((Path(filled(path, record_id(record), name, raw)), number))
    if records and not found:
        raise _no_log(job, "the elements of the array wait: none has a file yet")
    return sorted(found, key=lambda each: each[1] or 0) or _guess(job)


def _guess(job: str) -> list[tuple[Path, int | None]]:
    """Return where the output of a job that the controller forgot should be."""
    found = []
    for row in _accounted(job):
        element = row["JobID"].partition("_")[2]
        folder = Path(row["WorkDir"])
        default = "slurm-%A_%a.out" if element else "slurm-%j.out"
        pattern = output_option(row.get("SubmitLine", ""), folder) or default
        name = filled(pattern, row["JobID"], row["JobName"], row["JobIDRaw"])
        found.append((folder / name, int(element) if element.isdigit() else None))
    if not found:
        raise _no_log(job, "neither the queue nor the accounting of this cluster knows it")
    return sorted(found, key=lambda each: each[1] or 0)


def _accounted(job: str) -> list[dict[str, str]]:
    fields = ("JobID", "JobIDRaw", "JobName", "WorkDir", "SubmitLine")
    # The line that submitted it is known from Slurm 21.08 on.
    for names in (fields, fields[:-1]):
        try:
            return ask_accounting(["--allocations", "--jobs", job], names)
        except SlurmError:
            continue
    return []


def output_option(line: str, folder: Path) -> str | None:
    """Return the `--output` of a line that submitted a job, or of the script that it names."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    for index, word in enumerate(words[1:], 1):
        if word in ("-o", "--output") and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(("--output=", "-o")):
            return word.removeprefix("--output=").removeprefix("-o")
        # What follows a command or a script belongs to it.
        if word.startswith("--wrap"):
            return None
        if not word.startswith("-") and (text := _script(folder / word)):
            directives = parse_batch(text).directives
            return next((each.value for each in directives if each.name == "output"), None)
    return None


def _script(path: Path) -> str:
    """Return the beginning of a script; nothing if it is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_HEADER).decode(errors="replace")
    except OSError:
        return ""
    return text if text.startswith("#!") else ""


def filled(pattern: str, job: str, name: str, raw: str) -> str:
    """Return a file name with Slurm's marks filled in.

    >>> filled("%x-%A_%a.%5j.out", "12_3", "train", "15")
    'train-12_3.00015.out'
    """
    base = base_id(job)
    element = job.partition("_")[2]
    values = {"j": raw or base, "J": raw or base, "A": base, "a": element or "0", "x": name}
    values |= {"u": os.environ.get("USER", ""), "%": "%", "n": "0", "t": "0", "s": "batch"}

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[2])
        if value is None:
            return match[0]
        return value.zfill(int(match[1] or 0)) if value.isdigit() else value

    return re.sub(r"%(\d*)([A-Za-z%])", fill, pattern)


def _no_log(job: str, why: str) -> SlurmError:
    return SlurmError(f"there is no log of job {job}", why=why, fix="stoker jobs --all")
