"""A finding: what is wrong with a run, how we know, what to change and what that would bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.watch.summary import Summary

# In order of weight. A problem costs a tenth of the run or of what was reserved, or more;
# advice costs less or is less sure; information is worth knowing and asks for nothing.
LEVELS = ("problem", "advice", "information")
# A: results unchanged. B: the same mathematics in another order, rounding or random stream.
# C: changes the training.
SAFETY = ("A", "B", "C")
CONFIDENCE = ("high", "medium", "low")


@dataclass(frozen=True)
class Gain:
    """How many times as fast the run would be: a range that holds it, and what nothing can exceed.

    The range allows for the noise of the run; what is expected, by which findings are weighed, does not.
    """

    low: float
    high: float
    ceiling: float
    expected: float
    # By what share two runs of the same script may differ, which the first three allow for.
    noise: float = 0.0

    def __post_init__(self) -> None:
        assert 1.0 <= self.low <= self.expected <= self.high <= self.ceiling, self


@dataclass(frozen=True)
class Waste:
    """What was reserved and not used, in words of the reservation: `14 of 16 CPUs`."""

    what: str
    # The part of the cost of the run that it is, 0 to 1.
    share: float


@dataclass(frozen=True)
class Finding:
    """One cause, told apart from its neighbours."""

    # Stable, for programs: `loader-workers`.
    key: str
    level: str
    # A sentence each. The fix names the line or the command to change.
    what: str
    why: str
    fix: str
    confidence: str
    safety: str | None = None
    gain: Gain | None = None
    waste: Waste | None = None
    # The numbers behind `why`, by name with their unit: `data_share`, `core_count`.
    figures: Mapping[str, float] = field(default_factory=dict)
    # What to set in the run's environment, where that is all of the fix.
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.level in LEVELS, self.level
        assert self.confidence in CONFIDENCE, self.confidence
        assert self.safety is None or self.safety in SAFETY, self.safety

    @property
    def weight(self) -> float:
        """How much there is to win, as a share of the run's time or cost; orders findings."""
        gained = 0.0 if self.gain is None else 1 - 1 / self.gain.expected
        return max(gained, 0.0 if self.waste is None else self.waste.share)


# One rule, one cause: the finding, or None where the cause is not there or the data too weak.
Rule = Callable[[Summary], Finding | None]
