"""The step split as text: what a step is made of, and what stands beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.verdict import median, slowest_rank
from stoker.report.table import clipped, columns, digits, render_bar
from stoker.units import plural, render_seconds, render_share
from stoker.watch.series import known_number
from stoker.watch.summary import Rank, Split, Summary

BAR = 24
# What forward holds besides one call of the model is told from this share of the step on.
MUCH_BESIDE = 0.1
KINDS = {"steady": "steady", "warmup": "warm-up", "first": "epoch's first"}


def render_steps(summary: Summary, edge: int) -> list[str]:
    """Return the split of the slowest rank's steps as a table."""
    rank = slowest_rank(summary)
    if rank is None:
        return []
    kind, split = next(
        ((kind, split) for kind, split in splits_of(rank).items() if split is not None),
        ("steady", None),
    )
    told = _beside_steps(rank)
    if split is None:
        return told
    ranks = [each for each in summary.ranks if each.steady is not None]
    rows = _split_rows(split, ranks if len(ranks) > 1 and kind == "steady" else [])
    title = f"{plural(split.steps, f'{KINDS[kind]} step')}, {_clock(split)}"
    if len(summary.ranks) > 1:
        title += f", {summary.name_of(rank)} on {rank.host}, the slowest of {len(summary.ranks):,}"
    return [clipped(row, edge) for row in (f"one step ({title})", *columns(rows), *told)]


def splits_of(rank: Rank) -> dict[str, Split | None]:
    """Return the splits of a rank's training steps by kind."""
    return {"steady": rank.steady, "warmup": rank.warmup, "first": rank.first}


def _clock(split: Split) -> str:
    if not split.device_steps:
        return "by the host's clock"
    if split.device_steps >= split.steps:
        return "by the device's clock"
    return f"by the device's clock in {split.device_steps} of them"


def _split_rows(split: Split, ranks: Sequence[Rank]) -> list[list[str]]:
    unit, factor = ("s", 1.0) if split.step.mean >= 10 else ("ms", 1e3)
    places = max(1, digits(factor * split.step.mean))

    def row(name: str, share: float, last: str) -> list[str]:
        seconds = [split.step.mean * share, *(spread(ranks, name) if ranks else ())]
        mine, *others = (f"{factor * each:.{places}f}" for each in seconds)
        return [f"  {name}", mine, render_share(share), *others, last]

    over = ("min", "median", f"max of {len(ranks):,}") if ranks else ()
    rows = [["  phase", unit, "share", *over, ""]]
    for phase in split.phases:
        share = split.share(phase)
        rows.append(row(phase, share, render_bar(share, BAR)))
    std = factor * split.step.std
    return [*rows, row("step", 1.0, f"± {std:.{places}f}")]


def spread(ranks: Sequence[Rank], name: str) -> tuple[float, float, float]:
    """Return the smallest, the median and the largest seconds of a phase over ranks."""
    values = [
        each.steady.step.mean * (1.0 if name == "step" else each.steady.share(name))
        for each in ranks
        if each.steady is not None
    ]
    return min(values), median(values), max(values)


def _beside_steps(rank: Rank) -> list[str]:
    """What is not in the split, a line each."""
    steady, told = rank.steady, []
    beside = (
        ("between", "from one call of the model to the next", steady.between_s if steady else 0.0),
        ("evaluated", "in calls in evaluation mode", steady.evaluated_s if steady else 0.0),
    )
    for name, what, seconds in beside:
        if steady and seconds >= MUCH_BESIDE * steady.step.mean:
            told.append((name, f"{render_seconds(seconds)} a step, of forward, {what}"))
    if steady and steady.data_hidden_s > 0:
        told.append(
            (
                "data hidden",
                f"{render_seconds(steady.data_hidden_s)} a step of loading behind computing",
            )
        )
    if steady and steady.comm_overlapped_s > 0:
        told.append(
            (
                "comm hidden",
                f"{render_seconds(steady.comm_overlapped_s)} a step of communication behind computing",
            )
        )
    calls = known_number(rank.facts.get("batches_per_call"))
    if calls:
        told.append(("batches", f"{calls:g} a step: each is one call of TensorFlow's graph"))
    if rank.warmup:
        told.append(("warm-up", f"{plural(rank.warmup.steps, 'step')}, {_whole(rank.warmup)}"))
    if rank.first:
        steady_s = f", a steady one {render_seconds(steady.step.mean)}" if steady else ""
        told.append(
            (
                "epoch start",
                f"{render_seconds(rank.first.step.mean)} for the first step of an epoch{steady_s}",
            )
        )
    if rank.evaluation:
        told.append(
            (
                "evaluation",
                f"{plural(rank.evaluation.steps, 'batch', 'batches')}, {_whole(rank.evaluation)}",
            )
        )
    if rank.startup_s is not None:
        first = "step" if rank.steps else "batch"
        told.append(("start-up", f"{render_seconds(rank.startup_s)} before the first {first}"))
    return [f"  {name:<12}{text}" for name, text in told]


def _whole(split: Split) -> str:
    steps = known_number(split.steps)
    return "unknown" if steps is None else f"{render_seconds(split.step.mean * steps)} in all"
