"""Memory: killed for it, near its limit, rising, swapping; each told once and only when it is so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from made_runs import HOST, START, made_machine, made_rank, made_run, step_row
from stoker.advise.finding import Finding
from stoker.advise.rules.memory import (
    RULES,
    killed_for_memory,
    near_the_limit,
    rising_memory,
    swapping,
)
from stoker.watch.series import Row, merged
from stoker.watch.summary import Machine, Summary

LIMIT: dict[str, Any] = {"memory_limit_gib": 16.0}


def keys(summary: Summary) -> list[str]:
    """What all rules say, by their keys."""
    return [finding.key for rule in RULES if (finding := rule(summary)) is not None]


def found(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def run(readings: dict[str, Any], seconds: int = 120, **changes: Any) -> Summary:
    facts = changes.pop("facts", LIMIT)
    rank = made_rank([step_row(0, 120, steady_step=(100, 1.0), first_step=(3, 1.0))])
    return made_run([rank], [made_machine(readings, seconds, **facts)], **changes)


def level(value: float) -> dict[str, float]:
    return {"mem.rss_gib": value, "mem.cgroup_gib": value, "mem.oom_kills": 0.0}


def test_a_run_with_room_to_spare_is_left_alone() -> None:
    assert keys(run(level(8.0))) == []


# -- killed ----------------------------------------------------------------------------------


def test_the_kernels_own_count_is_sure() -> None:
    readings = {**level(15.0), "mem.oom_kills": lambda second: float(second > 110)}
    summary = run(readings, state="failed", exit=1)
    finding = found(killed_for_memory(summary))
    assert keys(summary) == ["killed-for-memory"]
    assert (finding.level, finding.confidence) == ("problem", "high")
    assert finding.why == (
        "The kernel killed 1 of the job's processes because its memory was full. "
        "The last readings saw up to 15 GiB of 16 GiB, the job's limit."
    )
    assert "--mem=20G" in finding.fix


@pytest.mark.parametrize("how", [{"state": "killed", "exit": -9}, {"state": "failed", "exit": 137},
                                 {"state": "lost", "exit": None}])  # fmt: skip
def test_killed_while_memory_was_full_is_likely(how: dict[str, Any]) -> None:
    readings = level(15.0)
    del readings["mem.oom_kills"]
    assert found(killed_for_memory(run(readings, **how))).confidence == "medium"
    # With room left it was somebody who killed it.
    assert killed_for_memory(run({**readings, "mem.rss_gib": 5.0}, **how)) is None


def test_a_run_that_ended_well_was_not_killed() -> None:
    assert killed_for_memory(run({**level(15.0), "mem.oom_kills": 1.0})) is None


# -- near the limit --------------------------------------------------------------------------


def test_near_the_limit_is_advice() -> None:
    finding = found(near_the_limit(run(level(15.2))))
    assert (finding.level, finding.key) == ("advice", "near-memory-limit")
    assert finding.what == "The run held up to 95 % of the memory that it may use."
    assert keys(run(level(15.2))) == ["near-memory-limit"]


def test_files_that_the_system_keeps_do_not_count() -> None:
    assert keys(run({"mem.rss_gib": 4.0, "mem.cgroup_gib": 15.9})) == []


def test_pages_that_workers_share_do_not_count_twice() -> None:
    assert keys(run({"mem.rss_gib": 30.0, "mem.cgroup_gib": 6.0})) == []


def test_a_machine_that_others_have_filled_is_not_ours_to_mend() -> None:
    readings = {"mem.rss_gib": 8.0, "mem.machine_gib": 250.0}
    assert keys(run(readings, facts={})) == []
    finding = found(near_the_limit(run({**readings, "mem.rss_gib": 200.0}, facts={})))
    assert "256 GiB, what node1 has" in finding.why
    assert finding.confidence == "medium"


# -- rising ----------------------------------------------------------------------------------


def rising(shape: Callable[[float], float], seconds: int = 120) -> dict[str, Any]:
    """Memory that follows a shape from 0 to 1 over the run."""
    values = {"mem.rss_gib": lambda second: shape(second / seconds)}
    return {**values, "mem.cgroup_gib": values["mem.rss_gib"]}


def test_steady_growth_is_told_with_when_it_ends() -> None:
    summary = run(rising(lambda part: 2 + 4 * part))
    finding = found(rising_memory(summary))
    assert keys(summary) == ["rising-memory"]
    assert finding.what == "The memory of the run grows all the time, by 2.0 GiB a minute."
    assert finding.figures["gib_per_hour"] == pytest.approx(120, rel=0.02)
    assert finding.figures["left_s"] == pytest.approx((16 - 6) / (4 / 120), rel=0.1)
    assert (finding.level, finding.confidence) == ("advice", "high")


@pytest.mark.parametrize(("left_s", "level"), [(200, "advice"), (3600, "problem")])
def test_it_is_a_problem_if_the_job_would_not_come_to_its_end(left_s: float, level: str) -> None:
    environment = {"SLURM_JOB_END_TIME": f"{START + 120 + left_s:.0f}"}
    summary = run(rising(lambda part: 2 + 4 * part), environment=environment)
    assert found(rising_memory(summary)).level == level


def test_near_the_end_of_memory_it_is_a_problem_and_the_only_one() -> None:
    summary = run(rising(lambda part: 7 + 8 * part))
    assert keys(summary) == ["rising-memory"]
    assert found(rising_memory(summary)).level == "problem"


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda part: 2 + 4 * min(1.0, 2 * part), id="fills up and stays"),
        pytest.param(lambda part: 2 + 4 * (1 - math.exp(-6 * part)), id="slows down"),
        pytest.param(lambda part: 2 + 4 * (part > 0.5), id="one step"),
        pytest.param(lambda part: 2 + 3 * (4 * part % 1), id="falls after each epoch"),
        pytest.param(lambda part: 2 + 0.1 * part, id="hardly"),
    ],
)
def test_other_shapes_are_no_leak(shape: Callable[[float], float]) -> None:
    assert rising_memory(run(rising(shape))) is None


def test_too_short_to_tell() -> None:
    assert rising_memory(run(rising(lambda part: 2 + 4 * part, 20), 20)) is None


def test_the_files_of_a_data_set_that_is_read_are_no_leak() -> None:
    readings = {"mem.rss_gib": 3.0, "mem.cgroup_gib": lambda second: 3 + second / 15}
    assert rising_memory(run(readings)) is None


def test_in_the_first_epoch_a_cache_may_be_filling() -> None:
    rank = made_rank([step_row(0, 120, steady_step=(100, 1.0))])
    machine = made_machine(rising(lambda part: 2 + 4 * part), **LIMIT)
    assert found(rising_memory(made_run([rank], [machine]))).confidence == "medium"


def test_coarser_rows_of_a_long_run_tell_the_same() -> None:
    machine = made_machine(rising(lambda part: 2 + 4 * part, 600), 600, **LIMIT)
    coarse: list[Row] = []
    for start in range(0, 480, 16):
        row = merged(machine.rows[start : start + 16])
        assert row is not None
        coarse.append(row)
    rows = (*coarse, *machine.rows[480:])
    told = Machine(HOST, machine.facts, machine.stats, rows)
    finding = found(rising_memory(made_run((), [told], wall_s=600.0)))
    assert finding.figures["gib_per_hour"] == pytest.approx(24, rel=0.05)


# -- swapping --------------------------------------------------------------------------------


def test_swapping_costs_at_most_the_time_that_somebody_waited() -> None:
    summary = run({"mem.swap_in_mb_s": 40.0, "mem.pressure_pct": 50.0})
    finding = found(swapping(summary))
    assert finding.level == "problem"
    assert finding.gain is not None
    assert finding.gain.low == 1.0
    assert finding.gain.ceiling == pytest.approx(2.0, rel=0.03)
    assert finding.why == (
        "40 MB/s came back from swap, and processes waited for memory 50 % of the time."
    )


@pytest.mark.parametrize(("back", "waiting"), [(0.2, 50.0), (40.0, 1.0)])
def test_old_pages_that_come_back_or_nobody_waits_for_are_nothing(
    back: float, waiting: float
) -> None:
    assert swapping(run({"mem.swap_in_mb_s": back, "mem.pressure_pct": waiting})) is None
