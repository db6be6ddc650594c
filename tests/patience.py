"""Patience with the machine: what a neighbour or a library spoils once is tried again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

Result = TypeVar("Result")
Done = subprocess.CompletedProcess[str]

# A neighbour may hide a cause, or fall into a phase, but not thrice.
TRIES = 3
# With more cores than this in others' hands, it is their time that is measured.
QUIET_CORES = 0.4
# What PyTorch's Gloo threads say when they outlive Python: `destroy_process_group` does not end
# them while DDP's reducer lives (pytorch#179291, pytorch#190489).
OUTLIVED = "terminate called without an active exception"
# What Python says at times of spawned workers: it ends while another of its threads, which has removed
# a semaphore, is about to tell the tracker so.
UNTOLD = "resource_tracker: There appear to be"


class Spent(NamedTuple):
    """Processor time until now, of the whole machine and of this process and its children."""

    wall_s: float
    machine_s: float
    own_s: float

    @classmethod
    def now(cls) -> Spent:
        """Read the clocks. The hypervisor's steal counts as a neighbour's."""
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words)
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), busy, sum(os.times()[:4]))

    def others_since(self) -> float:
        """Return how many cores somebody else has used since then."""
        now = Spent.now()
        used = (now.machine_s - self.machine_s) - (now.own_s - self.own_s)
        return used / max(1e-3, now.wall_s - self.wall_s)


def patiently(trial: Callable[[int], Result]) -> Result:
    """Try until no assertion fails; if all tries fail beside busy neighbours, skip the test."""
    for number in range(TRIES - 1):
        try:
            return trial(number)
        except AssertionError:
            continue
    before = Spent.now()
    try:
        return trial(TRIES - 1)
    except AssertionError:
        others = before.others_since()
        if others > QUIET_CORES:
            pytest.skip(f"failed {TRIES} times while others used {others:.1f} cores")
        raise


def run_ranks(run: Callable[[Path], Done], folder: Path) -> tuple[Path, Done]:
    """Run in a folder inside this one, and in another where Gloo's threads outlived Python."""
    for number in range(TRIES):
        place = folder / str(number)
        place.mkdir(parents=True)
        done = run(place)
        if OUTLIVED not in done.stderr:
            break
    return place, done
