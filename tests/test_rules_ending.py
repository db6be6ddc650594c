"""The end: workers that Python waits for, told only where a loader leaves them and nothing runs."""

from __future__ import annotations

from typing import Any

import pytest

from made_runs import made_machine, made_rank, made_run, step_row
from stoker.advise.finding import Finding
from stoker.advise.rules.ending import waits_for_workers

LEFT: dict[str, Any] = {"num_workers": 12, "persistent_workers": True, "pin_memory": True}


def ending(
    end_s: float,
    loader: object = LEFT,
    steps: int = 200,
    cores: float = 0.01,
    state: str = "ended",
) -> Finding | None:
    rows = [
        step_row(0, 5, startup_step=(1, 4.0), warmup_step=(3, 0.1)),
        step_row(5, 5 + steps / 10, steady_step=(steps, 0.1)),
    ]
    last = rows[-1].end_s
    rows.append(step_row(last, last + end_s, end_step=(1, end_s)))
    rank = made_rank(rows, facts={"loaders": {"one": loader}})
    readings = {"cpu.cores": lambda second: 3.0 if second < last else cores}
    machine = made_machine(readings, int(last + end_s))
    return waits_for_workers(made_run([rank], [machine], wall_s=last + end_s, state=state))


def test_workers_that_are_left_are_waited_for() -> None:
    finding = ending(60.0)
    assert finding is not None
    assert (finding.level, finding.confidence) == ("problem", "high")
    assert finding.what == "After the last step the run goes on for 60 s, and does nothing."
    assert "12 workers" in finding.why
    assert "`del loader`" in finding.fix
    assert finding.gain is not None
    assert finding.gain.ceiling == pytest.approx(85 / 25, rel=0.2)


def test_workers_of_a_trainer_go_with_it() -> None:
    finding = ending(60.0, {**LEFT, "trainer": "transformers"})
    assert finding is not None
    assert "`del trainer`" in finding.fix


@pytest.mark.parametrize(
    "loader",
    [
        {**LEFT, "pin_memory": False},
        {**LEFT, "persistent_workers": False},
        {**LEFT, "num_workers": 0},
        {**LEFT, "num_workers": "many"},
        None,
    ],
)
def test_other_loaders_have_nothing_to_do_with_it(loader: object) -> None:
    assert ending(60.0, loader) is None


def test_an_end_that_is_shorter_than_the_wait_has_another_cause() -> None:
    assert ending(30.0) is None


def test_an_end_that_is_longer_than_the_wait_has_another_cause_too() -> None:
    assert ending(60.0, {**LEFT, "num_workers": 1}) is None
    assert ending(300.0) is None


def test_a_run_that_failed_may_have_waited_for_anything() -> None:
    assert ending(60.0, state="failed") is None


def test_an_end_in_which_something_is_done_is_no_wait() -> None:
    assert ending(60.0, cores=0.9) is None


def test_a_minute_of_a_long_run_is_not_worth_a_word() -> None:
    assert ending(60.0, steps=100_000) is None
