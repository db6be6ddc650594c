"""What the profiles that come with Stoker add to, and how they differ from, a detected one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.cluster.detect.nodes import Kind
from stoker.cluster.layers import PROFILES, Table, read_toml
from stoker.errors import UsageError
from stoker.units import parse_time

# Words about a profile, not facts of the cluster; and lists that tell the same in another order.
UNCOMPARED = (
    "source",
    "note",
    "notes",
    "title",
    "checked",
    "status",
    "account_example",
    "signs",
    "access",
)
# What a GPU is, wherever it stands.
MODEL_FACTS = ("vendor", "bf16")


@dataclass(frozen=True)
class Difference:
    """One fact that the shipped profile and the cluster tell differently; `None`: not there."""

    fact: str
    shipped: Any
    here: Any


def shipped_table(name: str) -> Table:
    """Return the profile of that name, empty if none comes with Stoker."""
    path = PROFILES / f"{name}.toml"
    return read_toml(path) if path.is_file() else {}


def model_facts(model: str | None) -> dict[str, Any]:
    """Return what all shipped profiles that have this model of GPU agree on."""
    entries = [table[model] for table in _gpu_tables() if model in table]
    facts = {}
    for key in MODEL_FACTS:
        values = {entry[key] for entry in entries if key in entry}
        if len(values) == 1:
            facts[key] = values.pop()
    return facts


@functools.cache
def _gpu_tables() -> list[Table]:
    return [read_toml(path).get("gpu", {}) for path in sorted(PROFILES.glob("*.toml"))]


def take_names(kinds: Sequence[Kind], shipped: Mapping[str, Any]) -> None:
    """Call a kind of GPU as the shipped profile does, so that the two fit over each other."""
    for name, table in shipped.get("gpu", {}).items():
        for kind in kinds:
            others = {each.name for each in kinds if each is not kind}
            is_same = kind.type is not None and table.get("type") == kind.type
            # Profiles count one slice a job, Slurm all slices of a node.
            fits = kind.mig is not None or table.get("per_node") in (None, kind.per_node)
            if is_same and fits and name not in others:
                kind.name = name


def differences(shipped: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    """Return the facts that both tell, differently, and the kinds and queues that one lacks."""
    return list(_differ("", shipped, here)) if shipped else []


def _differ(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        name = f"{path}.{key}".lstrip(".")
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differ(name, before, after)
        elif path in ("gpu", "partition") and (before is None or after is None):
            yield Difference(name, before and "there", after and "there")
        elif before is None or after is None or key in UNCOMPARED:
            continue
        elif _plain(before) != _plain(after):
            yield Difference(name, before, after)


def _plain(value: Any) -> Any:
    """Return a value that compares: a time in seconds, a list without its order."""
    if isinstance(value, list):
        return sorted(map(str, value))
    try:
        return parse_time(value) if isinstance(value, str) else value
    except UsageError:
        return value
