"""What a run was set to: its command, loaders, model, versions, machine; and how two runs differ in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.advise.verdict import slowest_rank
from stoker.watch.series import known_number
from stoker.watch.summary import Summary

# What counts how far a run has come, or names one thing of many alike.
NOT_SETTINGS = ("epochs", "trained", "uuid", "saving")


@dataclass(frozen=True)
class Setting:
    """Something that was not the same in both runs."""

    key: str
    a: str | None
    b: str | None


def differing_settings(a: Summary, b: Summary) -> tuple[Setting, ...]:
    """Return what was not the same in both runs."""
    ours, theirs = _told(a), _told(b)
    keys = [*ours, *(key for key in theirs if key not in ours)]
    pairs = [Setting(key, ours.get(key), theirs.get(key)) for key in keys]
    return tuple(each for each in pairs if each.a != each.b)


def _told(summary: Summary) -> dict[str, str]:
    run = summary.run
    command = run.get("command")
    told = {"state": summary.state, "ranks": str(len(summary.ranks)),
            "machines": str(len(summary.machines))}  # fmt: skip
    if isinstance(command, list):
        told["command"] = " ".join(str(each) for each in command)
    for key in ("cwd", "python", "made_by"):
        if run.get(key) is not None:
            told[key] = str(run[key])
    told |= _flat("environment", run.get("environment"))
    rank = slowest_rank(summary)
    if rank is not None:
        facts = dict(rank.facts)
        told |= _loaders(facts.pop("loaders", None))
        told |= _flat("", facts)
    machine = summary.machines[0] if summary.machines else None
    if machine is not None:
        for key in ("cpu_model", "cores_allowed", "memory_limit_gib", "kernel"):
            if machine.facts.get(key) is not None:
                told[key.replace("_", " ")] = _text(machine.facts[key])
        gpus = machine.facts.get("gpus")
        names = (
            [str(each.get("name")) for each in gpus if isinstance(each, dict)]
            if isinstance(gpus, list)
            else []
        )
        told["GPUs of a machine"] = (
            ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"
        )
    return told


def _loaders(told: object) -> dict[str, str]:
    """Return what loaders were set to, the largest first; their names in the record have no meaning."""
    loaders = (
        [each for each in told.values() if isinstance(each, dict)] if isinstance(told, dict) else []
    )
    loaders.sort(key=lambda each: -(known_number(each.get("batches")) or 0.0))
    found: dict[str, str] = {}
    for number, loader in enumerate(loaders, 1):
        found |= _flat("loader" if number == 1 else f"loader {number}", loader)
    return found


def _flat(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {} if value is None or not name else {name: _text(value)}
    found: dict[str, str] = {}
    for key, each in value.items():
        if key not in NOT_SETTINGS:
            found |= _flat(f"{name} {key}".strip(), each)
    return found


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
