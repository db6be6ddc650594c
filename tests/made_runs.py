"""Runs made of numbers, for rules to look at: no folder, no clock, no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.watch.series import Row, Stat, merged
from stoker.watch.summary import Line, Machine, Rank, Summary, make_split

START = 1_794_700_000.0
HOST = "node1"


def same(value: float, count: int = 1) -> Stat:
    """So many equal values."""
    return Stat(count, value, 0.0, value)


def step_row(start_s: float, end_s: float, **measures: tuple[int, float]) -> Row:
    """A row of steps: `steady_forward=(40, 0.02)` is forty of 20 ms each."""
    return Row(
        start_s,
        end_s,
        {name.replace("_", ".", 1): same(each, count) for name, (count, each) in measures.items()},
    )


def made_rank(rows: Sequence[Row], *, number: int = 0, **changes: Any) -> Rank:
    """A rank whose totals are those of its rows."""
    whole = merged(rows)
    stats = whole.stats if whole else {}
    startup = stats.get("startup.step")
    kinds = ("warmup", "first", "steady")
    told: dict[str, Any] = {
        "label": f"{number}-{HOST}",
        "rank": number,
        "host": HOST,
        "pid": 4711 + number,
        "steps": sum(stats[f"{kind}.step"].count for kind in kinds if f"{kind}.step" in stats),
        "epochs": stats["first.step"].count if "first.step" in stats else 1,
        "startup_s": startup.mean if startup else None,
        "steady": make_split(stats, "steady"),
        "first": make_split(stats, "first"),
        "warmup": make_split(stats, "warmup"),
        "evaluation": make_split(stats, "eval"),
        "facts": {},
        "notes": (),
        "cost_s": 0.0,
        "world": 1,
        "lines": (),
        "worker_lines": (),
        "exact_lines": (),
        "rows": tuple(rows),
    }
    return Rank(**{**told, **changes})


def made_machine(
    readings: Mapping[str, float | Callable[[int], float]], seconds: int = 120, **facts: Any
) -> Machine:
    """A machine read once a second; a reading is a number, or a function of the second."""
    rows = tuple(
        Row(
            second,
            second + 1,
            {name: same(each(second) if callable(each) else each)
             for name, each in readings.items()},
        )
        for second in range(seconds)
    )  # fmt: skip
    known: dict[str, Any] = {
        "cores_machine": 64,
        "cores_affinity": 16,
        "cores_allowed": 16,
        "memory_machine_gib": 256.0,
        "memory_limit_gib": None,
        "gpus": [],
    }
    whole = merged(rows)
    return Machine(HOST, {**known, **facts}, whole.stats if whole else {}, rows)


def made_run(
    ranks: Sequence[Rank] = (),
    machines: Sequence[Machine] = (),
    *,
    wall_s: float = 120.0,
    state: str = "ended",
    **run: Any,
) -> Summary:
    """A run that ended well after two minutes."""
    told = {"start": START, "exit": 0, "command": ["python", "train.py"], "environment": {}}
    return Summary(
        Path("/runs/made"), {**told, **run}, state, wall_s, tuple(ranks), tuple(machines)
    )


def line(file: Path | str, number: int, own_s: float, phase: str | None = "other") -> Line:
    """A line of a file and its seconds."""
    return Line(str(file), "<module>", number, own_s, own_s, phase)
