"""How fast the ranks of a job talk to each other: measured between real ranks, for real sizes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cluster.profile import Network
from stoker.engine.place import read_place
from stoker.engine.processes import Start, Wanted, make_start
from stoker.engine.rank_variables import has_gpu
from stoker.errors import StokerError, UsageError

PROGRAM = Path(__file__).parent / "collectives_rank.py"
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
# PyTorch's own default is 25.
BUCKETS_MB = (1, 5, 25, 100)
OPERATIONS = ("all-reduce", "broadcast", "all-gather")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Timing:
    """One collective of one size: the median of its repeats, and between what most of them lie."""

    operation: str
    size: int
    repeats: int
    median_s: float
    low_s: float
    high_s: float
    algorithm_gbps: float
    bus_gbps: float


@dataclass(frozen=True)
class Bucket:
    """A step of data-parallel training whose gradients travel in buckets of this size."""

    megabytes: int
    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Expected:
    """What the network of a node can carry, in 10⁹ bytes a second, and who says so."""

    gbps: float
    title: str
    source: str


@dataclass(frozen=True)
class Communication:
    """What was measured between the ranks of one launch."""

    backend: str
    device: str
    ranks: int
    nodes: int
    timings: tuple[Timing, ...]
    buckets: tuple[Bucket, ...] = ()
    parameters_mb: float = 0.0
    # Where ranks are on several nodes, and the cluster's profile knows.
    expected: Expected | None = None

    @property
    def best_bus_gbps(self) -> float:
        """The most that an all-reduce has carried, of any size."""
        return max((e.bus_gbps for e in self.timings if e.operation == "all-reduce"), default=0.0)


def bus_factor(operation: str, ranks: int) -> float:
    """Return how much each link carries for a byte of the result, as the best algorithm does it.

    >>> bus_factor("all-reduce", 4), bus_factor("all-gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if operation == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation == "all-gather" else 1.0


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return sizes in bytes.

    >>> parse_sizes("4K,1M")
    (4096, 1048576)
    """
    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})([KMG]?)i?B?", part.strip(), re.IGNORECASE)
        if found is None or int(found[1]) == 0:
            raise UsageError(
                f"`{part}` is not a size",
                why="a size is a number of bytes",
                fix="--sizes 4K,1M,64M",
            )
        sizes.append(int(found[1]) * _UNITS[found[2].upper()])
    return tuple(sorted(set(sizes)))


def measure(
    python: str,
    *,
    procs: int | None,
    sizes: Sequence[int],
    backend: str | None,
    env: Mapping[str, str],
) -> Communication | None:
    """Measure between the ranks of this launch, or of `procs` that we start; None on other ranks."""
    place = read_place(env)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        asked = json.dumps({"sizes": list(sizes), "backend": backend, "buckets": BUCKETS_MB})
        words = (str(PROGRAM), str(out), asked)
        if place.world_size > 1:
            _refuse_procs(procs, place.world_size)
            start = Start((python, *words), {})
        else:
            wanted = Wanted(procs or _default_procs(), words, python, framework="ddp")
            start = make_start(wanted, env)
        # What the ranks say is talk; standard output is for our table.
        done = subprocess.run(
            start.command,
            env={**env, **start.env},
            stdout=sys.stderr,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise StokerError(
                "the ranks did not get through",
                why=f"`{Path(start.command[0]).name}` ended with {done.returncode}; its words are above",
                fix="--python must have PyTorch; --backend gloo works without GPUs",
            )
        return read_measured(json.loads(out.read_text())) if out.exists() else None


def with_expected(measured: Communication, network: Network) -> Communication:
    """Lay beside what was measured what the site's network should give."""
    if measured.nodes < 2 or network.gbit_per_node is None:
        return measured
    known = Expected(network.gbit_per_node / 8, network.title or "the network", network.source)
    return replace(measured, expected=known)


def _refuse_procs(procs: int | None, ranks: int) -> None:
    if procs is not None:
        raise UsageError(
            f"--procs {procs} in a launch of {ranks} ranks",
            why="the ranks are here already",
            fix="leave --procs out",
        )


def _default_procs() -> int:
    """Return one process for each GPU, or two."""
    if not has_gpu():
        return 2
    count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir("/dev"))  # noqa: PTH208
    return max(2, count)


def read_measured(told: Mapping[str, Any]) -> Communication:
    """Return what rank 0 has written, with the bandwidths that follow."""
    ranks = int(told["ranks"])
    timings = []
    for row in told["timings"]:
        median, low, high = _spread(row["seconds"])
        speed = row["size"] / median / 1e9
        timings.append(
            Timing(row["operation"], row["size"], len(row["seconds"]), median, low, high, speed,
                   speed * bus_factor(row["operation"], ranks))
        )  # fmt: skip
    buckets = tuple(Bucket(row["megabytes"], *_spread(row["seconds"])) for row in told["buckets"])
    return Communication(
        told["backend"], told["device"], ranks, int(told["nodes"]), tuple(timings), buckets,
        float(told["parameters_mb"]),
    )  # fmt: skip


def _spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the values below and above which a tenth lies."""
    ordered = sorted(max(each, 1e-9) for each in seconds)
    last = len(ordered) - 1
    return ordered[(last + 1) // 2], ordered[round(0.1 * last)], ordered[round(0.9 * last)]
