"""What another run of the same script may differ by, and what that makes of an announced gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.advise.noise import BETWEEN_RUNS, Z
from stoker.advise.repeat import announce, repeat_noise, seen_error
from stoker.watch.series import Row, Stat
from stoker.watch.summary import Machine, Rank, Split, Summary

# Two runs on a quiet machine, of which neither swings.
QUIET = math.sqrt(2) * Z * BETWEEN_RUNS
SHARED = {"cores_machine": 2, "cores_allowed": 2}


def make_run(
    steps: tuple[float, ...] = (0.1,) * 30,
    facts: Mapping[str, float] | None = None,
    machine_pct: float = 0.0,
) -> Summary:
    """A run of 100 s, with one row of steps a second."""
    rows = tuple(
        Row(second, second + 1, {"steady.step": Stat(10, step, 0.01, step)})
        for second, step in enumerate(steps)
    )
    step = Stat(10 * len(steps), 0.1, 0.02, 0.1)
    steady = Split(step.count, step, {"forward": 0.1}, 0.0, 0.0, 0)
    rank = Rank(
        "0", 0, "n1", 7, step.count, 1, 0.0, steady, None, None, None, {}, (), 0.0, 1,
        rows=lambda: rows,
    )  # fmt: skip
    stats = {
        "cpu.cores": Stat(50, 1.0, 0.0, 1.0),
        "cpu.machine_pct": Stat(50, machine_pct, 0.0, machine_pct),
    }
    machine = Machine("n1", facts or {}, stats)
    return Summary(Path("run"), {}, "ended", 100.0, (rank,), (machine,))


def test_a_quiet_run_that_does_not_swing_differs_from_another_by_what_starts_differ_by() -> None:
    assert repeat_noise(make_run()) == pytest.approx(QUIET, rel=0.01)


def test_a_run_that_swings_may_differ_by_more() -> None:
    swinging = ((0.08,) * 5 + (0.12,) * 5) * 3
    assert repeat_noise(make_run(swinging)) > 2 * QUIET


def test_a_run_too_short_for_blocks_is_judged_by_its_steps() -> None:
    # 30 steps that swing by a fifth, as alike as they may be: three times the error of the mean.
    assert repeat_noise(make_run((0.1,) * 3)) > 3 * 0.2 / math.sqrt(30)


def test_neighbours_count_where_the_cores_are_theirs_too() -> None:
    # Half of the cores is ours and a quarter theirs: of eight times that we want one, once.
    crowded = repeat_noise(make_run(facts=SHARED, machine_pct=75.0))
    assert crowded == pytest.approx(QUIET + 0.125, rel=0.01)
    own = {**SHARED, "cores_machine": 16}
    assert repeat_noise(make_run(facts=own, machine_pct=75.0)) == pytest.approx(QUIET, rel=0.01)


def test_a_run_without_steps_or_machines_is_taken_for_a_quiet_one() -> None:
    run = replace(make_run(), ranks=(), machines=())
    assert repeat_noise(run) == pytest.approx(QUIET)


def test_the_range_is_what_is_left_and_the_noise_of_it() -> None:
    gain = announce(make_run(), 20.0, 50.0, 60.0)
    assert gain.low == pytest.approx(100 / 80 / (1 + QUIET), rel=1e-3)
    assert gain.expected == pytest.approx(100 / 65)
    assert gain.high == pytest.approx(100 / 50 * (1 + QUIET), rel=1e-3)
    assert gain.ceiling == pytest.approx(100 / 40 * (1 + QUIET), rel=1e-3)


def test_what_is_within_noise_is_promised_to_nobody() -> None:
    assert announce(make_run(), 1.0, 1.0, 1.0).low == 1.0


def test_a_run_that_took_no_time_gains_nothing() -> None:
    assert announce(replace(make_run(), wall_s=0.0), 0.0, 0.0, 0.0).expected == 1.0


seconds = st.floats(-1e3, 1e6)


@given(seconds, seconds, seconds)
def test_a_gain_never_contradicts_itself(least_s: float, most_s: float, whole_s: float) -> None:
    gain = announce(make_run(), least_s, most_s, whole_s)
    assert 1.0 <= gain.low <= gain.expected <= gain.high <= gain.ceiling < 2e3


def test_a_line_that_was_never_seen_is_off_by_nothing() -> None:
    assert seen_error(0.0) == 0.0
