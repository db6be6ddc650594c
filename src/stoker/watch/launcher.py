"""The process that has started all tasks of a launch on this machine, found from one of them."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.engine.task import Task, read_task
from stoker.watch.processes import parse_stat, read_start


def find_launcher(task: Task, parent: int | None = None, proc: Path = Path("/proc")) -> int:
    """Return the nearest process above us that is no part of our task, as a shell around us is."""
    pid = os.getppid() if parent is None else parent
    while read_task(_environment(proc / str(pid))) == task:
        stat = parse_stat(read_start(f"{proc}/{pid}/stat") or b"")
        if stat is None or not stat.ppid:
            break
        pid = stat.ppid
    return pid


def _environment(process: Path) -> dict[str, str]:
    """Return what a process was started with; nothing of one that is not ours."""
    try:
        words = (process / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)
