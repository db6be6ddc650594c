"""How far another run of the same script may come out from this one: what a promise allows for.

A gain is announced before the fix and measured after it, in another run. What the fix leaves of the
run takes a little more or less there; by how much, this run tells.
"""

from __future__ import annotations

import math
from functools import lru_cache

from stoker.advise.crowd import crowd_on
from stoker.advise.finding import Gain
from stoker.advise.noise import MAX_LIKENESS, Estimate, estimate, spread
from stoker.advise.verdict import slowest_rank
from stoker.watch.summary import Machine, Rank, Summary

# The lines of a stack are seen about so often: looks come every 0.02 s at first, every 0.1 s after
# that; after a thousand stacks it is longer, when a line that matters was seen often.
LOOK_S = 0.1
# Nothing is a thousand times as fast.
LEAST_LEFT = 1e-3


def announce(summary: Summary, least_s: float, most_s: float, whole_s: float) -> Gain:
    """Return the gain of a run that becomes shorter: by so much surely, at best, without the cause.

    The middle between the first two is expected. The ends allow for what two runs differ by.
    """
    # Of a run whose clock was set back nothing can be saved.
    run_s, noise = summary.wall_s or 1.0, repeat_noise(summary)
    most_s = max(0.0, most_s)
    least_s = min(most_s, max(0.0, least_s))

    def gain(saved_s: float) -> float:
        return run_s / max(run_s - saved_s, LEAST_LEFT * run_s)

    return Gain(
        low=max(1.0, gain(least_s) / (1 + noise)),
        high=gain(most_s) * (1 + noise),
        ceiling=gain(max(most_s, whole_s)) * (1 + noise),
        expected=gain((least_s + most_s) / 2),
        noise=noise,
    )


@lru_cache(maxsize=1)  # every rule that announces a gain asks for it
def repeat_noise(summary: Summary) -> float:
    """Return by what share the time of another run of the same script may differ, either way."""
    rank = slowest_rank(summary)
    machine = next(
        (each for each in summary.machines if rank is not None and each.host == rank.host), None
    )
    return _own(rank) + (0.0 if machine is None else _neighbours(machine))


def seen_error(seconds: float) -> float:
    """Return by what share the seconds of a line may be off, as it was only looked at now and then.

    >>> round(seen_error(10.0), 2), round(seen_error(0.5), 2)
    (0.1, 0.45)
    """
    return math.sqrt(LOOK_S / seconds) if seconds > 0 else 0.0


def _own(rank: Rank | None) -> float:
    """By how much a run that is just like this one may differ from it."""
    step = _step(rank)
    if step is None:
        step = Estimate(1.0, 0.0, math.inf)
    return spread(step, step)


def _step(rank: Rank | None) -> Estimate | None:
    if rank is None or rank.steady is None or rank.steady.step.mean <= 0:
        return None
    stats = [row.stats["steady.step"] for row in rank.rows if "steady.step" in row.stats]
    found = estimate([(stat.count, stat.mean) for stat in stats])
    if found is not None and found.value > 0:
        return found
    # Too short for blocks: single steps, taken to be as alike as they may be.
    step, widening = rank.steady.step, (1 + MAX_LIKENESS) / (1 - MAX_LIKENESS)
    error = step.std * math.sqrt(widening / step.count)
    return Estimate(step.mean, error, max(2.0, step.count / widening - 1))


def _neighbours(machine: Machine) -> float:
    """What others on the same cores may take or leave: how often a core that we want is theirs."""
    crowd = crowd_on(machine)
    # A job that has cores of its own shares them with nobody.
    return 0.0 if crowd is None else crowd.others * crowd.own
