"""The machine that figures are taken on, and the environments of the commands compared on it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
SRC = HERE.parent / "src"

# Printed by the interpreter that runs the training scripts, which need not be ours.
ASK = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
if "torch" in found:
    import torch
    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
print(json.dumps(found))
"""


def parse_starts(doc: str | None, name: str, repeats: int) -> argparse.Namespace:
    """Return the words of a benchmark that starts one training again and again."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    parser.add_argument("--budget-s", type=float, help="stop cleanly within so many seconds")
    parser.add_argument("-o", "--output", type=Path, default=HERE / f"{name}.json")
    args = parser.parse_args()
    if "/" in args.python:
        # Not resolved: a virtual environment's interpreter is a link.
        args.python = str(Path(args.python).absolute())
    return args


def plain_environment() -> dict[str, str]:
    """Return the environment without our own source on Python's path."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("STOKER_")}
    # What is installed is compiled; what lies here is so after its first run, unless forbidden.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [each for each in env.pop("PYTHONPATH", "").split(os.pathsep) if each]
    kept = [str(Path(each).absolute()) for each in paths if Path(each).resolve() != SRC.resolve()]
    return _with_paths(env, kept)


def stoker_environment() -> dict[str, str]:
    """Return the environment in which `python -m stoker` is the one beside these files."""
    env = plain_environment()
    return _with_paths(env, [str(SRC), *_paths(env)])


def peer_environment(peers: Path | None) -> dict[str, str]:
    """Return the environment of a peer that is installed in a folder (`pip install --target`)."""
    env = plain_environment()
    if peers is None:
        return env
    folder = peers.absolute()
    env["PATH"] = os.pathsep.join([str(folder / "bin"), env.get("PATH", "")])
    return _with_paths(env, [str(folder), *_paths(env)])


def _paths(env: Mapping[str, str]) -> list[str]:
    return [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]


def _with_paths(env: Mapping[str, str], paths: Sequence[str]) -> dict[str, str]:
    changed = {**env, "PYTHONPATH": os.pathsep.join(paths)}
    return changed if paths else {key: value for key, value in env.items() if key != "PYTHONPATH"}


def stoker_run(python: str, output: Path, *words: str) -> list[str]:
    """Return the command that runs words of the user's under watch, into a new folder."""
    options = ["--python", python, "-o", str(output)]
    return [sys.executable, "-m", "stoker", "run", *options, *words]


def quiet_cores() -> tuple[list[int], list[int]]:
    """Return two cores for what is timed, and those on other physical cores for the rest.

    On a machine with few cores both are empty: there everything shares them.
    """
    free = sorted(os.sched_getaffinity(0))
    chosen: list[int] = []
    while len(free) > 4 and len(chosen) < 2:
        chosen.append(free[0])
        beside = _siblings(free[0])
        free = [each for each in free if each not in beside]
    return (chosen, free) if len(chosen) == 2 and len(free) >= 4 else ([], [])


def _siblings(core: int) -> set[int]:
    file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    beside = {core}
    if file.exists():
        for part in file.read_text().strip().split(","):
            first, _, last = part.partition("-")
            beside.update(range(int(first), int(last or first) + 1))
    return beside


def describe_machine(
    python: str, packages: Sequence[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, GPU, and the versions of everything."""
    answer = subprocess.run(
        [python, "-c", ASK, *packages], env=dict(env), capture_output=True, text=True, check=False
    )
    versions = json.loads(answer.stdout) if answer.returncode == 0 else {"python": "unknown"}
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "gpu": versions.pop("gpu", None),
        "stoker": _stoker_version(),
        "versions": versions,
    }


def render_machine(machine: Mapping[str, Any]) -> str:
    """Return one sentence about the machine."""
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores{gpu}; {machine['system']}; {versions}; "
        f"stoker {machine['stoker']}; {machine['date']}; load before the run {machine['load_before']}."
    )


def _stoker_version() -> str:
    from stoker import __version__

    if shutil.which("git") is None:
        return __version__
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"{__version__} ({commit.stdout.strip()})" if commit.returncode == 0 else __version__


class Budget:
    """Seconds that a benchmark may take; what would not fit any more is not begun."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def has(self, seconds: float) -> bool:
        """Say whether something that takes so long still fits."""
        return self._end is None or time.monotonic() + seconds < self._end
