"""A run as JSON for programs. docs/report.md tells what each key means."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stoker.advise.finding import Finding
from stoker.advise.findings import find
from stoker.advise.spent import find_spent
from stoker.advise.stages import Stage, stages_of
from stoker.advise.verdict import HeldGpu, held_gpus, make_verdict, slowest_rank
from stoker.report.accounting import Joined, attempt_json
from stoker.report.efficiency import find_efficiency
from stoker.report.findings import render_promise
from stoker.report.machines import cost_s, gpu_facts
from stoker.report.run import command_of, ending, next_command, notes
from stoker.report.steps import splits_of, spread
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import PHASES, Line, Machine, Rank, Split, Summary

# Raised when a key changes its meaning or goes away; keys may be added.
FORMAT = 1
# So many machines are indented for people; a thousand would take three times the space and the time.
MAX_INDENTED = 8


def render_run_json(summary: Summary, job: Joined | None = None) -> str:
    """Return the run as JSON text: indented, or one line for many machines."""
    indent = 2 if len(summary.machines) <= MAX_INDENTED else None
    return json.dumps(run_json(summary, job), indent=indent)


def run_json(summary: Summary, job: Joined | None = None) -> dict[str, Any]:
    """Return the run as plain values; docs/report.md tells what each key means."""
    run, ranks = summary.run, summary.ranks
    slowest = slowest_rank(summary)
    spent = find_spent(summary)
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
        "findings": [_finding_json(each) for each in find(summary)],
        "stages": [_stage_json(stage) for stage in stages_of(summary)],
        "efficiency": asdict(find_efficiency(summary)),
        "job": attempt_json(job.attempt) if job is not None and job.attempt is not None else None,
        "spent": None if spent is None else asdict(spent),
        "steps": max((rank.steps for rank in ranks), default=0),
        "epochs": max((rank.epochs for rank in ranks), default=0),
        "num_ranks": len(ranks),
        "slowest_rank": None if slowest is None else _rank_json(slowest),
        "over_ranks_s": _spread_json([rank for rank in ranks if rank.steady is not None]),
        "machines": _machines_json(summary),
        "recording_cpu_s": cost_s(summary),
        "damaged": summary.damaged,
        "notes": notes(summary, job),
        "next": next_command(summary),
    }
    finite: dict[str, Any] = _finite(value)
    return finite


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "promise": render_promise(finding)}


def _stage_json(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "start_s": stage.start_s,
        "end_s": stage.end_s,
        "seconds": stage.seconds,
        "steps": stage.steps,
        "epochs": stage.epochs,
        "step_s": None if stage.step is None else _stat_json(stage.step),
        "split": _split_json(stage.split),
        "levels": {name: asdict(level) for name, level in stage.levels.items()},
    }


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
        "between_calls_s": split.between_s,
        "evaluated_s": split.evaluated_s,
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


def _machines_json(summary: Summary) -> list[dict[str, Any]]:
    held: dict[str, list[HeldGpu]] = {}
    for gpu in held_gpus(summary):
        held.setdefault(gpu.host, []).append(gpu)
    return [_machine_json(each, held.get(each.host, [])) for each in summary.machines]


def _machine_json(machine: Machine, gpus: Sequence[HeldGpu]) -> dict[str, Any]:
    facts = {known_number(each.get("index")): each for each in gpu_facts(machine)}
    # By whose they are: a GPU's number, or the machine's own.
    stats: dict[str, dict[str, Any]] = {}
    for name, stat in machine.stats.items():
        owner, metric = "", name
        if name.startswith("gpu."):
            owner, _, metric = name.removeprefix("gpu.").partition(".")
        stats.setdefault(owner, {})[metric] = _stat_json(stat)
    return {
        "host": machine.host,
        "facts": {name: value for name, value in machine.facts.items() if name != "gpus"},
        "stats": stats.get("", {}),
        "gpus": [
            {
                **facts.get(gpu.index, {}),
                "index": gpu.index,
                "is_used": gpu.is_used,
                "stats": stats.get(str(gpu.index), {}),
            }
            for gpu in gpus
        ],
    }


def _stat_json(stat: Stat) -> dict[str, float]:
    return {"mean": stat.mean, "std": stat.std, "max": stat.max, "count": stat.count}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not a number becomes null."""
    # The most frequent first: of a thousand machines there are a million.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
