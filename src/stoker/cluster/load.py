"""Find, lay over each other, check and read cluster profiles."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from stoker.cluster.layers import PROFILES, Layer, fold, merge, read_toml
from stoker.cluster.machine import machine_table
from stoker.cluster.profile import Cluster
from stoker.errors import ClusterError, UsageError, nearest
from stoker.units import parse_time

SCHEMA = 1

T = TypeVar("T")

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def names(layers: Iterable[Layer] = ()) -> list[str]:
    """Return every cluster that is known, shipped or added."""
    shipped = {path.stem for path in PROFILES.glob("*.toml")}
    return sorted(shipped.union(*(layer.clusters for layer in layers)))


def load_cluster(name: str, layers: Iterable[Layer] = ()) -> Cluster:
    """Return one cluster with the facts of all layers.

    >>> load_cluster("puhti").gpu["v100"].per_node
    4
    """
    layers = tuple(layers)
    key = resolve_name(name, layers)
    path = PROFILES / f"{key}.toml"
    table = read_toml(path) if path.is_file() else {}
    if table.get("scheduler") == "none":
        table = merge(table, machine_table())
    origins = [path.name] if table else []
    for layer in layers:
        if key in layer.clusters:
            table = merge(table, layer.clusters[key])
            origins.append(layer.origin)
    # A cluster that somebody adds need not repeat what every profile says.
    table = {"schema": SCHEMA, "title": name, "status": "unknown", **table}
    cluster = _parse(Cluster, {"name": key, **table}, key, " + ".join(origins))
    return _check_references(cluster, " + ".join(origins))


def resolve_name(name: str, layers: Iterable[Layer] = ()) -> str:
    """Return the name that a profile goes by; raises `ClusterError` with the nearest one."""
    legal = names(layers)
    key = fold(name)
    if key in legal:
        return key
    match = nearest(key, legal)
    raise ClusterError(
        f"unknown cluster `{name}`",
        why="known are: " + ", ".join(legal),
        fix=f"stoker cluster show {match}" if match else "stoker cluster list",
    )


def _check_references(cluster: Cluster, origin: str) -> Cluster:
    """Refuse a profile whose parts name each other wrongly, before anybody plans with it."""
    if cluster.schema != SCHEMA:
        raise _damaged(origin, "schema", f"it is {cluster.schema}, this Stoker reads {SCHEMA}")
    _check_texts(cluster, origin)
    for partition in cluster.partition.values():
        for gpu in partition.gpus:
            if gpu not in cluster.gpu:
                raise _damaged(origin, f"partition.{partition.name}.gpus", f"no [gpu.{gpu}] exists")
    for gpu_kind in cluster.gpu.values():
        for key in (
            "per_node",
            "cpus_per_node",
            "cpus_per_gpu",
            "mem_gib_per_node",
            "mem_gib_per_gpu",
        ):
            number = getattr(gpu_kind, key)
            if number is not None and number <= 0:
                raise _damaged(
                    origin, f"gpu.{gpu_kind.name}.{key}", f"it is {number:g}, not above 0"
                )
        if gpu_kind.slice_of is not None and gpu_kind.slice_of not in cluster.gpu:
            raise _damaged(
                origin, f"gpu.{gpu_kind.name}.slice_of", f"no [gpu.{gpu_kind.slice_of}] exists"
            )
    return cluster


def _check_texts(cluster: Cluster, origin: str) -> None:
    """Refuse times and patterns that would fail only when somebody plans with them."""
    times = {f"partition.{name}.time": each.time for name, each in cluster.partition.items()}
    times |= {
        "slurm.min_time": cluster.slurm.min_time,
        "slurm.default_time": cluster.slurm.default_time,
    }
    for where, text in times.items():
        try:
            _ = text is None or parse_time(text)
        except UsageError:
            raise _damaged(origin, where, f"`{text}` is not a time") from None
    try:
        re.compile(cluster.slurm.account_pattern or "")
    except re.error as error:
        raise _damaged(origin, "slurm.account_pattern", f"not a pattern: {error}") from None


def _damaged(origin: str, where: str, why: str) -> ClusterError:
    return ClusterError(
        f"cannot use `{where}` in {origin}",
        why=why,
        fix="see the schema in docs/cluster.md",
    )


def _parse(kind: type[T], table: Mapping[str, Any], where: str, origin: str) -> T:
    """Read a TOML table into the dataclass that describes it, checking names and types."""
    hints = _hints(typing.cast("Any", kind))
    unknown = sorted(set(table) - set(hints))
    if unknown:
        match = nearest(unknown[0], hints)
        raise ClusterError(
            f"unknown key `{unknown[0]}` in `{where}` ({origin})",
            why="known keys are: " + ", ".join(sorted(set(hints) - {"name"})),
            fix=f"did you mean `{match}`?" if match else "remove it; see docs/cluster.md",
        )
    values = {}
    for key, value in table.items():
        values[key] = _convert(hints[key], value, f"{where}.{key}", origin)
    missing = [
        each.name
        for each in dataclasses.fields(kind)  # type: ignore[arg-type]
        if each.name not in values
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise _damaged(origin, where, f"`{missing[0]}` is missing")
    return kind(**values)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    # Resolving annotations is slow, and a profile has dozens of tables of the same few kinds.
    return typing.get_type_hints(kind)


def _convert(hint: Any, value: Any, where: str, origin: str) -> Any:
    """Return `value` as the type that `hint` asks for, or say what it should have been."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind is types.UnionType or kind is typing.Union:
        return _convert(arguments[0], value, where, origin)
    if kind is typing.Literal:
        if value in arguments:
            return value
        raise _damaged(origin, where, f"it is {value!r}; it may be one of {list(arguments)}")
    if kind is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], each, where, origin) for each in value)
    if kind is dict and isinstance(value, dict):
        return {
            key: _convert(arguments[1], _named(arguments[1], key, each), f"{where}.{key}", origin)
            for key, each in value.items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _parse(typing.cast("type[Any]", hint), value, where, origin)
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    expected = {dt.date: "a date", tuple: "a list", dict: "a table"}.get(kind or hint)
    raise _damaged(origin, where, f"it is {value!r}, not {expected or _WORDS.get(hint, hint)}")


def _named(hint: Any, key: str, value: Any) -> Any:
    is_table = dataclasses.is_dataclass(hint) and isinstance(value, dict)
    return {"name": key, **value} if is_table else value
