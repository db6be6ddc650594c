"""What was reserved and not used, and when to keep silent about it."""

from __future__ import annotations

from typing import Any

import pytest

from made_runs import START, made_machine, made_rank, made_run, step_row
from stoker.advise.finding import Finding
from stoker.advise.rules.reservation import (
    RULES,
    cpus_out_of_reach,
    long_limit,
    unused_cpus,
    unused_memory,
)
from stoker.watch.summary import Summary

JOB = {"SLURM_JOB_ID": "4211", "SLURM_CPUS_ON_NODE": "16", "SLURM_CPUS_PER_TASK": "16"}
BUSY = {"cpu.cores": 1.5, "mem.rss_gib": 3.0}


def job(readings: dict[str, Any] | None = None, seconds: int = 120, **changes: Any) -> Summary:
    """A batch job on a quarter of a node."""
    facts = changes.pop("facts", {})
    environment = {**JOB, **changes.pop("environment", {})}
    machine = made_machine(BUSY if readings is None else readings, seconds, **facts)
    return made_run(changes.pop("ranks", ()), [machine], environment=environment, **changes)


def found(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def test_without_a_reservation_every_rule_is_silent() -> None:
    summary = made_run((), [made_machine(BUSY)])
    assert [rule(summary) for rule in RULES] == [None] * len(RULES)


@pytest.mark.parametrize("name", ["interactive", "bash", "sys/dashboard/sys/jupyter"])
def test_a_session_that_somebody_types_in_is_not_judged(name: str) -> None:
    end = {"SLURM_JOB_START_TIME": f"{START - 600:.0f}", "SLURM_JOB_END_TIME": f"{START + 9e4:.0f}"}
    told = {"SLURM_JOB_NAME": name, "SLURM_MEM_PER_NODE": "131072", **end}
    assert [rule(job(environment=told)) for rule in RULES] == [None] * len(RULES)
    told.pop("SLURM_JOB_NAME")
    assert sum(rule(job(environment=told)) is not None for rule in RULES) == 3


# -- CPUs ------------------------------------------------------------------------------------


def test_idle_cpus_are_told_with_the_right_number_to_ask_for() -> None:
    finding = found(unused_cpus(job()))
    assert finding.what == "14 of 16 reserved CPUs are not needed."
    assert finding.why == (
        "The run kept 1.5 busy on average, and no more than 1.5 for 99 % of the time."
    )
    assert finding.fix == "Ask for --cpus-per-task=2."
    assert (finding.level, finding.confidence, finding.safety) == ("problem", "high", "A")
    assert finding.waste is not None
    assert finding.waste.what == "14 of 16 CPUs"
    assert finding.waste.share == pytest.approx(14 / 16)


def test_memory_that_blocks_as_much_of_the_node_makes_idle_cpus_cheap() -> None:
    finding = found(unused_cpus(job(environment={"SLURM_MEM_PER_NODE": f"{64 * 1024}"})))
    assert finding.waste is not None
    assert finding.waste.share == 0.0
    assert finding.level == "advice"


def test_beside_gpus_idle_cpus_are_only_advice() -> None:
    assert found(unused_cpus(job(environment={"SLURM_GPUS_ON_NODE": "1"}))).level == "advice"


def test_cpus_are_counted_for_each_task() -> None:
    environment = {"SLURM_NTASKS": "4", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "4"}
    finding = found(unused_cpus(job(environment=environment)))
    assert finding.fix == "Ask for --cpus-per-task=1."
    assert finding.what == "12 of 16 reserved CPUs are not needed."


def test_a_peak_that_lasts_is_kept_and_a_single_one_is_not() -> None:
    peaks = {**BUSY, "cpu.cores": lambda second: 9.0 if second % 10 == 0 else 1.0}
    assert unused_cpus(job(peaks)) is None
    once = {**BUSY, "cpu.cores": lambda second: 9.0 if second == 5 else 1.0}
    assert found(unused_cpus(job(once))).fix == "Ask for --cpus-per-task=2."


def test_cpus_that_a_slow_loader_could_use_are_not_given_back() -> None:
    waiting = made_rank([step_row(0, 60, steady_step=(100, 0.5), steady_data=(100, 0.2),
                                  steady_forward=(100, 0.3))])  # fmt: skip
    assert unused_cpus(job(ranks=[waiting])) is None


def test_a_short_run_says_nothing_of_cpus_and_memory() -> None:
    summary = job(seconds=20, environment={"SLURM_MEM_PER_NODE": "131072"})
    assert unused_cpus(summary) is None
    assert unused_memory(summary) is None


def test_a_node_that_is_given_as_a_whole_cannot_be_given_back_in_part() -> None:
    whole = {"SLURM_CPUS_ON_NODE": "64", "SLURM_CPUS_PER_TASK": ""}
    assert unused_cpus(job(environment=whole, facts={"cores_allowed": 64})) is None


def test_nearly_used_is_used() -> None:
    assert unused_cpus(job({**BUSY, "cpu.cores": 6.5})) is None


def test_cpus_that_the_run_may_not_use_are_another_cause() -> None:
    summary = job(facts={"cores_allowed": 1})
    assert unused_cpus(summary) is None
    finding = found(cpus_out_of_reach(summary))
    assert finding.what == "16 CPUs were reserved, and the run may use 1."
    assert "srun --cpus-per-task=$SLURM_CPUS_PER_TASK" in finding.fix
    assert finding.waste is not None
    assert finding.waste.share == pytest.approx(15 / 16)


def test_a_task_among_several_has_its_own_part() -> None:
    environment = {"SLURM_NTASKS": "4", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "4"}
    assert cpus_out_of_reach(job(environment=environment, facts={"cores_allowed": 4})) is None


# -- memory ----------------------------------------------------------------------------------


def test_idle_memory_is_told_with_the_right_size_to_ask_for() -> None:
    finding = found(unused_memory(job(environment={"SLURM_MEM_PER_NODE": f"{128 * 1024}"})))
    assert finding.what == "123 of 128 GiB of reserved memory are not needed."
    assert finding.fix == "Ask for --mem=5G."
    assert finding.level == "problem"
    assert finding.waste is not None
    assert finding.waste.share == pytest.approx(0.5)  # the CPUs block a quarter of the node


def test_memory_by_the_cpu_is_answered_by_the_cpu() -> None:
    finding = found(unused_memory(job(environment={"SLURM_MEM_PER_CPU": "4096"})))
    assert finding.fix == "Ask for --mem-per-cpu=320M, or --mem=5G instead."


def test_shared_memory_is_held_as_well() -> None:
    environment = {"SLURM_MEM_PER_NODE": f"{128 * 1024}"}
    finding = found(unused_memory(job({**BUSY, "mem.shm_gib": 7.0}, environment=environment)))
    assert finding.fix == "Ask for --mem=14G."


@pytest.mark.parametrize("memory", ["0", "8192", "", "much"])
def test_all_of_a_node_little_or_unknown_memory_is_not_too_much(memory: str) -> None:
    assert unused_memory(job(environment={"SLURM_MEM_PER_NODE": memory})) is None


def test_what_a_run_that_failed_would_have_needed_is_not_known() -> None:
    summary = job(environment={"SLURM_MEM_PER_NODE": "131072"}, state="failed")
    assert unused_memory(summary) is None


# -- time ------------------------------------------------------------------------------------


def limits(before_s: float, limit_s: float) -> dict[str, str]:
    """A job that began some time before its run."""
    begun = START - before_s
    return {
        "SLURM_JOB_START_TIME": f"{begun:.0f}",
        "SLURM_JOB_END_TIME": f"{begun + limit_s:.0f}",
    }


def test_a_limit_far_beyond_the_run_is_told_with_a_better_one() -> None:
    finding = found(long_limit(job(environment=limits(480, 86400))))
    assert finding.what == "The job may take 1-00:00:00, and this run ended after 00:10:00."
    assert finding.fix.startswith("Ask for --time=00:20:00,")
    assert finding.level == "advice"
    assert finding.waste is not None
    assert finding.waste.what == "23:50:00 of 1-00:00:00"
    assert finding.weight == 0.0


def test_a_limit_as_slurm_writes_it_is_read_too() -> None:
    summary = job(environment={"SLURM_TIMELIMIT": "1-00:00:00"}, wall_s=900.0)
    assert found(long_limit(summary)).fix.startswith("Ask for --time=00:30:00,")


@pytest.mark.parametrize(
    "environment",
    [limits(0, 86400), limits(480, 2400), limits(480, -5), {"SLURM_TIMELIMIT": "UNLIMITED"}],
)
def test_a_trial_a_fair_limit_and_none_are_left_alone(environment: dict[str, str]) -> None:
    assert long_limit(job(environment=environment)) is None


def test_a_run_that_was_killed_says_nothing_about_its_limit() -> None:
    assert long_limit(job(environment=limits(480, 86400), state="killed", exit=-15)) is None
