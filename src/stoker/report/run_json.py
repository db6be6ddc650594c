"""A run as JSON for programs. docs/report.md tells what each key means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.advise.verdict import held_gpus, make_verdict, slowest_rank
from stoker.report.run import (
    command_of,
    cost_s,
    ending,
    gpu_facts,
    next_command,
    notes,
    splits_of,
    spread,
)
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import PHASES, Line, Machine, Rank, Split, Summary

# Raised when a key changes its meaning or goes away; keys may be added.
FORMAT = 1


def run_json(summary: Summary) -> dict[str, Any]:
    """Return the run as plain values; docs/report.md tells what each key means."""
    run, ranks = summary.run, summary.ranks
    slowest = slowest_rank(ranks)
    value = {
        "format": FORMAT,
        "id": str(run.get("id") or summary.folder.name),
        "folder": str(summary.folder),
        "command": command_of(run),
        "cwd": run.get("cwd"),
        "state": summary.state,
        "ending": ending(summary),
        "exit_code": run.get("exit"),
        "start_unix_s": run.get("start"),
        "wall_s": summary.wall_s,
        "verdict": make_verdict(summary),
        "steps": max((rank.steps for rank in ranks), default=0),
        "epochs": max((rank.epochs for rank in ranks), default=0),
        "num_ranks": len(ranks),
        "slowest_rank": None if slowest is None else _rank_json(slowest),
        "over_ranks_s": _spread_json([rank for rank in ranks if rank.steady is not None]),
        "machines": [_machine_json(machine, summary) for machine in summary.machines],
        "recording_cpu_s": cost_s(summary),
        "notes": notes(summary),
        "next": next_command(summary),
    }
    finite: dict[str, Any] = _finite(value)
    return finite


def _rank_json(rank: Rank) -> dict[str, Any]:
    splits = {**splits_of(rank), "evaluation": rank.evaluation}
    return {
        "label": rank.label,
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "steps": rank.steps,
        "epochs": rank.epochs,
        "startup_s": rank.startup_s,
        "splits": {kind: _split_json(split) for kind, split in splits.items()},
        "lines": [_line_json(line) for line in rank.lines],
        "worker_lines": [_line_json(line) for line in rank.worker_lines],
        "exact_lines": [_line_json(line) for line in rank.exact_lines],
        "facts": rank.facts,
    }


def _split_json(split: Split | None) -> dict[str, Any] | None:
    if split is None:
        return None
    return {
        "steps": split.steps,
        "device_steps": split.device_steps,
        "step_s": _stat_json(split.step),
        "phases_s": {each: split.step.mean * split.share(each) for each in split.phases},
        "shares": {each: split.share(each) for each in split.phases},
        "data_hidden_s": split.data_hidden_s,
        "comm_overlapped_s": split.comm_overlapped_s,
    }


def _spread_json(ranks: Sequence[Rank]) -> dict[str, Any]:
    if not ranks:
        return {}
    seen = {phase for rank in ranks if rank.steady for phase in rank.steady.phases}
    names = ["step", *(phase for phase in PHASES if phase in seen)]
    return {
        name: dict(zip(("min", "median", "max"), spread(ranks, name), strict=True))
        for name in names
    }


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "file": line.file,
        "line": line.line,
        "function": line.function,
        "own_s": line.own_s,
        "total_s": line.total_s,
        "phase": line.phase,
        "device_ms_per_step": line.device_ms,
        "is_sync": line.is_sync,
        "hits": line.hits,
    }


def _machine_json(machine: Machine, summary: Summary) -> dict[str, Any]:
    facts = {known_number(each.get("index")): each for each in gpu_facts(machine)}
    return {
        "host": machine.host,
        "facts": {name: value for name, value in machine.facts.items() if name != "gpus"},
        "stats": {
            name: _stat_json(stat)
            for name, stat in machine.stats.items()
            if not str(name).startswith("gpu.")
        },
        "gpus": [
            {
                **facts.get(gpu.index, {}),
                "index": gpu.index,
                "is_used": gpu.is_used,
                "stats": {
                    name.removeprefix(f"gpu.{gpu.index}."): _stat_json(stat)
                    for name, stat in machine.stats.items()
                    if str(name).startswith(f"gpu.{gpu.index}.")
                },
            }
            for gpu in held_gpus(summary)
            if gpu.host == machine.host
        ],
    }


def _stat_json(stat: Stat) -> dict[str, float]:
    return {"mean": stat.mean, "std": stat.std, "max": stat.max, "count": stat.count}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not a number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
