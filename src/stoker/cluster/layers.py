"""Where facts and defaults come from: shipped < detected < user < project < command line.

A user or project file may override one fact of a shipped cluster, add a cluster, or
set defaults for the command line:

    [defaults]
    cluster = "mahti"
    account = "project_2001234"

    [cluster.mahti.partition.gpumedium]
    time = "2-00:00:00"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ClusterError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]

PROFILES = Path(__file__).parent / "profiles"
PROJECT_FILE = "stoker.toml"


@dataclass(frozen=True)
class Layer:
    """One file (or the command line) that says something about clusters."""

    origin: str
    clusters: Mapping[str, Table]
    defaults: Mapping[str, Any]


def user_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where a person keeps their own facts."""
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config"
    return Path(home) / "stoker" / "config.toml"


def saved_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where detected profiles are kept, one file a cluster."""
    return user_file(environ).parent / "clusters"


def project_file(start: Path) -> Path | None:
    """Return the nearest `stoker.toml` at or above `start`."""
    for folder in (start, *start.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
    return None


def read_toml(path: Path) -> Table:
    """Read one TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ClusterError(
            f"cannot read `{path}`",
            why=error.strerror or str(error),
            fix="check its permissions, or remove it",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(
            f"`{path}` is not TOML", why=str(error), fix="mend the line that it names"
        ) from None


def read_layer(path: Path) -> Layer:
    """Read a user or project file."""
    table = read_toml(path)
    unknown = sorted(set(table) - {"defaults", "cluster"})
    clusters, defaults = table.get("cluster", {}), table.get("defaults", {})
    tables = isinstance(clusters, dict) and isinstance(defaults, dict)
    if unknown or not tables or not all(isinstance(each, dict) for each in clusters.values()):
        raise ClusterError(
            f"`{path}` holds " + (f"`{unknown[0]}`" if unknown else "a value") + " we cannot use",
            why="a Stoker file has two kinds of tables: [defaults] and [cluster.NAME]",
            fix="put facts about a cluster under [cluster.NAME]; see docs/cluster.md",
        )
    return Layer(str(path), {fold(name): each for name, each in clusters.items()}, defaults)


def fold(name: str) -> str:
    """Return a cluster's name as files have it: people write Béluga, CVL@UWA and my-box."""
    plain = name.casefold().replace("é", "e")
    return plain.replace("@", "_").replace("-", "_").replace(" ", "_")


def parse_overrides(texts: Iterable[str], cluster: str) -> tuple[Layer, ...]:
    """Read `partition.gpu.time="5-00:00:00"` from the command line as the last layer, if any."""
    table: Table = {}
    for text in texts:
        key, equals, value = text.partition("=")
        one = _fact(key, value) if equals else None
        if one is None:
            raise UsageError(
                f"`--set {text}` is not a fact",
                why="a fact is a key with dots, an equals sign and a value",
                fix="write for example --set partition.gpu.time=5-00:00:00",
            )
        table = merge(table, one)
    return (Layer("--set", {fold(cluster): table}, {}),) if table else ()


def _fact(key: str, value: str) -> Table | None:
    """Read one `key = value`; a value that is not TOML is taken as text."""
    for text in (value, _toml_string(value)):
        try:
            return tomllib.loads(f"{key} = {text}")
        except ValueError:
            continue
    return None


def _toml_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def merge(low: Table, high: Mapping[str, Any]) -> Table:
    """Lay `high` over `low`; tables are merged, everything else is replaced."""
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def file_layers(start: Path, environ: Mapping[str, str] = os.environ) -> tuple[Layer, ...]:
    """Return the layers that lie on disk: detected profiles, the user's file, the project's."""
    saved = sorted(saved_folder(environ).glob("*.toml"))
    paths = [*saved, user_file(environ), project_file(start)]
    return tuple(read_layer(path) for path in paths if path is not None and path.is_file())


def defaults(layers: Iterable[Layer]) -> Table:
    """Return the command line's defaults, later layers winning."""
    merged: Table = {}
    for layer in layers:
        merged = merge(merged, layer.defaults)
    return merged
