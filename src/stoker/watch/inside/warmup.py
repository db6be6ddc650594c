"""How long the first steps of a loop are kept apart."""

from __future__ import annotations

# Autotuning, allocation and worker start make the first steps of any run slow.
WARMUP_STEPS = 3
# It goes on while steps take twice as long as the best so far, unless that has become the pace: of as
# many in a row, the longest is not that much longer than the shortest.
LATE_WARMUP_STEPS = 20
WARMUP_FACTOR = 2.0
PACE_FACTOR = 1.5


class WarmUp:
    """The first steps of one loop."""

    def __init__(self) -> None:
        self.is_on = True
        self._best_s = float("inf")
        self._lately: list[float] = []

    def has_step(self, number: int, length: float) -> bool:
        """Say whether this step, the so many-th, is a part of it; after one that is not, none is."""
        if not self.is_on:
            return False
        self._lately = [*self._lately, length][-WARMUP_STEPS:]
        has_pace = max(self._lately) <= PACE_FACTOR * min(self._lately)
        is_slow = length > WARMUP_FACTOR * self._best_s and not has_pace
        if number > 1:
            # The first is but a part where it was the first thing that was seen at all.
            self._best_s = min(self._best_s, length)
        self.is_on = number <= WARMUP_STEPS or (is_slow and number <= LATE_WARMUP_STEPS)
        return self.is_on
