"""What a step is made of, by number and by name."""

from __future__ import annotations

# The phases people see, then two that are settled when the step is over: what stands between
# the batch and the model is `other` where the model's call was seen and `forward` where it was
# not; what stands between the model's call and the backward pass is the loss, so `forward`.
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, COMM, GRAPH, OTHER, PREPARE, LOSS = range(10)
NAMES = ("data", "h2d", "forward", "backward", "optimizer", "comm", "graph", "other")
COUNT = 10
# Phases in which a hook may begin a new one; in the others it is part of what is going on.
OPEN = frozenset((OTHER, PREPARE, LOSS, OPTIMIZER))
# Phases within which an optimizer may step, and which go on after it: a call that is a whole step, and
# a backward pass in which each gradient is used as soon as it is there.
STEPS_WITHIN = frozenset((FORWARD, BACKWARD))


def settled(totals: list[float], forward_seen: bool) -> list[float]:
    """Return the phases people see, with the two unsettled ones given to them."""
    seen = totals[:LOSS]
    prepare = seen.pop()
    seen[OTHER if forward_seen else FORWARD] += prepare
    seen[FORWARD] += totals[LOSS]
    return seen
