"""A run folder as one value: how it ended, what each rank's steps were made of, what each machine did.

Reads whatever is there: of a run that goes on, ended, crashed or was killed half-way. Of a
thousand machines too: totals are read, while rows and lines wait on the disk until asked for.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from stoker.errors import FileError
from stoker.units import plural
from stoker.watch.facts import read_facts
from stoker.watch.folder import FORMAT, RunFolder
from stoker.watch.later import Again, Later
from stoker.watch.record import started
from stoker.watch.series import Row, Stat, known_number, read_series, read_whole

# In the order of a step.
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "graph", "comm", "other")
TRAINING = ("warmup", "first", "steady")
# Readings come at least every half minute. A machine that wrote nothing for so long is lost; less
# could be a file system that has been slow.
SILENT_S = 600.0
# Up to so many files every line is checked for damage: of eight nodes in half a second.
CHECKED_FILES = 72
# More files are read by several processes, each a chunk at a time.
MAX_READERS = 4
CHUNK = 50
# The rows of a machine with eight GPUs take 30 MB: of many machines only the last few are kept.
KEPT_ROWS = 16

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """What steps of one kind were made of, in seconds a step."""

    steps: int
    step: Stat
    # Mean seconds of each phase; they add up to the step.
    phases: Mapping[str, float]
    # Waited for data, but the device was busy meanwhile.
    data_hidden_s: float
    # Communicated while the backward pass went on.
    comm_overlapped_s: float
    # Steps that were measured on the device's own clock; 0: all by the host's.
    device_steps: int
    # Of the host's forward phase, what stood between two calls of the model, and calls in
    # evaluation mode.
    between_s: float = 0.0
    evaluated_s: float = 0.0

    def share(self, phase: str) -> float:
        """Return the part of the step that a phase takes, 0 to 1."""
        total = sum(self.phases.values())
        return self.phases.get(phase, 0.0) / total if total else 0.0


@dataclass(frozen=True)
class Line:
    """One line of the user's code: seconds in it and what it calls, and innermost."""

    file: str
    function: str
    line: int
    own_s: float
    total_s: float
    phase: str | None = None
    # A step on the device, where that was measured; whether the host waited for the device there.
    device_ms: float | None = None
    is_sync: bool = False
    hits: int | None = None


@dataclass(frozen=True)
class Rank:
    """One process that took steps, or the main one of a run without any."""

    label: str
    rank: int
    host: str
    pid: int
    steps: int
    epochs: int
    startup_s: float | None
    steady: Split | None
    first: Split | None
    warmup: Split | None
    evaluation: Split | None
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    cost_s: float
    # How many ranks there should be.
    world: int
    lines: Later[tuple[Line, ...]] = field(default=Later(), repr=False)
    worker_lines: Later[tuple[Line, ...]] = field(default=Later(), repr=False)
    # Counted one by one, with `--lines`: hits, and seconds with what the line calls.
    exact_lines: Later[tuple[Line, ...]] = field(default=Later(), repr=False)
    rows: Later[tuple[Row, ...]] = field(default=Later(), repr=False)


@dataclass(frozen=True)
class Machine:
    """One machine over the whole run."""

    host: str
    facts: Mapping[str, Any]
    stats: Mapping[str, Stat]
    rows: Later[tuple[Row, ...]] = field(default=Later(), repr=False)

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs that were read; names that are damaged are left out."""
        return list(self._numbers)

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        words = {name.split(".")[1] for name in self.stats if name.startswith("gpu.")}
        return tuple(sorted(int(word) for word in words if word.isascii() and word.isdecimal()))


# Compared as what it is, one look at a folder: whatever is worked out of it can be kept by it.
@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that a report shows."""

    folder: Path
    run: Mapping[str, Any]
    # "running", "ended", "failed", "killed", or "lost" when nobody wrote how it ended.
    state: str
    wall_s: float
    ranks: tuple[Rank, ...]
    machines: tuple[Machine, ...]
    # Lines and files that could not be read, as far as they were looked at.
    damaged: int = 0

    @property
    def world(self) -> int:
        """How many ranks there should be; fewer have left a record where some are missing."""
        return max((rank.world for rank in self.ranks), default=0)

    @cached_property
    def is_ranked(self) -> bool:
        """Whether its processes are ranks of one training, and not just beside each other or in turn."""
        return self.world > 1 or len({rank.rank for rank in self.ranks}) == len(self.ranks)

    def number_of(self, rank: Rank) -> int:
        """Return what tells one of its processes from the others."""
        return rank.rank if self.is_ranked else rank.pid

    def name_of(self, rank: Rank) -> str:
        """Return what one of its processes is called."""
        return f"{'rank' if self.is_ranked else 'process'} {self.number_of(rank)}"

    def count_of(self, number: int, more: str = "") -> str:
        """Return a number of its processes in words."""
        one, many = ("rank", "ranks") if self.is_ranked else ("process", "processes")
        return plural(number, more + one, more + many)

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        code = self.run.get("exit")
        if self.state == "killed" and isinstance(code, int):
            return f"killed by {_signal_name(-code)}"
        if self.state == "failed":
            error = next((each for rank in self.ranks if (each := rank.facts.get("error"))), None)
            # Without its module, as the last line of a traceback has it for Python's own.
            name = f": {error.rpartition('.')[2]}" if isinstance(error, str) else ""
            return f"failed with exit code {code}{name}"
        return {"ended": "ended well", "lost": "ended without a word"}.get(self.state, self.state)


def read_summary(folder: RunFolder, now: float | None = None) -> Summary:
    """Read a run folder. Raises FileError if it may not be read, or a newer Stoker wrote it."""
    _check(folder)
    run = folder.read(folder.run_json)
    machines, ranks = _read_parts(folder)
    state = _state(folder, run)
    found: list[_Found[Machine] | _Found[Rank]] = [*machines, *ranks]
    wall = max([0.0, *(each.end_s for each in found)])
    start, end = known_number(run.get("start")), known_number(run.get("end"))
    # A clock that was set back in between tells nothing.
    if start is not None and end is not None and end >= start:
        wall = end - start
    elif start is not None and end is None and state == "running":
        wall = max(0.0, (time.time() if now is None else now) - start)
    damaged = sum(each.damaged for each in found)
    return Summary(
        folder.path,
        run,
        state,
        wall,
        tuple(each.value for each in ranks),
        tuple(each.value for each in machines),
        damaged + (not run and folder.run_json.is_file()),
    )


def _check(folder: RunFolder) -> None:
    try:
        with os.scandir(folder.path):
            pass
        with folder.run_json.open("rb"):
            pass
    except PermissionError as error:
        raise FileError(
            f"`{folder.path}` cannot be read",
            why=f"{error.strerror}: {error.filename}",
            fix="ask its owner for a copy, or for the right to read it",
        ) from None
    except (OSError, ValueError):
        return  # what is there is reported
    written = known_number(folder.read(folder.run_json).get("format"))
    if written is not None and written > FORMAT:
        raise FileError(
            f"`{folder.path}` is a run of a newer Stoker",
            why=f"its format is {written:g}, and this Stoker reads up to {FORMAT}",
            fix="pip install --upgrade stoker",
        )


def _state(folder: RunFolder, run: Mapping[str, Any]) -> str:
    code = known_number(run.get("exit"))
    if code is None:
        return "lost" if _is_gone(folder, run) else "running"
    return "ended" if code == 0 else "killed" if code < 0 else "failed"


def _is_gone(folder: RunFolder, run: Mapping[str, Any]) -> bool:
    """Say whether nobody is left who would write how the run ends."""
    if not run.get("supervisor"):
        return False
    if run.get("host") != os.uname().nodename:
        return not folder.was_written_since(time.time() - SILENT_S)
    found = started(run["supervisor"])
    return found is None or found != run.get("supervisor_started", found)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class _Found(Generic[T]):
    """One rank or machine, when its record ends, and what of it could not be read."""

    value: T
    end_s: float
    damaged: int


def _read_parts(folder: RunFolder) -> tuple[list[_Found[Machine]], list[_Found[Rank]]]:
    samples = folder.all_samples()
    steps = folder.steps("0").parent.glob("*.jsonl")
    facts = [path.stem for path in folder.all_facts()]
    # A rank that was killed early has steps and no facts yet.
    stems = list(dict.fromkeys([*facts, *sorted(path.stem for path in steps)]))
    is_few = len(samples) + len(stems) <= CHECKED_FILES
    _kept_rows.cache_clear()  # the run may have gone on since
    machine, rank = partial(_read_machine, folder, is_few), partial(_read_rank, folder, is_few)
    cores = 1 if is_few else min(len(os.sched_getaffinity(0)), MAX_READERS)
    if cores > 1:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        try:
            with ProcessPoolExecutor(cores, get_context("fork")) as pool:
                machines = pool.map(machine, samples, chunksize=CHUNK)
                return list(machines), list(pool.map(rank, stems, chunksize=CHUNK))
        except (OSError, RuntimeError):
            pass  # no more processes, or one of them was killed: we are enough
    return [machine(each) for each in samples], [rank(each) for each in stems]


def _read_machine(folder: RunFolder, is_checked: bool, path: Path) -> _Found[Machine]:
    whole = read_whole(path, is_checked=is_checked)
    host = str(whole.head.get("host") or path.stem)
    facts, damaged = read_facts(folder.machine(host), is_checked=is_checked)
    stats = whole.row.stats if whole.row else {}
    machine = Machine(host, facts, stats, _later_rows(path, is_checked))
    return _Found(machine, whole.row.end_s if whole.row else 0.0, whole.damaged + damaged)


def _read_rank(folder: RunFolder, is_checked: bool, stem: str) -> _Found[Rank]:
    path, steps = folder.facts(stem), folder.steps(stem)
    facts, damaged = read_facts(path, is_checked=is_checked)
    whole = read_whole(steps, is_checked=is_checked)
    stats = whole.row.stats if whole.row else {}
    startup = stats.get("startup.step")
    number = re.match(r"\d{1,9}", stem)
    counted = sum(stat.count for kind in TRAINING if (stat := stats.get(f"{kind}.step")))
    rank = Rank(
        label=str(facts.get("label") or stem),
        rank=_count(facts.get("rank", int(number[0]) if number else 0)),
        host=str(facts.get("host") or whole.head.get("host") or ""),
        pid=_count(facts.get("pid")),
        # Facts are written every few seconds: the steps may be ahead of them.
        steps=max(_count(facts.get("steps")), counted),
        epochs=_count(facts.get("epochs")),
        startup_s=startup.mean if startup else None,
        steady=make_split(stats, "steady"),
        first=make_split(stats, "first"),
        warmup=make_split(stats, "warmup"),
        evaluation=make_split(stats, "eval"),
        facts=_mapping(facts.get("facts")),
        notes=tuple(str(note) for note in _list(facts.get("notes"))),
        cost_s=known_number(facts.get("cost_s")) or 0.0,
        world=_count(facts.get("world")),
        lines=partial(_read_lines, folder, path, "lines"),
        worker_lines=partial(_read_lines, folder, path, "worker_lines"),
        exact_lines=partial(_read_exact, folder, path),
        rows=_later_rows(steps, is_checked),
    )
    return _Found(rank, whole.row.end_s if whole.row else 0.0, whole.damaged + damaged)


def _later_rows(path: Path, is_few: bool) -> Callable[[], tuple[Row, ...]]:
    return partial(_rows, path) if is_few else Again(_kept_rows, path)


@lru_cache(maxsize=KEPT_ROWS)
def _kept_rows(path: Path) -> tuple[Row, ...]:
    return _rows(path)


def _rows(path: Path) -> tuple[Row, ...]:
    return tuple(read_series(path)[1])


def _read_lines(folder: RunFolder, path: Path, name: str) -> tuple[Line, ...]:
    return _lines(folder.read(path).get(name))


def _read_exact(folder: RunFolder, path: Path) -> tuple[Line, ...]:
    return _exact(folder.read(path).get("exact"))


def make_split(stats: Mapping[str, Stat], kind: str) -> Split | None:
    """Return what the steps of one kind were made of; None if there were none."""
    step = stats.get(f"{kind}.step")
    if step is None:
        return None
    device = stats.get(f"{kind}.device_step")
    # Without a single step measured on the device, the host's own clock is all there is.
    prefix = kind if device is not None or not _has_host(stats, kind) else f"{kind}.host"
    # Of most steps on a device only the length is taken.
    full = stats.get(f"{kind}.host.step")
    measured = device.count if device is not None else full.count if full else step.count
    phases = {
        phase: stat.mean * stat.count / measured
        for phase in PHASES
        if (stat := stats.get(f"{prefix}.{phase}")) is not None
    }
    comm, overlapped = stats.get(f"{kind}.ddp_comm"), stats.get(f"{kind}.ddp_overlapped")
    hidden = 0.0
    if comm is not None and overlapped is not None:
        exposed = min(max(0.0, comm.mean - overlapped.mean), phases.get("backward", 0.0))
        phases["backward"] = phases.get("backward", 0.0) - exposed
        phases["comm"] = phases.get("comm", 0.0) + exposed
        hidden = overlapped.mean
    beside = stats.get(f"{kind}.beside.comm")
    if beside is not None:
        hidden += beside.mean * beside.count / step.count

    def a_step(name: str) -> float:
        stat = stats.get(f"{kind}.{name}")
        return stat.mean * stat.count / (full or step).count if stat else 0.0

    hidden_data = 0.0
    for name, count in ((f"{kind}.data_hidden", measured), (f"{kind}.beside.data", step.count)):
        stat = stats.get(name)
        hidden_data += stat.mean * stat.count / count if stat else 0.0
    return Split(
        steps=step.count,
        step=step,
        phases={phase: phases[phase] for phase in PHASES if phase in phases},
        data_hidden_s=hidden_data,
        comm_overlapped_s=hidden,
        device_steps=device.count if device is not None else 0,
        between_s=a_step("between"),
        evaluated_s=a_step("evaluated"),
    )


def _has_host(stats: Mapping[str, Stat], kind: str) -> bool:
    return any(f"{kind}.host.{phase}" in stats for phase in PHASES)


def _count(value: object) -> int:
    return int(known_number(value) or 0)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _exact(told: object) -> tuple[Line, ...]:
    lines = []
    for row in _list(told):
        numbers = _numbers(row, 5)
        if numbers is not None:
            line, hits, seconds = numbers
            text = str(row[0]), str(row[1])
            lines.append(Line(*text, int(line), seconds, seconds, hits=int(hits)))
    return tuple(lines)


def _lines(told: object) -> tuple[Line, ...]:
    lines = []
    for row in _list(told):
        numbers = _numbers(row, 5)
        if numbers is None:
            continue
        line, own_s, total_s = numbers
        phase = row[5] if len(row) > 5 and isinstance(row[5], str) else None
        extra = _mapping(row[6]) if len(row) > 6 else {}
        hits = known_number(extra.get("hits"))
        lines.append(
            Line(
                str(row[0]), str(row[1]), int(line), own_s, total_s, phase,
                known_number(extra.get("device_ms")), bool(extra.get("sync")),
                None if hits is None else int(hits),
            )
        )  # fmt: skip
    return tuple(lines)


def _numbers(row: object, size: int) -> tuple[float, float, float] | None:
    """Return the three numbers after file and function; None for a row that is damaged."""
    if not isinstance(row, list) or len(row) < size:
        return None
    known = [number for each in row[2:5] if (number := known_number(each)) is not None]
    return (known[0], known[1], known[2]) if len(known) == 3 else None
