"""The stages of a run, and changes of behaviour that are real ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_runs import made_machine, made_rank, made_run, step_row
from stoker.advise.stages import MAX_TRAININGS, changes, quantiles, stages_of
from stoker.watch.series import Row, Stat, merged
from stoker.watch.summary import Machine, Summary


def noisy(*parts: tuple[int, float], spread: float = 0.05) -> list[list[float]]:
    """Rows of about a length each, always the same ones."""
    chance = random.Random(7)
    return [[mean * (1 + chance.gauss(0, spread))] for count, mean in parts for _ in range(count)]


def found(points: Sequence[Sequence[float]], weight: float = 20.0) -> list[int]:
    return changes(points, [weight] * len(points))


# -- changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1])
def test_a_longer_step_from_some_row_on_is_one_change(spread: float) -> None:
    assert found(noisy((40, 0.02), (60, 0.05), spread=spread)) == [40]


def test_several_changes_are_found_in_order() -> None:
    assert found(noisy((30, 0.02), (30, 0.05), (40, 0.03))) == [30, 60]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(noisy((100, 0.02)), id="the same all the time"),
        pytest.param(noisy((100, 0.02), spread=0.5), id="wild all the time"),
        pytest.param(noisy((50, 0.02), (1, 0.4), (50, 0.02)), id="one slow row"),
        pytest.param(noisy((50, 0.020), (50, 0.021)), id="hardly"),
        pytest.param(noisy(*[(1, 0.02), (1, 0.05)] * 40), id="to and fro"),
        pytest.param(noisy((3, 0.02), (3, 0.05)), id="too few rows"),
        pytest.param([], id="no rows"),
    ],
)
def test_what_does_not_stay_is_no_change(points: list[list[float]]) -> None:
    assert found(points) == []


def test_rows_of_few_steps_are_too_few() -> None:
    points = noisy((6, 0.02), (6, 0.05))
    assert found(points, weight=1.0) == []
    assert found(points, weight=2.0) == [6]


def test_the_same_length_spent_on_something_else_is_a_change() -> None:
    assert found([[0.01, 0.04]] * 20 + [[0.03, 0.02]] * 20) == [20]


@given(st.lists(st.floats(0, 1e6), max_size=40), st.floats(0.01, 1000))
def test_any_series_is_cut_into_few_parts_of_some_length(
    values: list[float], weight: float
) -> None:
    cuts = changes([[value] for value in values], [weight] * len(values))
    assert cuts == sorted(set(cuts))
    assert len(cuts) < MAX_TRAININGS
    edges = [0, *cuts, len(values)]
    assert not cuts or min(b - a for a, b in pairwise(edges)) >= 4


# -- quantiles -------------------------------------------------------------------------------


def test_a_gpu_that_is_busy_half_of_the_time_has_two_levels() -> None:
    rows = [Row(i, i + 1, {"x": Stat(1, 100.0 * (i % 2), 0.0, 100.0 * (i % 2))}) for i in range(60)]
    assert quantiles(rows, "x") == (0.0, 0.0, 100.0)
    whole = merged(rows)
    assert whole is not None
    assert quantiles([whole], "x") == (0.0, 0.0, 100.0)


def test_a_long_row_weighs_more() -> None:
    rows = [
        Row(0, 90, {"x": Stat(90, 1.0, 0.0, 1.0)}),
        *(Row(90 + i, 91 + i, {"x": Stat(1, 5.0, 0.0, 5.0)}) for i in range(10)),
    ]
    assert quantiles(rows, "x", (0.5, 0.85, 0.95)) == (1.0, 1.0, 5.0)


def test_nothing_read_has_no_quantiles() -> None:
    assert quantiles([], "x") is None
    assert quantiles([step_row(0, 1, steady_step=(3, 0.1))], "x") is None


# -- stages ----------------------------------------------------------------------------------


def training(start: int, end: int, forward: float, backward: float) -> list[Row]:
    """A row a second."""
    count = int(0.9 / (forward + backward))
    return [
        step_row(second, second + 1, steady_step=(count, forward + backward),
                 steady_forward=(count, forward), steady_backward=(count, backward))
        for second in range(start, end)
    ]  # fmt: skip


def frozen_then_all() -> list[Row]:
    """A start-up, the head alone, a pass over held-out data and a save, then all layers."""
    return [
        step_row(0, 6, startup_step=(1, 5.0), warmup_step=(3, 0.1)),
        *training(6, 40, 0.02, 0.01),
        step_row(40, 48, eval_step=(400, 0.02), eval_forward=(400, 0.02)),
        step_row(48, 52, gap_step=(1, 4.0), first_step=(1, 0.06)),
        *training(52, 100, 0.02, 0.04),
    ]


def names(summary: Summary) -> list[tuple[str, float, float]]:
    return [(stage.name, stage.start_s, stage.end_s) for stage in stages_of(summary)]


def test_a_run_is_told_stage_by_stage() -> None:
    machine = made_machine({"cpu.cores": lambda second: 1.0 if second < 50 else 3.0}, 100)
    stages = stages_of(made_run([made_rank(frozen_then_all())], [machine]))
    assert [(stage.name, stage.start_s, stage.end_s) for stage in stages] == [
        ("start-up", 0.0, 5.0),
        ("training 1", 6, 40),
        ("validation", 40, 48),
        ("between epochs", 48, 52),
        ("training 2", 52, 100),
    ]
    startup, head, validation, gap, everything = stages
    assert [stage.seconds for stage in (startup, validation, gap)] == pytest.approx([5, 8, 4])
    assert (validation.steps, gap.steps, head.steps) == (400, 0, 34 * 30)
    assert head.step is not None
    assert head.split is not None
    assert everything.split is not None
    assert head.step.mean == pytest.approx(0.03)
    assert head.split.share("backward") == pytest.approx(1 / 3)
    assert everything.split.share("backward") == pytest.approx(2 / 3)
    assert head.levels["cpu.cores"].q50 == 1.0
    assert everything.levels["cpu.cores"].mean == 3.0


def test_what_comes_after_the_last_step_is_the_end() -> None:
    rows = [
        *frozen_then_all(),
        step_row(100, 110, gap_step=(5, 1.5)),
        step_row(110, 112, end_step=(1, 2.0)),
    ]
    stages = {stage.name: stage for stage in stages_of(made_run([made_rank(rows)], wall_s=112))}
    assert (stages["between epochs"].start_s, stages["between epochs"].end_s) == (48, 52)
    assert (stages["ending"].start_s, stages["ending"].end_s) == (100, 112)
    assert stages["ending"].seconds == pytest.approx(9.5)


def test_a_stage_lasts_no_longer_than_from_its_first_to_its_last_moment() -> None:
    """The first steps of its epochs may lie before and behind all others."""
    slow = [step_row(begin, begin + 30, first_step=(1, 29.0)) for begin in (0, 40)]
    rows = [slow[0], *training(30, 40, 0.02, 0.025), slow[1]]
    (stage,) = stages_of(made_run([made_rank(rows)]))
    assert (stage.start_s, stage.end_s) == (0, 70)
    assert 58 < stage.seconds <= 70


def crowded(paces: Sequence[float], backward: Sequence[float]) -> list[Row]:
    """Twenty seconds of each pace, as others take more of the cores or less, and never quite even."""
    chance = random.Random(11)
    rows: list[Row] = []
    for pace, factor in zip(paces, backward, strict=True):
        for _ in range(20):
            slow = pace * (1 + chance.gauss(0, 0.08))
            rows += training(len(rows), len(rows) + 1, 0.02 * slow, 0.02 * factor * slow)
    return rows


def crowd(share: float, **facts: float) -> Machine:
    """A machine without a free core, of which the run has this share."""
    cores = {"cores_machine": 2, "cores_allowed": 2, **facts}
    own = share * cores["cores_allowed"]
    return made_machine({"cpu.cores": own, "cpu.machine_pct": 100.0}, 120, **cores)


PACES = (1.0, 1.6, 1.1, 1.9, 1.2, 1.7)
SAME, UNFROZEN = (1.0,) * 6, (0.5,) * 3 + (2.0,) * 3


def trainings(rows: Sequence[Row], machine: Machine) -> int:
    stages = stages_of(made_run([made_rank(rows)], [machine]))
    return sum(stage.name.startswith("training") for stage in stages)


def test_a_pace_that_others_set_is_no_stage() -> None:
    assert trainings(crowded(PACES, SAME), crowd(0.3)) == 1


def test_other_work_is_a_stage_also_in_a_crowd() -> None:
    assert trainings(crowded(PACES, UNFROZEN), crowd(0.3)) == 2


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(crowd(1.0), id="it has them all itself"),
        pytest.param(crowd(0.3, cores_machine=64, cores_allowed=16), id="others have their own"),
        pytest.param(made_machine({"cpu.cores": 0.5}, 120), id="nobody knows"),
    ],
)
def test_a_pace_that_no_others_explain_is_a_stage(machine: Machine) -> None:
    assert trainings(crowded((1.0,) * 3 + (1.6,) * 3, SAME), machine) == 2


def test_without_a_change_there_is_one_training() -> None:
    assert names(made_run([made_rank(training(0, 50, 0.02, 0.02))])) == [("training", 0, 50)]


def test_coarser_rows_are_told_alike() -> None:
    rows = frozen_then_all()
    coarse = [merged(rows[start : start + 5]) for start in range(0, len(rows), 5)]
    told = names(made_run([made_rank([row for row in coarse if row is not None])]))
    assert [name for name, _, _ in told].count("start-up") == 1
    trainings = [(start, end) for name, start, end in told if name.startswith("training")]
    assert len(trainings) == 2
    # Within the row that holds the last frozen steps or the first others.
    assert 35 <= trainings[1][0] <= 57


def test_validation_after_every_epoch_is_one_stage() -> None:
    rows: list[Row] = []
    for epoch in range(10):
        rows += training(10 * epoch, 10 * epoch + 8, 0.02, 0.02)
        rows.append(step_row(10 * epoch + 8, 10 * epoch + 10, eval_step=(100, 0.019)))
    stages = stages_of(made_run([made_rank(rows)]))
    assert [stage.name for stage in stages] == ["training", "validation"]
    assert stages[1].seconds == pytest.approx(19)


def test_slow_first_steps_of_epochs_belong_to_training() -> None:
    """Each of 2 s, in a row of its own: before the first steady steps, between, and after the last."""
    rows: list[Row] = []
    for epoch in range(3):
        rows.append(step_row(10 * epoch, 10 * epoch + 2, first_step=(1, 2.0)))
        rows += training(10 * epoch + 2, 10 * epoch + 10, 0.02, 0.025)
    rows.append(step_row(30, 32, first_step=(1, 2.0)))
    (stage,) = stages_of(made_run([made_rank(rows)]))
    assert (stage.steps, stage.epochs) == (3 * 8 * 20 + 4, 4)
    assert stage.seconds == pytest.approx(3 * 8 * 0.9 + 4 * 2.0)


def test_the_first_step_of_an_epoch_belongs_to_the_training_that_it_begins() -> None:
    stages = stages_of(made_run([made_rank(frozen_then_all())]))
    begun = {stage.name: stage.epochs for stage in stages if stage.name.startswith("training")}
    assert begun == {"training 1": 0, "training 2": 1}


def test_no_stage_begins_before_the_start_up_is_over() -> None:
    """A check before training is in the row that also holds the start-up."""
    first = step_row(0.5, 13, startup_step=(1, 11.5), eval_step=(2, 0.1))
    assert names(made_run([made_rank([first, *training(13, 60, 0.01, 0.02)])])) == [
        ("start-up", 0.0, 12.0),
        ("validation", 12.0, 13),
        ("training", 13, 60),
    ]


def test_gpus_are_taken_together() -> None:
    machine = made_machine({"gpu.0.sm_pct": 90.0, "gpu.1.sm_pct": 10.0}, 50)
    (stage,) = stages_of(made_run([made_rank(training(0, 50, 0.02, 0.02))], [machine]))
    level = stage.levels["gpu.sm_pct"]
    assert (level.mean, level.q10, level.q90) == (50.0, 10.0, 90.0)


def test_a_run_without_steps_has_no_stages() -> None:
    assert stages_of(made_run()) == []
    assert stages_of(made_run([made_rank([])])) == []
