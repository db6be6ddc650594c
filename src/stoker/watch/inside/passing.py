"""Steps of which nothing is wanted but how long they were, and which go as the one before."""

from __future__ import annotations

# What was seen of the open step: the model was called, the backward pass was run, the latter last.
SEEN_FORWARD, SEEN_BACKWARD, ANSWERED = 1, 2, 4


class Passing:
    """Steps that pass by, each as the one before: of them only the ends are noted, in a list.

    What notes them stands in the way of every step, with the processor's caches full of other
    things, where a wrapped function takes two microseconds or more: the fewer words the better.
    """

    __slots__ = ("began", "ends", "giver", "left", "optimizers", "seen", "stepped_at", "until")

    def __init__(self, giver: int, optimizers: int, began: float, left: int, until: float) -> None:
        # The loader that gives the batches, one for each step, and how many optimizers step; what
        # goes otherwise is looked at the long way.
        self.giver = giver
        self.optimizers = optimizers
        self.began = began
        self.ends: list[float] = []
        # How many may pass, and until when.
        self.left = left
        self.until = until
        # Of the step that is open: what was seen of it, and when the last optimizer had stepped.
        self.seen = 0
        self.stepped_at = 0.0
