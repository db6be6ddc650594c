"""Steps of which nothing is wanted but how long they were, and which go as the one before."""

from __future__ import annotations

# What was seen of the open step: the model was called, the backward pass was run, the latter last.
SEEN_FORWARD, SEEN_BACKWARD, ANSWERED = 1, 2, 4


class Passing:
    """Steps that pass by, each as the one before: of them only the ends are noted, in a list.

    Where such a step waits for data, and where an optimizer steps, is not told to the timeline: who
    wants to know finds it on the stack.

    What notes them stands in the way of every step, with the processor's caches full of other
    things, where a wrapped function takes two microseconds or more: the fewer words the better.
    """

    __slots__ = (
        "at", "began", "count", "ends", "giver", "left", "order", "seen", "stepped_at", "until",
    )  # fmt: skip

    def __init__(
        self, giver: int, optimizers: list[int], began: float, left: int, until: float
    ) -> None:
        # The loader that gives the batches, one for each step, and the optimizers that step, in
        # their order; what goes otherwise is looked at the long way. After the last comes none.
        self.giver = giver
        self.order = [*optimizers, 0]
        self.count = len(optimizers)
        self.began = began
        self.ends: list[float] = []
        # How many may pass, and until when.
        self.left = left
        self.until = until
        # Of the step that is open: what was seen of it, how many optimizers have stepped, and when
        # the last of them had.
        self.seen = 0
        self.at = 0
        self.stepped_at = 0.0

    def stepped(self) -> list[int]:
        """Return the optimizers that have stepped in the open step."""
        return self.order[: self.at]
