"""The stages of a run on the page: as a table, and as what stands behind the curves."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.advise.stages import Level, Stage
from stoker.report.page.charts import Band
from stoker.report.page.markup import Child, Html, joined, section, table, tag
from stoker.units import plural, render_number, render_seconds, render_share

MAX_STAGES = 24
# Validation comes again and again between training: a band from its first to its last moment would
# say nothing. Rows of a record have a length, so that neighbours overlap a little.
SLACK = 0.1
LEVELS = (
    ("GPU load %", "gpu.duty_pct"),
    ("SM %", "gpu.sm_pct"),
    ("CPU cores", "cpu.cores"),
    ("read MB/s", "io.read_mb_s"),
)


def make_bands(stages: Sequence[Stage]) -> list[Band]:
    """Return the stages that stand behind the curves; all but training are shaded."""
    trainings = [stage for stage in stages if _is_training(stage)]
    return [
        Band(stage.name, stage.start_s, stage.end_s, not _is_training(stage))
        for stage in stages
        if stage.end_s > stage.start_s
        and (_is_training(stage) or not any(_overlap(stage, each) for each in trainings))
    ]


def _is_training(stage: Stage) -> bool:
    return stage.name.startswith("training")


def _overlap(stage: Stage, other: Stage) -> bool:
    common = min(stage.end_s, other.end_s) - max(stage.start_s, other.start_s)
    return common > SLACK * (stage.end_s - stage.start_s)


def render_stages(stages: Sequence[Stage], wall_s: float) -> Html | None:
    """Return the stages as a table; of many the longest."""
    if not stages:
        return None
    longest = sorted(stages, key=lambda each: -each.seconds)[:MAX_STAGES]
    shown = sorted(longest, key=lambda each: each.start_s)
    known = [each for each in LEVELS if any(each[1] in stage.levels for stage in shown)]
    rows = [_row(stage, wall_s, [metric for _, metric in known]) for stage in shown]
    about = None
    if len(stages) > len(shown):
        about = f"The {MAX_STAGES} longest of {plural(len(stages), 'stage')}."
    head = ["stage", "first", "last", "took", "of the run", "steps", "a step",
            *(title for title, _ in known)]  # fmt: skip
    caption = (
        "What the run did; readings: mean, below it what 10 %, 50 % and 90 % of the time stay under"
    )
    return section(
        "Stages",
        tag("p", about) if about else None,
        table(caption, head, rows, "numbers"),
        id_="stages",
    )


def _row(stage: Stage, wall_s: float, metrics: Sequence[str]) -> list[Child]:
    return [
        stage.name,
        _moment(stage.start_s),
        _moment(stage.end_s),
        render_seconds(stage.seconds),
        render_share(stage.seconds / wall_s) if wall_s > 0 else "unknown",
        f"{stage.steps:,}" if stage.steps else "–",
        "–" if stage.step is None else render_seconds(stage.step.mean),
        *(_level(stage.levels.get(metric)) for metric in metrics),
    ]


def _moment(time_s: float) -> str:
    return render_seconds(time_s) if time_s > 0 else "0 s"


def _level(level: Level | None) -> Html:
    if level is None:
        return tag("span", "unknown", class_="unknown")
    low, middle, high = (render_number(each) for each in (level.q10, level.q50, level.q90))
    return joined(
        [render_number(level.mean), tag("br"), tag("small", f"{low} · {middle} · {high}")]
    )
