"""Whether others on the same cores set the pace of a run, as on a login node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.watch.series import known_number
from stoker.watch.summary import Machine

# Cores that are busy, and by others than the run, from which on it is they who set the pace.
CROWDED, OTHERS = 0.85, 0.1


@dataclass(frozen=True)
class Crowd:
    """Shares of a machine's cores: those of the run, and those of others; and how many there are."""

    own: float
    others: float
    cores: float

    @property
    def sets_the_pace(self) -> bool:
        """Say whether the run must wait for cores that others have."""
        return self.own + self.others >= CROWDED and self.others >= OTHERS


def shared_cores(machine: Machine) -> float | None:
    """Return how many cores the run shares with all others; None where it has cores of its own."""
    cores, allowed = (
        known_number(machine.facts.get(name)) for name in ("cores_machine", "cores_allowed")
    )
    return cores if cores and allowed == cores else None


def crowd_of(cores: float, busy_pct: float, own_cores: float) -> Crowd:
    """Return who kept the cores busy, from what the machine and the run used of them."""
    own = min(1.0, max(0.0, own_cores / cores))
    return Crowd(own, min(1.0, max(0.0, busy_pct / 100 - own)), cores)


def crowd_on(machine: Machine) -> Crowd | None:
    """Return who kept the cores busy over the whole run; None where that is not known."""
    cores = shared_cores(machine)
    busy, own = machine.stats.get("cpu.machine_pct"), machine.stats.get("cpu.cores")
    if cores is None or busy is None or own is None:
        return None
    return crowd_of(cores, busy.mean, own.mean)


def crowded(machines: Iterable[Machine]) -> list[tuple[str, Crowd]]:
    """Return the machines on which others set the pace, by name."""
    found = [(each.host, crowd) for each in machines if (crowd := crowd_on(each)) is not None]
    return [(host, crowd) for host, crowd in found if crowd.sets_the_pace]
