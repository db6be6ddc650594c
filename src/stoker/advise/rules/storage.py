"""What is read: storage that is waited for, and data in very many small files."""

from __future__ import annotations

import shlex

from stoker.advise.finding import Finding, Rule
from stoker.advise.wait import LEAST_GAIN, Wait, level_of, read_wait
from stoker.units import printable, render_number, render_seconds, render_share
from stoker.watch.summary import Summary

# What a node's own disk takes, where it is slow: to open a file, and for a MB.
LOCAL_OPEN_S, LOCAL_MB_S = 2e-4, 500.0
# Reading one record of a large file costs at worst this part of opening a file of its own.
PACKED = 0.5
PLACES = "the node's local disk ($LOCAL_SCRATCH or $TMPDIR)"


def slow_storage(summary: Summary) -> Finding | None:
    """Loading waits for what it reads, and its cores do nothing meanwhile."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "storage":
        return None
    load, files, read_mb = wait.load, wait.files or 0.0, wait.read_mb or 0.0
    local = min(load.idle_s, files * LOCAL_OPEN_S + read_mb / LOCAL_MB_S)
    # At worst from a local disk, cold, and half of the wait is for something else. At best from
    # memory, once it has been read; what loading takes of a core may be reading, too.
    left = max(local, load.idle_s / 2)
    gain = wait.gain(wait.best_with(0.0), wait.step_with(1 - (load.idle_s - left) / load.wall_s))
    if gain.expected < LEAST_GAIN:
        return None
    return Finding(
        key="loader-storage",
        level=level_of(gain),
        what=f"Loading waits for storage {render_share(load.idle_s / load.wall_s)} of its time.",
        why=f"{wait.sentence()}; a batch takes {render_seconds(load.wall_s)} to make and only "
        f"{render_seconds(load.core_s)} of CPU time, {_amount(files, read_mb)}.",
        fix=_local(wait) if files < 1 else f"{_pack(wait)} {_local(wait, packed=True)}",
        confidence="medium",
        safety="A",
        gain=gain,
        figures={**wait.figures(), "files": files, "read_mb": read_mb},
    )


def small_files(summary: Summary) -> Finding | None:
    """Opening files is what loading does, and they are many and small."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "files" or not wait.files:
        return None
    gain = wait.gain(wait.best_with(0.0), wait.step_with(PACKED))
    if gain.expected < LEAST_GAIN:
        return None
    each = wait.load.wall_s / wait.files
    return Finding(
        key="loader-files",
        level=level_of(gain),
        what=f"The data is in many small files: {render_number(wait.files)} are opened for a batch.",
        why=f"{wait.sentence()}; loading takes {render_seconds(each)} a file, about what opening one does.",
        fix=f"{_pack(wait)} {_local(wait, packed=True)}",
        confidence="medium",
        safety="A",
        gain=gain,
        figures={**wait.figures(), "files": wait.files},
    )


def _pack(wait: Wait) -> str:
    """Return the command that packs the data, and how it is read then."""
    place, out = _names(wait)
    return f"`stoker pack {place} {out}`, then read it with `stoker.open` and `stoker.Loader`."


def _local(wait: Wait, *, packed: bool = False) -> str:
    data = _names(wait)[packed]
    return f"`stoker submit --data {data} …` copies it to {PLACES} at the start of the job."


def _names(wait: Wait) -> tuple[str, str]:
    """Return where the data is, as far as the data set tells, and where it goes when it is packed."""
    root = wait.loader.get("root")
    if not isinstance(root, str) or not root.strip("/."):
        return "DIR", "OUT"
    place = printable(root.rstrip("/"))
    return shlex.quote(place), shlex.quote(f"{place}-packed")


def _amount(files: float, read_mb: float) -> str:
    if files >= 1:
        return f"to open {render_number(files)} files"
    return f"to read {render_number(read_mb)} MB"


RULES: tuple[Rule, ...] = (slow_storage, small_files)
