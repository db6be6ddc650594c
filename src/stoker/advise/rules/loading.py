"""The loader: too few workers, too many, too few CPUs, one slow line, restarts, slow copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.advise.finding import Finding, Gain, Rule
from stoker.advise.repeat import announce, seen_error
from stoker.advise.rules.pauses import LOOPING
from stoker.advise.source import Source
from stoker.advise.trainers import ends_workers, has_own_loader, settings, taker
from stoker.advise.verdict import MIN_STEADY_STEPS, WORTH_SHARE, slowest_rank
from stoker.advise.wait import (
    LEAST_GAIN,
    Wait,
    level_of,
    read_wait,
    training_loader,
)
from stoker.units import plural, render_number, render_part, render_seconds, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Rank, Split, Summary

# Steps that were measured on the device's own clock before its copies are believed.
MIN_DEVICE_STEPS = 5
# A worker that shares a machine with others does at worst so much of what it would do alone, and
# passes its batches on to training, which takes that time from the rest of the step.
EFFICIENCY, PASSING = 0.7, 1.15
# What is asked for beyond the need: batches differ, and a worker that is late is waited for.
RESERVE = 1.2
# Starting one worker, by a fork, from a quiet machine to a busy one.
START_S, SLOW_START_S = 0.01, 0.2


def too_few_workers(summary: Summary) -> Finding | None:
    """Batches are made one after the other while cores are free."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "workers" or wait.cores is None:
        return None
    workers = _workers_for(wait, wait.cores)
    if workers <= wait.workers:
        return None
    gain = _gain_of_workers(wait, workers, wait.cores)
    if gain.expected < LEAST_GAIN:
        return None
    now = "training makes its batches itself (num_workers=0)"
    if wait.workers:
        now = f"{plural(wait.workers, 'worker')} cannot keep up"
    is_shared = bool(wait.loader.get("is_iterable"))
    wanted = settings(wait.loader, num_workers=workers, persistent_workers=True)
    fix = f"Give {taker(wait.loader)} `{wanted}`"
    if is_shared:
        fix += ", and let the dataset give each worker its own part (`torch.utils.data.get_worker_info`)"
    return Finding(
        key="loader-workers",
        level=level_of(gain),
        what=f"The loader has too few workers: {now}.",
        why=f"{wait.sentence()}; a batch takes {render_seconds(wait.load.wall_s)} to make, the rest of the "
        f"step {render_seconds(wait.rest_s)}, and {render_number(wait.busy)} of "
        f"{wait.cores:g} cores are busy.",
        fix=f"{fix}.{_let_go(wait.loader)}",
        confidence="high" if wait.load.is_measured and gain.low > 1 else "medium",
        safety="C" if is_shared else "B",
        gain=gain,
        figures={**wait.figures(), "workers_to": workers},
    )


def too_few_cpus(summary: Summary) -> Finding | None:
    """All cores that the job may use are busy, and its machine has more."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "cpus" or not wait.cores or not wait.cores_machine:
        return None
    workers = _workers_for(wait, wait.cores_machine)
    cores = min(math.floor(wait.cores_machine), max(math.ceil(wait.cores) + 1, workers + 1))
    gain = _gain_of_workers(wait, max(workers, wait.workers, 1), cores)
    if gain.expected < LEAST_GAIN:
        return None
    tasks = _tasks(summary, wait.rank)
    told = f"`#SBATCH --cpus-per-task={math.ceil(cores * tasks)}`"
    wanted = f", and `{settings(wait.loader, num_workers=workers)}` for {taker(wait.loader)}"
    with_workers = wanted if workers > wait.workers else ""
    return Finding(
        key="loader-cpus",
        level=level_of(gain),
        what=f"The loader has too few CPUs: the job may use {wait.cores:g} of "
        f"{wait.cores_machine:g}.",
        why=f"{wait.sentence()}, and all cores that it may use are taken; a batch takes "
        f"{render_seconds(wait.load.core_s)} of CPU time.",
        fix=f"{told} in the batch script{with_workers}.",
        confidence="high" if wait.load.is_measured and gain.low > 1 else "medium",
        safety="A" if workers <= wait.workers else "B",
        gain=gain,
        figures={**wait.figures(), "cpus_to": cores, "workers_to": workers},
    )


def too_many_workers(summary: Summary) -> Finding | None:
    """Workers take the cores from each other and from training."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "crowded" or wait.cores is None:
        return None
    workers = max(1, math.floor(wait.cores))
    # At worst the cores do the same work, only in turn. At best nobody waits for a core, and what the
    # workers do takes less of them: 16 on the 10 cores of an H200 node gave half of what 10 gave.
    best = wait.free_rest_s
    gain = wait.gain(best, wait.step_s, best)
    return Finding(
        key="loader-crowded",
        level="advice",  # that fewer gain anything is not sure
        what=f"The loader has too many workers: {wait.workers} share "
        f"{plural(wait.cores, 'core')} with training.",
        why=f"{wait.sentence()}, while workers wait for a core "
        f"{render_share(wait.load.queue_s / wait.load.wall_s)} of their time.",
        fix=f"Give {taker(wait.loader)} `{settings(wait.loader, num_workers=workers)}`, or ask for "
        f"`--cpus-per-task={math.ceil((wait.workers + 1) * _tasks(summary, wait.rank))}`.",
        confidence="medium",
        safety="B",
        gain=gain,
        figures={**wait.figures(), "workers_to": workers},
    )


def slow_line(summary: Summary) -> Finding | None:
    """One line of the user's code takes most of the loading."""
    wait = read_wait(summary)
    if wait is None or wait.cause != "line" or wait.line is None:
        return None
    # Half of the line's time is soon found; to do all of it ahead of training is the most.
    # It was only looked at now and then: its share is a little more or less.
    most = min(1.0, wait.line_share * (1 + seen_error(wait.line.own_s)))
    least = wait.line_share * (1 - seen_error(wait.line.own_s)) / 2
    worst, best = wait.step_with(1 - least), wait.best_with(1 - most)
    gain = wait.gain(best, worst, best)
    if gain.expected < LEAST_GAIN:
        return None
    more = ""
    free = _workers_for(wait, wait.cores) if wait.cores and wait.loader else 0
    if free > wait.workers and not wait.is_taken:
        wanted = settings(wait.loader, num_workers=free)
        more = f"; until then, {wanted} spreads it over the free cores"
    place = f"{Path(wait.line.file).name}:{wait.line.line}"
    function = wait.line.function
    inside = "" if function.startswith("<") else f", in {function}"
    return Finding(
        key="loader-line",
        level=level_of(gain),
        what=f"One line takes {render_share(wait.line_share)} of all loading: {place}{inside}.",
        why=f"{wait.sentence()}; a batch takes {render_seconds(wait.load.wall_s)} to make, of which "
        f"{render_part(wait.load.wall_s * wait.line_share, wait.load.wall_s)} are spent there.",
        fix=f"Do what {place} does once, ahead of training, or in fewer, larger operations{more}.",
        confidence="high" if wait.line_share >= 0.75 else "medium",
        safety="B",
        gain=gain,
        figures={**wait.figures(), "line_share": wait.line_share},
    )


def workers_restart(summary: Summary) -> Finding | None:
    """Every epoch begins with new workers, and training waits until they have started."""
    rank = slowest_rank(summary)
    if rank is None or rank.first is None or rank.steady is None or summary.wall_s <= 0:
        return None
    loader = training_loader(rank)
    workers = int(known_number(loader.get("num_workers")) or 0)
    if not workers or loader.get("persistent_workers") or rank.steady.steps < MIN_STEADY_STEPS:
        return None
    steady = rank.steady
    extra = _data_s(rank.first) - _data_s(steady)
    # A new epoch finds no batch ready with workers that stay, either.
    filling = min(extra, workers * steady.step.mean)
    epochs = rank.first.steps
    # In short epochs the steps after the first wait for new workers, too.
    wait = read_wait(summary)
    later = steady.steps * _data_s(steady) if wait is not None and wait.cause == "restart" else 0.0
    saved = epochs * extra + later
    gain = announce(summary, epochs * (extra - filling), saved, saved)
    if epochs < 2 or gain.expected < LEAST_GAIN:
        return None
    return Finding(
        key="loader-restart",
        level=level_of(gain),
        what=f"The loader starts its {plural(workers, 'worker')} anew in every epoch.",
        why=f"The first step of an epoch waits {render_seconds(_data_s(rank.first))} for data, a later "
        f"one {render_seconds(_data_s(steady))}; there were {plural(rank.epochs, 'epoch')}.",
        fix=f"{_stay(loader)}{_let_go(loader)}",
        confidence="high",
        safety="B",
        gain=gain,
        figures={
            "first_data_s": _data_s(rank.first),
            "steady_data_s": _data_s(steady),
            "epochs": rank.epochs,
            "num_workers": workers,
        },
    )


def pageable_copies(summary: Summary) -> Finding | None:
    """Batches are copied to the GPU from memory that is not pinned."""
    rank = slowest_rank(summary)
    if rank is None or rank.steady is None or summary.wall_s <= 0:
        return None
    split, loader = rank.steady, training_loader(rank)
    is_measured = split.device_steps >= MIN_DEVICE_STEPS
    if not is_measured or split.share("h2d") < WORTH_SHARE or loader.get("pin_memory") is not False:
        return None
    copying = split.step.mean * split.share("h2d")
    # From pinned memory a copy takes half as long or less, and at best is hidden by computing.
    copies = rank.steps * copying
    most = copies + freeing_s(summary, rank)
    gain = announce(summary, copies / 2, most, most)
    return Finding(
        key="loader-pinning",
        level=level_of(gain),
        what="Batches are copied to the GPU from memory that is not pinned.",
        why=f"Copies take {render_share(split.share('h2d'))} of each step "
        f"({render_part(copying, split.step.mean)} of {render_part(split.step.mean, split.step.mean)}), "
        "and the loader has pin_memory=False.",
        fix=f"Give {taker(loader)} `{settings(loader, pin_memory=True)}`, and {_unblocked(loader)}.",
        confidence="high",
        safety="A",
        gain=gain,
        figures={"h2d_share": split.share("h2d"), "h2d_s": copying},
    )


def freeing_s(summary: Summary, rank: Rank) -> float:
    """Return the seconds in which the loop frees the batches that workers have made.

    That is where the next one is taken, at the loop's own line, and no wait for data. From pinned
    memory another thread copies, and frees them.
    """
    if rank.steady is None or not training_loader(rank).get("num_workers"):
        return 0.0
    source = Source(known_number(summary.run.get("start")))
    own_s = max(
        (
            line.own_s
            for line in rank.lines
            if LOOPING.match(source.line(line.file, line.line) or "")
        ),
        default=0.0,
    )
    splits = [each for each in (rank.steady, rank.first, rank.warmup, rank.evaluation) if each]
    # The host waits there, too, while the device computes.
    waits_s = sum(
        each.steps * (each.phases.get("data", 0.0) + each.data_hidden_s) for each in splits
    )
    other_s = rank.steady.steps * rank.steady.phases.get("other", 0.0)
    return max(0.0, min(other_s, own_s - waits_s))


# -- what the rules share ------------------------------------------------------------


def _workers_for(wait: Wait, cores: float) -> int:
    """How many workers keep up with training, as far as there are cores for them."""
    most = math.floor(cores) if cores <= 2 else math.floor(cores) - 1
    # Where training takes all but no time, workers can only be fewer than wanted.
    need = wait.load.wall_s / max(wait.rest_s, wait.load.wall_s / 1000)
    return max(0, min(most, math.ceil(RESERVE * need)))


def _gain_of_workers(wait: Wait, workers: int, cores: float) -> Gain:
    """The gain of so many workers on so many cores: the slowest of training, loading, cores."""
    used = wait.busy * wait.step_s
    alone = wait.load.core_s + wait.load.idle_s
    best = max(wait.free_rest_s, alone / workers, used / cores)
    left = min(cores, wait.cores_left or cores) if cores == wait.cores else cores
    worst = max(
        wait.rest_s * PASSING,
        wait.load.wall_s / (workers * EFFICIENCY),
        used / (max(left, wait.busy) * EFFICIENCY),
    )
    epochs = max(1, wait.rank.epochs)
    cost = SLOW_START_S * workers + epochs * wait.load.wall_s
    return wait.gain(min(best, wait.step_s), min(worst, wait.step_s), wait.free_rest_s, cost)


def _tasks(summary: Summary, rank: Rank) -> float:
    """How many ranks one task of Slurm's holds: one, unless a launcher started them."""
    environment = summary.run.get("environment")
    told = environment.get("SLURM_NTASKS") if isinstance(environment, dict) else None
    here = sum(each.host == rank.host for each in summary.ranks)
    return here if str(told) in ("None", "1") else 1


def _stay(loader: Mapping[str, Any]) -> str:
    """Write how workers stay from one epoch to the next."""
    wanted = settings(loader, persistent_workers=True)
    if has_own_loader(loader):
        return f"Give {taker(loader)} `{wanted}`."
    return f"Make the loader once, before the first epoch, with `{wanted}`."


def _unblocked(loader: Mapping[str, Any]) -> str:
    """Write how copies from pinned memory are not waited for."""
    if has_own_loader(loader):
        return '`accelerator_config={"non_blocking": True}`'
    if loader.get("trainer") == "lightning":
        return "Lightning copies with `non_blocking=True` by itself"
    return "copy with `batch.to(device, non_blocking=True)`"


def _let_go(loader: Mapping[str, Any]) -> str:
    """Write what workers that stay want at the end, where memory is pinned; see ending.py."""
    if loader.get("pin_memory") is not True or ends_workers(loader):
        return ""
    what = "the Trainer after the training" if has_own_loader(loader) else "it after the last epoch"
    return f" `del` {what}: PyTorch waits 5 s for each worker that is left at the end."


def _data_s(split: Split) -> float:
    return split.step.mean * split.share("data")


RULES: tuple[Rule, ...] = (
    too_few_workers,
    too_few_cpus,
    too_many_workers,
    slow_line,
    workers_restart,
    pageable_copies,
)
