"""Which logs of a run are shown, and what a terminal is shown of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.engine.logs import Source, Wanted
from stoker.errors import UsageError
from stoker.units import plural
from stoker.watch.submitted import Submitted

# What would beep, or change the terminal; colours, tabs and progress bars stay.
_HARMFUL = bytes(code for code in range(32) if code not in (8, 9, 10, 13, 27)) + b"\x7f"
_TABLE = bytes.maketrans(_HARMFUL, b"?" * len(_HARMFUL))


def chosen_logs(
    run: Submitted, job: str, rank: int | None, lines: int | None
) -> tuple[Callable[[], list[Source]], Wanted]:
    """Return which logs of a run to read, looked up anew at each look, and how."""
    digits = job.partition("_")[2]
    element = int(digits) if digits.isdigit() else None
    is_one = run.tasks == 1 and run.processes == 1 and (element is not None or not run.is_array)
    if rank is None:
        return lambda: run.logs(element), Wanted(run.processes, None, lines, is_plain=is_one)
    if rank >= run.tasks * run.processes:
        raise UsageError(
            f"there is no rank {rank}",
            why=f"job {job} has {plural(run.tasks * run.processes, 'rank')}, counted from 0",
            fix=f"stoker logs {job} --rank {run.tasks * run.processes - 1}",
        )
    task = rank // run.processes

    def of_rank() -> list[Source]:
        found = [source for source in run.logs(element) if source.task == task]
        # Of one element that was asked for, the lines need not say which.
        return found if element is None else [replace(source, element=None) for source in found]

    return of_rank, Wanted(run.processes, rank, lines, is_plain=is_one)


def whole_logs(
    outputs: Sequence[tuple[Path, int | None]], lines: int | None
) -> tuple[Callable[[], list[Source]], Wanted]:
    """Return how to read the output file of a job, or those of the elements of an array."""
    sources = [Source(path, None, element) for path, element in outputs]
    return lambda: sources, Wanted(last_lines=lines, is_plain=len(sources) == 1)


def seen(data: bytes) -> bytes:
    """Return output without what would upset a terminal.

    >>> seen(b"step 1\\x07\\x00 \\x1b[1mbold\\n")
    b'step 1?? \\x1b[1mbold\\n'
    """
    return data.translate(_TABLE)
