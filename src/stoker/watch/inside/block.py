"""What is kept of steps: the sums of those of about a second, a row of the step record."""

from __future__ import annotations

from .phases import NAMES

# The kinds of a step; the first of an epoch and one that is traced for its lines are kept apart, and
# so is a batch that no backward pass followed.
WARMUP, FIRST, STEADY, EVALUATION, TRACED = "warmup", "first", "steady", "eval", "traced"
KINDS = (WARMUP, FIRST, STEADY, EVALUATION, TRACED)

# One row of the step record a second.
BLOCK_S = 1.0

# The names of measures are made once: a step adds ten of them.
_STEP = {kind: f"{kind}.step" for kind in KINDS}
_PHASES = {kind: tuple(f"{kind}.{name}" for name in NAMES) for kind in KINDS}
# What the host saw of a step whose phases are measured on the device, and of how many steps.
_HOST_STEP = {kind: f"{kind}.host.step" for kind in KINDS}
_HOST_PHASES = {kind: tuple(f"{kind}.host.{name}" for name in NAMES) for kind in KINDS}


class Step:
    """One step as the host saw it: its kind, its length and its phases in seconds."""

    __slots__ = ("has_forward", "host", "kind", "length")

    def __init__(self, kind: str, length: float, host: list[float], has_forward: bool) -> None:
        self.kind = kind
        self.length = length
        self.host = host
        self.has_forward = has_forward


class Block:
    """The steps of about a second: count, sum, sum of squares and maximum of each measure."""

    __slots__ = ("end", "start", "sums")

    def __init__(self, start: float) -> None:
        self.start = start
        self.end = start
        self.sums: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """Add one value of one measure."""
        sums = self.sums.get(name)
        if sums is None:
            self.sums[name] = [1, value, value * value, value]
            return
        sums[0] += 1
        sums[1] += value
        sums[2] += value * value
        sums[3] = max(sums[3], value)

    def add_length(self, kind: str, length: float) -> None:
        """Add a step of some kind, of which no more may be known."""
        self.add(_STEP[kind], length)

    def add_phases(self, kind: str, phases: list[float]) -> None:
        """Add the phases of such a step."""
        self._add_all(_PHASES[kind], phases)

    def add_host(self, step: Step) -> None:
        """Add what the host saw of a step that works on the device, where its phases are measured."""
        self.add(_HOST_STEP[step.kind], step.length)
        self._add_all(_HOST_PHASES[step.kind], step.host)

    def _add_all(self, names: tuple[str, ...], values: list[float]) -> None:
        for name, value in zip(names, values, strict=True):
            if value:
                self.add(name, value)
