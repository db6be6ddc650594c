"""Ranks that wait: for one that is slower than the others, or for the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.advise.finding import Finding, Rule
from stoker.advise.rules.gpus import hot_rank
from stoker.advise.rules.steady import Steady, level_of, model_facts, place, read_steady
from stoker.advise.verdict import (
    LARGE_SHARE,
    MIN_STEADY_STEPS,
    NOUNS,
    SLOW_RANK,
    WORTH_SHARE,
    median,
    working_s,
)
from stoker.units import render_part, render_seconds, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Line, Rank, Split, Summary

MB = 1e6
# DDP's own buckets hold 25 MB; ones below this cost more to start than to send.
SMALL_BUCKET_MB = 1.0
# No network is slower than this: gradients that are sent at less are sent in crumbs.
CRUMBS_MB_S = 100.0
# Nor are two processes on one machine, however crowded: by Gloo 2 MB went at 195 to 567 MB/s on two
# cores with eight programs on them.
LOCAL_MB_S = 195.0
# How large DDP's own buckets are, after a first one of 1 MB.
BUCKET_MB = 25.0
# Messages half as long save half of what sending takes, and nothing of what starting them takes;
# several batches a step save more.
HALF_AS_LONG = (0.25, 0.75)
# On CPUs ranks also wait for their turn on a core, which is not the network's fault.
WORTH_ON_CPU = 0.15
# The lines of so many ranks are looked at; thousands would take long to read.
MAX_COMPARED = 8
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Lag:
    """How far one rank is behind the others, in seconds a step."""

    rank: Rank
    split: Split
    # The work of the slow rank, the median of the others, and the mean of all.
    own_s: float
    others_s: float
    mean_s: float
    # Where most of the difference is, and how much.
    phase: str
    phase_s: float
    # Whether all ranks of its machine are behind, and there are other machines.
    is_host: bool
    num_others: int


def find_lag(summary: Summary) -> Lag | None:
    """Return the rank that the others wait for; None if they are equal or the data is weak."""
    steady = read_steady(summary)
    if steady is None:
        return None
    slow, split = steady.rank, steady.split
    others = [
        (rank, rank.steady)
        for rank in summary.ranks
        if rank is not slow and rank.steady and rank.steady.steps >= MIN_STEADY_STEPS
    ]
    if not others:
        return None
    own = working_s(split)
    works = [working_s(each) for _, each in others]
    waited = median(each.step.mean * each.share("comm") for _, each in others)
    lag_s = own - median(works)
    if own < SLOW_RANK * median(works) or waited < lag_s / 2:
        return None
    if lag_s < WORTH_SHARE * split.step.mean:
        return None
    differences = {
        phase: _phase_s(split, phase) - median(_phase_s(each, phase) for _, each in others)
        for phase in split.phases
        if phase != "comm"
    }
    phase = max(differences, key=lambda each: differences[each])
    return Lag(
        rank=slow,
        split=split,
        own_s=own,
        others_s=median(works),
        mean_s=(own + sum(works)) / (1 + len(works)),
        phase=phase,
        phase_s=differences[phase],
        is_host=_is_host([rank for rank, _ in others], slow),
        num_others=len(others),
    )


def _phase_s(split: Split, phase: str) -> float:
    return split.step.mean * split.share(phase)


def _is_host(others: Sequence[Rank], slow: Rank) -> bool:
    here = [working_s(rank.steady) for rank in others if rank.host == slow.host]
    away = [working_s(rank.steady) for rank in others if rank.host != slow.host]
    # Alone on its machine, a rank's own work and its machine's slowness cannot be told apart.
    return bool(here and away) and min(here) >= SLOW_RANK * median(away)


def slow_rank(summary: Summary) -> Finding | None:
    """One rank works longer in each step than the others, who wait for it."""
    lag, steady = find_lag(summary), read_steady(summary)
    if lag is None or steady is None or hot_rank(summary, lag.rank):
        return None
    step_s = lag.split.step.mean
    # Shared out evenly the work takes the mean; what only this rank has too much goes away.
    low, high = (lag.own_s - lag.mean_s) / step_s, (lag.own_s - lag.others_s) / step_s
    # Ranks that come at the same time have less to wait for in communication, too: at best nothing.
    gain = steady.gain(low, high, high + lag.split.share("comm"))
    level = level_of(gain)
    if level is None:
        return None
    host = lag.rank.host or "an unknown host"
    who = f"{summary.name_of(lag.rank).capitalize()} on {host} slows"
    if lag.is_host:
        who = f"The ranks on {host} slow"
    return Finding(
        key="slow-host" if lag.is_host else "slow-rank",
        level=level,
        what=f"{who} the other{f' {lag.num_others}' if lag.num_others > 1 else ''} down.",
        why=(
            f"Its own work takes {render_part(lag.own_s, lag.own_s)} of each step against "
            f"{render_part(lag.others_s, lag.own_s)} elsewhere, and the others wait for the difference; "
            f"most of it is {NOUNS.get(lag.phase, lag.phase)} ({render_part(lag.phase_s, lag.own_s)})."
        ),
        fix=_even_out(summary, lag),
        confidence="high" if lag.phase_s >= (lag.own_s - lag.others_s) / 2 else "medium",
        safety="A" if lag.is_host or lag.phase == "other" else "B",
        gain=gain,
        figures={"own_s": lag.own_s, "others_s": lag.others_s, "rank": lag.rank.rank},
    )


def _even_out(summary: Summary, lag: Lag) -> str:
    if lag.is_host:
        return (
            f"See what else runs on {lag.rank.host}, tell the site's support, and leave it out "
            f"meanwhile: `#SBATCH --exclude={lag.rank.host}`."
        )
    if lag.phase == "data":
        return (
            "Give every rank equal samples (`DistributedSampler`), workers and files; sort by "
            "length before sharing out if samples differ."
        )
    line = _own_line(summary, lag)
    if lag.phase == "other":
        where = f" at {place(line)}" if line else ""
        return (
            f"Let {summary.name_of(lag.rank)} do less of its own in each step{where}: write, log and "
            "measure every 100 steps or in a thread, or share it among the ranks."
        )
    where = f", beginning with {place(line)}" if line else ""
    return (
        f"Share the work out evenly{where}: samples of like size for every rank. If they are "
        f"alike, see what else runs on {lag.rank.host or 'that machine'}."
    )


def _own_line(summary: Summary, lag: Lag) -> Line | None:
    """The line in which the slow rank spends most beyond what the others spend there."""
    others: dict[tuple[str, int], float] = {}
    for rank in [each for each in summary.ranks if each is not lag.rank][:MAX_COMPARED]:
        for line in rank.lines:
            key = (line.file, line.line)
            others[key] = max(others.get(key, 0.0), line.own_s)
    more = {
        line: line.own_s - others.get((line.file, line.line), 0.0)
        for line in lag.rank.lines
        if line.phase in (lag.phase, None, "other")
    }
    most = max(more, key=lambda each: more[each], default=None)
    # Less than a third of the lag is not what explains it.
    lag_s = (lag.own_s - lag.others_s) * lag.split.steps
    return most if most is not None and more[most] >= lag_s / 3 else None


def exposed_communication(summary: Summary) -> Finding | None:
    """Ranks wait for gradients that no computing hides."""
    steady = read_steady(summary)
    if steady is None or len(summary.ranks) < 2:
        return None
    share = min(_comm_share(rank.steady) for rank in summary.ranks)
    worth = WORTH_SHARE if steady.split.device_steps else WORTH_ON_CPU
    if share < worth or steady.split.share("data") >= max(share, LARGE_SHARE):
        return None
    shares, fix = _remedy(steady, share, summary)
    gain = steady.gain(*shares)
    level = level_of(gain)
    if level is None:
        return None
    hidden_s, comm_s = steady.split.comm_overlapped_s, share * steady.usual_s
    hidden = f"; {render_seconds(hidden_s)} more is hidden behind the backward pass"
    size = _gradient_bytes(steady.rank)
    volume = f"; the gradients are {size / MB:.3g} MB" if size else ""
    return Finding(
        key="exposed-communication",
        level=level,
        what=f"Communication that no computing hides takes {render_share(share)} of each step.",
        why=(
            f"All {len(summary.ranks)} ranks wait {render_seconds(comm_s)} of "
            f"{render_seconds(steady.usual_s)} for each other's gradients"
            f"{hidden if hidden_s > 0 else ''}{volume}."
        ),
        fix=fix,
        confidence="high" if size else "medium",
        safety="B",
        gain=gain,
        figures={"comm_share": share, "comm_s": comm_s, "hidden_s": hidden_s},
    )


def _comm_share(split: Split | None) -> float:
    """What the rank that waits least still waits is communication, not waiting for a rank."""
    return split.share("comm") if split is not None and split.steps >= MIN_STEADY_STEPS else 0.0


def _remedy(
    steady: Steady, share: float, summary: Summary
) -> tuple[tuple[float, float, float], str]:
    """Return what part of the step can be saved, surely, at best and if all were, and how."""
    rank, split = steady.rank, steady.split
    hidden = split.comm_overlapped_s / split.step.mean
    is_crumbs = _is_crumbs(steady, share, len(summary.ranks))
    # Called by hand after the backward pass, nothing can hide it.
    line = None if hidden else _comm_line(rank)
    if line is not None:
        whole = share + _arithmetic(steady, line)
        least = share - _sent_share(steady, summary)
        if not is_crumbs:
            least = _room(steady, share)
        return (least, whole, whole), (
            f"Let DistributedDataParallel average the gradients instead of {place(line)}: it sends "
            "them in large buckets while the backward pass goes on."
        )
    if is_crumbs:
        # What is sent beside computing takes its time from it, where both are on the same cores.
        whole = share if split.device_steps else share + hidden
        return (share - _sent_share(steady, summary), whole, whole), (
            "Send fewer and larger messages: leave `bucket_cap_mb` of DistributedDataParallel at 25."
        )
    low, high = (each * share for each in HALF_AS_LONG)
    hook = (
        "Send gradients half as long: `model.register_comm_hook(None, "
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)`; or take"
    )
    return (low, high, share), (
        f"{hook if split.device_steps else 'Take'} several batches per step, with `model.no_sync()` "
        "around all but the last: it makes the batch larger, which changes the training."
    )


def _arithmetic(steady: Steady, line: Line) -> float:
    """The share of the step that is spent beside the call in the same function: to divide, to copy."""
    beside = [
        each
        for each in steady.rank.lines
        if (each.file, each.function, each.phase) == (line.file, line.function, "other")
    ]
    own_s = sum(each.own_s for each in beside) / max(1, steady.rank.steps)
    return min(steady.split.share("other"), own_s / steady.step_s)


def _sent_share(steady: Steady, summary: Summary) -> float:
    """The share of the step that the gradients take at worst, if they are sent at one go."""
    size = _gradient_bytes(steady.rank) or 0.0
    is_local = len({rank.host for rank in summary.ranks}) == 1
    rate = LOCAL_MB_S if is_local else CRUMBS_MB_S
    return _sent_mb(size, len(summary.ranks)) / rate / steady.step_s


def _room(steady: Steady, share: float) -> float:
    """The share of the step that the backward pass surely hides: all but the last bucket."""
    if not steady.split.device_steps:
        return 0.0  # on a CPU both are on the same cores
    size = _gradient_bytes(steady.rank) or 0.0
    last = 1 / (1 + math.ceil(size / MB / BUCKET_MB))
    return (1 - last) * min(share, steady.split.share("backward"))


def _is_crumbs(steady: Steady, share: float, num_ranks: int) -> bool:
    """Say whether gradients are sent in messages that cost more to start than to send."""
    told = steady.rank.facts.get("ddp")
    buckets = known_number(told.get("buckets")) if isinstance(told, dict) else None
    size = _gradient_bytes(steady.rank)
    if size is None:
        return False
    if buckets:
        return buckets > 1 and size / buckets < SMALL_BUCKET_MB * MB
    spent_s = share * steady.usual_s + steady.split.comm_overlapped_s
    return _sent_mb(size, num_ranks) < CRUMBS_MB_S * spent_s


def _sent_mb(size: float, num_ranks: int) -> float:
    """What a rank sends of so many bytes: a ring passes all but 1/n of them on twice."""
    return 2 * (num_ranks - 1) / num_ranks * size / MB


def _gradient_bytes(rank: Rank) -> float | None:
    model = model_facts(rank)
    count, item = known_number(model.get("parameters")), ITEM_BYTES.get(str(model.get("dtype")))
    return None if not count or item is None else count * item


def _comm_line(rank: Rank) -> Line | None:
    lines = [line for line in rank.lines if line.phase == "comm"]
    return max(lines, key=lambda line: line.own_s, default=None)


RULES: tuple[Rule, ...] = (slow_rank, exposed_communication)
