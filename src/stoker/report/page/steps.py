"""What a step is made of, as a bar, as a table and over time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stoker.advise.verdict import NOUNS, slowest_rank
from stoker.report.page.axis import Axis
from stoker.report.page.charts import Charts, Title, draw_parts
from stoker.report.page.markup import Html, joined, section, table, tag
from stoker.report.page.points import make_buckets, make_curve, step_quantiles, usual_highest
from stoker.report.steps import KINDS, splits_of, spread
from stoker.report.table import digits
from stoker.units import plural, render_seconds, render_share
from stoker.watch.series import Row, Stat
from stoker.watch.summary import Rank, Split, Summary, make_split

# Waits are worth a curve of their own where they come near this share of the step.
SHOWN_WAIT = 0.05
SHARES = (0.1, 0.5, 0.9)
MEANINGS = {
    "data": "waiting for the next batch",
    "h2d": "copies to the device",
    "forward": "the forward pass and the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
    "graph": "a graph: of CUDA, replayed, or of TensorFlow",
    "comm": "communication that no computing hides",
    "other": "any other code",
}


def render_step(summary: Summary, charts: Charts) -> Html | None:
    """Return the split of the rank that the others wait for."""
    rank = slowest_rank(summary)
    if rank is None:
        return None
    beside = _beside(rank, summary.wall_s)
    kind, split = next(
        ((kind, split) for kind, split in splits_of(rank).items() if split is not None),
        ("steady", None),
    )
    if split is None or not split.phases:
        return section("One step", beside, id_="step") if beside else None
    ranks = [each for each in summary.ranks if each.steady is not None] if kind == "steady" else []
    whose = f" of {summary.name_of(rank)} on {rank.host}, the slowest of {len(summary.ranks):,}"
    clock = (
        f"{split.device_steps:,} of them timed on the device's clock"
        if split.device_steps
        else "timed by the host's clock"
    )
    about = (
        f"The mean of {plural(split.steps, f'{KINDS[kind]} step')}"
        f"{whose if len(summary.ranks) > 1 else ''}, {clock}: "
        f"{render_seconds(split.step.mean)}, standard deviation {render_seconds(split.step.std)}."
    )
    return section(
        "One step",
        tag("p", about),
        _bar(split),
        _table(summary, split, ranks if len(ranks) > 1 else []),
        _over_time(rank, kind, split, charts),
        beside,
        id_="step",
    )


def _bar(split: Split) -> Html:
    parts = [
        (f"{phase} {render_share(split.share(phase))}", split.share(phase), f"phase-{phase}")
        for phase in split.phases
    ]
    return draw_parts("What a step is made of", parts)


def _table(summary: Summary, split: Split, ranks: Sequence[Rank]) -> Html:
    unit, factor = ("s", 1.0) if split.step.mean >= 10 else ("ms", 1e3)
    places = max(1, digits(factor * split.step.mean))
    one = "rank" if summary.is_ranked else "process"
    most = f"most of {summary.count_of(len(ranks))}"
    over = [f"least {one}", f"median {one}", most] if ranks else []

    def row(name: str, share: float, meaning: str) -> list[str]:
        seconds = [split.step.mean * share, *(spread(ranks, name) if ranks else ())]
        mine, *others = (f"{factor * each:.{places}f}" for each in seconds)
        swatch = _swatch(name) if name != "step" else ""
        return [joined([swatch, name]), mine, render_share(share), *others, meaning]

    rows = [row(each, split.share(each), MEANINGS.get(each, "")) for each in split.phases]
    head = ["phase", unit, "share", *over, "what it is"]
    return table(
        "The mean step by phase",
        head,
        [*rows, row("step", 1.0, "the whole step")],
        "numbers last-text",
    )


def _swatch(phase: str) -> Html:
    square = tag("rect", width=14, height=12, class_=f"part phase-{phase}")
    return tag("svg", square, class_="swatch", width=14, height=12, aria_hidden="true")


def _over_time(rank: Rank, kind: str, split: Split, charts: Charts) -> Html | None:
    """Return the length of a step over the run, and of the waits in it."""
    rows = [row for row in rank.rows if f"{kind}.step" in row.stats]
    if len(rows) < 3:
        return None
    unit, factor = ("s", 1.0) if split.step.mean >= 10 else ("ms", 1e3)
    lengths = [row.stats[f"{kind}.step"] for row in rows]
    low, middle, high = (factor * each for each in step_quantiles(lengths, SHARES))
    places = digits(factor * split.step.mean)
    told = f"median {middle:.{places}f}, 10–90 %: {low:.{places}f}–{high:.{places}f} {unit}"
    buckets = make_buckets(rows, charts.end_s)

    def whole(row: Row) -> Stat | None:
        stat = row.stats[f"{kind}.step"]
        return Stat(stat.count, *(factor * each for each in stat[1:]))

    curves = [make_curve("step", buckets, whole, told, usual_highest)]
    for phase in ("data", "comm"):
        if split.share(phase) >= SHOWN_WAIT:
            read = partial(_phase, kind=kind, phase=phase, factor=factor)
            curves.append(make_curve(NOUNS[phase], buckets, read))
    return charts.draw(
        Title("Length of a step over time", is_wide=True), buckets, curves, Axis(unit)
    )


def _phase(row: Row, kind: str, phase: str, factor: float) -> Stat | None:
    split = make_split(row.stats, kind)
    if split is None or not split.phases:
        return None
    value = factor * split.step.mean * split.share(phase)
    return Stat(split.steps, value, 0.0, value)


def _beside(rank: Rank, wall_s: float) -> Html | None:
    """Return what is not in a steady step, and where the rest of the run went."""
    rows: list[list[str]] = []

    def add(name: str, count: int, each_s: float) -> None:
        share = render_share(count * each_s / wall_s) if wall_s > 0 else "unknown"
        rows.append(
            [name, f"{count:,}", render_seconds(each_s), render_seconds(count * each_s), share]
        )

    if rank.startup_s is not None:
        first = "step" if rank.steps else "batch"
        add(f"start-up, before the first {first}", 1, rank.startup_s)
    for name, split in (
        ("warm-up steps", rank.warmup),
        ("first steps of an epoch", rank.first),
        ("steady steps", rank.steady),
        ("evaluation batches", rank.evaluation),
    ):
        if split is not None:
            add(name, split.steps, split.step.mean)
    if not rows:
        return None
    head = ["part of the run", "number", "each", "in all", "of the run"]
    hidden = []
    if rank.steady and rank.steady.data_hidden_s > 0:
        hidden.append(f"{render_seconds(rank.steady.data_hidden_s)} of loading")
    if rank.steady and rank.steady.comm_overlapped_s > 0:
        hidden.append(f"{render_seconds(rank.steady.comm_overlapped_s)} of communication")
    behind = f"Hidden behind computing, in each step: {', '.join(hidden)}." if hidden else None
    return joined(
        [
            tag("p", behind) if behind else None,
            table("Where the time of the run went", head, rows, "numbers"),
        ]
    )
