"""Start-up, validation, saving and what else stands between epochs: told apart from each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from made_runs import line, made_rank, made_run, step_row
from stoker.advise.finding import Finding
from stoker.advise.findings import find
from stoker.advise.rules.pauses import (
    RULES,
    between_epochs,
    long_start,
    much_validation,
    slow_saving,
)
from stoker.report.run import next_command
from stoker.watch.series import Row
from stoker.watch.summary import Line, Summary

TRAIN = """\
import torch
words = count_words(text)
for x, y in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "last.pt")
    plt.savefig("loss.png")
    draw(model)
"""
IMPORT, PREPARE, LOOP, SAVE, PICTURE, DRAW = 1, 2, 3, 7, 8, 9


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def rows(
    startup: float = 5, eval_s: float = 0, gap_s: float = 0, steps_s: float = 80, other_s: float = 0
) -> list[Row]:
    """Steps of 0.1 s, other code in them, and what stands between, spread over the rows."""
    count = int(steps_s * 10)
    found = [step_row(0, startup + 1, startup_step=(1, startup), warmup_step=(3, 0.3))]
    steps = {
        "steady_step": (count, 0.1 + other_s / count),
        "steady_forward": (count, 0.1),
        "steady_other": (count, other_s / count),
        "first_step": (8, 0.1),
    }
    pauses = {"eval_step": (80, eval_s / 80)} if eval_s else {}
    pauses |= {"gap_step": (8, gap_s / 8)} if gap_s else {}
    return [*found, step_row(startup + 1, 100, **steps, **pauses)]


def run(
    steps: Sequence[Row], lines: Sequence[Line] = (), wall_s: float = 100.0, **changes: Any
) -> Summary:
    rank = made_rank(steps, lines=tuple(lines), **changes)
    return made_run([rank], wall_s=wall_s, start=4e9)


def keys(summary: Summary) -> list[str]:
    return [finding.key for finding in find(summary, RULES)]


def found(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def test_a_healthy_run_has_pauses_and_no_finding(script: Path) -> None:
    lines = [line(script, IMPORT, 4.0), line(script, SAVE, 2.0), line(script, LOOP, 3.0, "data")]
    assert keys(run(rows(eval_s=6, gap_s=3), lines)) == []


def test_few_steps_are_too_few_to_judge(script: Path) -> None:
    summary = run(rows(startup=60, eval_s=20, gap_s=20, steps_s=1), [line(script, PREPARE, 50)])
    assert keys(summary) == []


def test_a_run_that_goes_on_is_not_judged_by_its_start() -> None:
    rank = made_rank(rows(startup=50))
    assert find(made_run([rank], state="running"), RULES) == []


# -- the start -------------------------------------------------------------------------------


def test_a_long_start_names_the_line(script: Path) -> None:
    summary = run(rows(startup=40, steps_s=55), [line(script, PREPARE, 35), line(script, 1, 4)])
    finding = found(long_start(summary))
    assert keys(summary) == ["long-start"]
    assert finding.what == "The first step comes after 40 s, 40 % of the run."
    assert finding.why == "train.py:2 takes 35 s of it."
    assert finding.fix.startswith("Do the work of train.py:2 once,")
    assert (finding.level, finding.confidence, finding.safety) == ("problem", "high", "A")
    assert finding.gain is not None
    assert finding.gain.low < 100 / 65 < finding.gain.high
    assert finding.gain.ceiling == pytest.approx(100 / 60, rel=0.03)


def test_imports_are_told_apart_and_weigh_less(script: Path) -> None:
    finding = found(long_start(run(rows(startup=30, steps_s=65), [line(script, IMPORT, 28)])))
    assert finding.level == "advice"
    assert "container image" in finding.fix
    slow = run(rows(startup=70, steps_s=25), [line(script, IMPORT, 68)])
    assert found(long_start(slow)).level == "problem"


def test_a_line_that_may_have_run_later_is_not_blamed_for_the_start(script: Path) -> None:
    finding = found(long_start(run(rows(startup=30, gap_s=35), [line(script, DRAW, 34)])))
    assert "no single line" in finding.why
    assert (finding.level, finding.confidence) == ("advice", "low")
    assert finding.gain is not None
    assert finding.gain.low == 1.0


@pytest.mark.parametrize(("startup", "wall_s"), [(15, 100), (30, 1000)])
def test_a_short_start_or_a_long_run_is_fine(script: Path, startup: float, wall_s: float) -> None:
    summary = run(rows(startup=startup), [line(script, PREPARE, startup - 1)], wall_s)
    assert long_start(summary) is None


# -- validation ------------------------------------------------------------------------------


def test_much_validation_is_told_with_how_rare_it_should_be() -> None:
    loaders = {"train": {"epochs": 8}, "held out": {"epochs": 8}}
    summary = run(rows(eval_s=40, steps_s=50), facts={"loaders": loaders})
    finding = found(much_validation(summary))
    assert keys(summary) == ["validation"]
    assert (finding.level, finding.safety) == ("problem", "C")
    assert finding.what == "Validation takes 40 % of the run (40 s)."
    assert "in 8 passes over held-out data" in finding.why
    assert finding.fix.startswith("Validate one time in 6,")
    assert finding.gain is not None
    # Of eight passes two are left.
    assert finding.gain.low < 100 / 70 < finding.gain.high
    assert finding.gain.ceiling == pytest.approx(100 / 60, rel=0.03)


@pytest.mark.parametrize(
    ("trainer", "where"),
    [
        ("transformers", " (eval_strategy and eval_steps of TrainingArguments);"),
        ("lightning", "limit_val_batches of Trainer);"),
        (None, "held-out data;"),
    ],
)
def test_validation_is_made_rarer_where_the_trainer_has_it_set(
    trainer: str | None, where: str
) -> None:
    loaders = {
        "train": {"epochs": 8, "trained": 100, "trainer": trainer},
        "held out": {"epochs": 8, "trained": 0, "trainer": trainer},
    }
    summary = run(rows(eval_s=40, steps_s=50), facts={"loaders": loaders})
    assert where in found(much_validation(summary)).fix


def test_what_is_worth_typing_next_measures_what_the_change_brings() -> None:
    loaders = {"train": {"epochs": 8}, "held out": {"epochs": 8}}
    assert next_command(run(rows(eval_s=40, steps_s=50), facts={"loaders": loaders})) == (
        "stoker run -o changed --python python train.py && stoker compare /runs/made changed"
    )


def test_what_is_worth_typing_next_names_a_folder_that_holds_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaders = {"train": {"epochs": 8}, "held out": {"epochs": 8}}
    summary = run(rows(eval_s=40, steps_s=50), facts={"loaders": loaders})
    for expected in ("changed", "changed-2", "changed-3"):
        words = next_command(summary).split()
        assert (words[3], words[-1]) == (expected, expected)
        Path(expected).mkdir()
        Path(expected, "run.json").touch()


def test_some_validation_is_advice_and_a_single_pass_cannot_be_rarer() -> None:
    steps = rows(eval_s=15)
    assert found(much_validation(run(steps))).level == "advice"
    loaders = {"train": {"epochs": 8}, "held out": {"epochs": 1}}
    assert much_validation(run(steps, facts={"loaders": loaders})) is None


def test_what_is_predicted_when_all_is_trained_is_no_validation() -> None:
    steps = rows(steps_s=40)
    assert much_validation(run([*steps, step_row(50, 100, eval_step=(900, 0.05))])) is None
    # Of one that is validated, the last pass is, and no test after it.
    facts = {"loaders": {"train": {"epochs": 8}, "held out": {"epochs": 8}}}
    steps = [*rows(eval_s=28, steps_s=40), step_row(80, 100, eval_step=(100, 0.2))]
    finding = found(much_validation(run(steps, facts=facts)))
    assert finding.what == "Validation takes 32 % of the run (32 s)."
    assert "100 batches were evaluated" in finding.why


def test_what_stands_after_the_last_step_is_not_between_epochs(script: Path) -> None:
    steps = [*rows(steps_s=40), step_row(50, 100, gap_step=(900, 0.05))]
    assert between_epochs(run(steps, [line(script, DRAW, 40)])) is None


def test_a_fit_that_holds_the_steps_is_no_start(script: Path) -> None:
    fit = line(script, PREPARE, 90)
    finding = found(long_start(run(rows(startup=40, steps_s=55), [fit])))
    assert finding.level == "advice"
    assert "train.py" not in finding.why + finding.fix


# -- saving ----------------------------------------------------------------------------------


def test_saving_between_epochs_is_told_and_nothing_else(script: Path) -> None:
    summary = run(rows(gap_s=30, steps_s=60), [line(script, SAVE, 29), line(script, IMPORT, 4)])
    finding = found(slow_saving(summary))
    assert keys(summary) == ["saving"]
    assert finding.what == "Training waits 29 % of the run while checkpoints are saved."
    assert finding.why.startswith("train.py:7 took 29 s in all")
    assert finding.fix.startswith("Save one time in 8,")
    assert finding.gain is not None
    assert finding.gain.low < 100 / (100 - 29 * 7 / 8) < finding.gain.high
    # The line was only looked at; all that stands between epochs is the most that it may take.
    assert finding.gain.ceiling == pytest.approx(100 / 70, rel=0.04)


def test_saving_within_the_loop_is_the_same_cause(script: Path) -> None:
    summary = run(rows(other_s=25, steps_s=60), [line(script, SAVE, 24)])
    assert keys(summary) == ["saving"]


def test_saving_in_a_thread_of_its_own_costs_nothing(script: Path) -> None:
    assert keys(run(rows(gap_s=0.5, other_s=1, steps_s=92), [line(script, SAVE, 40)])) == []


def test_one_line_that_saves_through_another_is_not_counted_twice(script: Path) -> None:
    outer = Line(str(script), "<module>", SAVE, 0.0, 20.0, None)
    inner = Line(str(script), "save", SAVE, 20.0, 20.0, "other")
    finding = found(slow_saving(run(rows(gap_s=45, steps_s=50), [outer, inner])))
    assert finding.figures["saving_s"] == 20.0


def test_every_rank_saving_is_said(script: Path) -> None:
    steps, lines = rows(gap_s=30, steps_s=60), (line(script, SAVE, 29),)
    ranks = [made_rank(steps, number=number, lines=lines) for number in (0, 1)]
    finding = found(slow_saving(made_run(ranks, wall_s=100.0, start=4e9)))
    assert finding.fix.startswith("If every rank saves the same, let only rank 0 do it.")


def saved_by(library: str, seconds: float) -> dict[str, Any]:
    return {"saving": {"library": library, "function": "save_checkpoint", "seconds": seconds}}


def test_a_trainer_that_saves_is_told_without_a_line_of_the_users(script: Path) -> None:
    fit = line(script, DRAW, 85.0)
    steps = rows(other_s=25, steps_s=60)
    summary = run(steps, [fit], facts=saved_by("lightning", 24.0))
    assert keys(summary) == ["saving"]
    finding = found(slow_saving(summary))
    assert finding.why.startswith("save_checkpoint of lightning took 24 s in all")
    assert "every_n_train_steps" in finding.fix
    assert "rank 0" not in finding.fix


def test_a_line_that_saves_through_a_library_is_named(script: Path) -> None:
    summary = run(
        rows(gap_s=30, steps_s=60), [line(script, SAVE, 29)], facts=saved_by("accelerate", 28.0)
    )
    finding = found(slow_saving(summary))
    assert finding.why.startswith("train.py:7 took 29 s in all")


@pytest.mark.parametrize("told", [None, 3, {}, {"seconds": "x"}, {"seconds": -1.0}])
def test_damaged_words_of_saving_are_none(told: object) -> None:
    assert keys(run(rows(gap_s=30, steps_s=60), facts={"saving": told})) == []


# -- other things between epochs -------------------------------------------------------------


def test_something_else_between_epochs_is_named(script: Path) -> None:
    summary = run(rows(gap_s=20, steps_s=70), [line(script, DRAW, 19), line(script, IMPORT, 6)])
    finding = found(between_epochs(summary))
    assert keys(summary) == ["between-epochs"]
    assert finding.why == "train.py:9 takes 19 s in all."
    assert finding.gain is not None
    assert finding.gain.low < 100 / 81 < finding.gain.high


def test_a_picture_that_is_saved_is_no_checkpoint(script: Path) -> None:
    assert keys(run(rows(gap_s=20, steps_s=70), [line(script, PICTURE, 19)])) == ["between-epochs"]


@pytest.mark.parametrize("number", [IMPORT, LOOP])
def test_imports_and_the_loop_itself_do_not_stand_between_epochs(script: Path, number: int) -> None:
    """Workers that stop are the loader's own matter, and other rules'."""
    assert keys(run(rows(gap_s=20, steps_s=70), [line(script, number, 19)])) == []


def test_a_file_that_has_changed_since_names_nothing(script: Path) -> None:
    rank = made_rank(rows(gap_s=20, steps_s=70), lines=(line(script, DRAW, 19),))
    assert find(made_run([rank], wall_s=100.0, start=1e9), RULES) == []
