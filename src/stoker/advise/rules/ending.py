"""The end of a run: loader workers that nobody has told to go, and that Python waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.advise.finding import Finding, Rule
from stoker.advise.repeat import announce
from stoker.advise.rules.steady import level_of
from stoker.advise.stages import ENDING, stages_of
from stoker.advise.trainers import has_own_loader
from stoker.advise.verdict import slowest_rank
from stoker.advise.wait import training_loader
from stoker.units import plural, render_seconds
from stoker.watch.series import known_number
from stoker.watch.summary import Rank, Summary

# When Python ends, PyTorch waits so long for each pinned worker that stays, one after the other
# (github.com/pytorch/pytorch/issues/81794).
WAIT_S = 5.0
# They may have begun to end by themselves.
SURELY = 0.8
# Who exports a model or tests it after the last step is busy.
IDLE_CORES = 0.5


def waits_for_workers(summary: Summary) -> Finding | None:
    """Workers of a loader that is still there are waited for, five seconds each."""
    rank = slowest_rank(summary)
    workers = 0 if rank is None else _left_workers(rank)
    if not workers or summary.state != "ended" or summary.wall_s <= 0:
        return None
    end_s, whole_s = _idle_end_s(summary), WAIT_S * workers
    # Who waits for longer waits for something else.
    if not SURELY * whole_s <= end_s <= whole_s / SURELY + WAIT_S:
        return None
    waited_s = min(end_s, whole_s)
    gain = announce(summary, SURELY * waited_s, waited_s, waited_s)
    level = level_of(gain)
    if level is None:
        return None
    return Finding(
        key="slow-end",
        level=level,
        what=f"After the last step the run goes on for {render_seconds(end_s)}, and does nothing.",
        why=(
            f"The loader has pin_memory and persistent_workers, and is still there when Python ends: PyTorch then "
            f"waits {render_seconds(WAIT_S)} for each of {plural(workers, 'worker')}."
        ),
        fix=(
            f"Let go of the {_holder(rank)}, or make it in a function: its workers are then told to end."
        ),
        confidence="high",
        safety="A",
        gain=gain,
        figures={"end_s": end_s, "num_workers": workers},
    )


def _holder(rank: Rank | None) -> str:
    """Return what holds the workers, and how it is let go."""
    if rank is not None and has_own_loader(training_loader(rank)):
        return "Trainer after the training (`del trainer`)"
    return "loader after the last epoch (`del loader`)"


def _idle_end_s(summary: Summary) -> float:
    """Return how long the run went on after its last step; nothing where it did anything then."""
    end = next((stage for stage in stages_of(summary) if stage.name == ENDING), None)
    cores = None if end is None else end.levels.get("cpu.cores")
    is_idle = cores is not None and cores.mean < IDLE_CORES
    return end.seconds if end is not None and is_idle else 0.0


def _left_workers(rank: Rank) -> int:
    """Return the workers of the loaders that pin memory and keep their workers."""
    loaders = rank.facts.get("loaders")
    told = loaders.values() if isinstance(loaders, dict) else ()
    return sum(_workers(each) for each in told if isinstance(each, dict))


def _workers(loader: Mapping[str, Any]) -> int:
    is_left = loader.get("persistent_workers") is True and loader.get("pin_memory") is True
    return int(known_number(loader.get("num_workers")) or 0) if is_left else 0


RULES: tuple[Rule, ...] = (waits_for_workers,)
