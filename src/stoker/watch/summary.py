"""A run folder as one value: how it ended, what each rank's steps were made of, what each machine did.

Reads whatever is there: of a run that goes on, ended, crashed or was killed half-way.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, Stat, known_number, merged, read_series

# In the order of a step.
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "graph", "comm", "other")


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
    lines: tuple[Line, ...]
    worker_lines: tuple[Line, ...]
    # Counted one by one, with `--lines`: hits, and seconds with what the line calls.
    exact_lines: tuple[Line, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    cost_s: float
    rows: tuple[Row, ...] = field(repr=False)


@dataclass(frozen=True)
class Machine:
    """One machine over the whole run."""

    host: str
    facts: Mapping[str, Any]
    stats: Mapping[str, Stat]
    rows: tuple[Row, ...] = field(repr=False)

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs that were read."""
        numbers = {name.split(".")[1] for name in self.stats if name.startswith("gpu.")}
        return sorted(int(number) for number in numbers if number.isdecimal())


@dataclass(frozen=True)
class Summary:
    """Everything that a report shows."""

    folder: Path
    run: Mapping[str, Any]
    # "running", "ended", "failed", "killed", or "lost" when nobody wrote how it ended.
    state: str
    wall_s: float
    ranks: tuple[Rank, ...]
    machines: tuple[Machine, ...]

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        code = self.run.get("exit")
        if self.state == "killed" and isinstance(code, int):
            return f"killed by {_signal_name(-code)}"
        if self.state == "failed":
            return f"failed with exit code {code}"
        return {"ended": "ended well", "lost": "ended without a word"}.get(self.state, self.state)


def read_summary(folder: RunFolder, now: float | None = None) -> Summary:
    """Read a run folder."""
    run = folder.read(folder.run_json)
    machines = tuple(_read_machine(folder, path) for path in folder.all_samples())
    ranks = tuple(_read_rank(folder, path) for path in folder.all_facts())
    ends = [row.end_s for machine in machines for row in machine.rows[-1:]]
    ends += [row.end_s for rank in ranks for row in rank.rows[-1:]]
    state = _state(run)
    wall = max(ends, default=0.0)
    start, end = known_number(run.get("start")), known_number(run.get("end"))
    if start is not None and end is not None:
        wall = end - start
    elif start is not None and state == "running":
        wall = (time.time() if now is None else now) - start
    return Summary(folder.path, run, state, wall, ranks, machines)


def _state(run: Mapping[str, Any]) -> str:
    code = known_number(run.get("exit"))
    if code is None:
        is_here = run.get("host") == os.uname().nodename
        if is_here and run.get("supervisor") and not Path(f"/proc/{run['supervisor']}").exists():
            return "lost"
        return "running"
    return "ended" if code == 0 else "killed" if code < 0 else "failed"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_machine(folder: RunFolder, path: Path) -> Machine:
    head, rows = read_series(path)
    host = str(head.get("host") or path.stem)
    whole = merged(rows)
    return Machine(
        host, folder.read(folder.machine(host)), whole.stats if whole else {}, tuple(rows)
    )


def _read_rank(folder: RunFolder, path: Path) -> Rank:
    facts = folder.read(path)
    label = str(facts.get("label") or path.stem)
    _, rows = read_series(folder.steps(label))
    whole = merged(rows)
    stats = whole.stats if whole else {}
    startup = stats.get("startup.step")
    return Rank(
        label=label,
        rank=_count(facts.get("rank")),
        host=str(facts.get("host") or ""),
        pid=_count(facts.get("pid")),
        steps=_count(facts.get("steps")),
        epochs=_count(facts.get("epochs")),
        startup_s=startup.mean if startup else None,
        steady=make_split(stats, "steady"),
        first=make_split(stats, "first"),
        warmup=make_split(stats, "warmup"),
        evaluation=make_split(stats, "eval"),
        lines=_lines(facts.get("lines")),
        worker_lines=_lines(facts.get("worker_lines")),
        exact_lines=_exact(facts.get("exact")),
        facts=_mapping(facts.get("facts")),
        notes=tuple(str(note) for note in _list(facts.get("notes"))),
        cost_s=known_number(facts.get("cost_s")) or 0.0,
        rows=tuple(rows),
    )


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
