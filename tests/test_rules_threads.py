"""More threads than cores: told when the run itself fills the cores, and with the right number."""

from __future__ import annotations

from typing import Any

import pytest

from made_runs import made_machine, made_rank, made_run, step_row
from stoker.advise.rules.threads import crowded_cores
from stoker.advise.verdict import make_verdict
from stoker.report.run import next_command
from stoker.watch.summary import Rank, Summary

CPU = {"torch": "2.13.0", "model": {"name": "Net", "device": "cpu"}}
BUSY = {"cpu.pressure_pct": 80.0, "cpu.cores": 15.0}


def rank(number: int, **facts: Any) -> Rank:
    steps = step_row(0, 120, steady_step=(100, 1.0), steady_forward=(100, 0.5),
                     steady_backward=(100, 0.4), steady_other=(100, 0.1))  # fmt: skip
    return made_rank([steps], number=number, facts={**CPU, **facts})


def run(ranks: int = 4, readings: dict[str, float] | None = None, **changes: Any) -> Summary:
    facts = changes.pop("facts", {})
    return made_run(
        [rank(number, **facts) for number in range(ranks)],
        [made_machine({**BUSY, **(readings or {})})],
        **changes,
    )


def test_four_processes_that_each_take_all_cores_are_told_what_to_set() -> None:
    finding = crowded_cores(run())
    assert finding is not None
    assert finding.what == "4 processes with 16 threads each share 16 cores of node1."
    assert finding.why.startswith("Threads waited for a core 80 % of the time,")
    assert finding.fix.startswith("Set OMP_NUM_THREADS=4 ")
    assert (finding.level, finding.confidence, finding.safety) == ("problem", "medium", "B")
    assert finding.gain is not None
    part = 90 / 120
    assert finding.gain.low == pytest.approx(1 / (1 - part * (1 - 1 / 2.5)), rel=0.03)
    assert finding.gain.ceiling == pytest.approx(1 / (1 - part), rel=0.03)


@pytest.mark.parametrize(
    ("waited_pct", "words"),
    [(80.0, "; some thread waited for a core 80 % of the time."), (30.0, ".")],
)
def test_the_verdict_says_that_computing_waits_for_cores(waited_pct: float, words: str) -> None:
    found = make_verdict(run(readings={"cpu.pressure_pct": waited_pct}))
    assert found == f"Compute-bound: forward and backward take 90 % of the step{words}"


def test_what_is_worth_typing_next_sets_the_threads() -> None:
    assert next_command(run()) == (
        "OMP_NUM_THREADS=4 stoker run -o changed --python python train.py "
        "&& stoker compare /runs/made changed"
    )


def test_what_the_processes_are_told_counts() -> None:
    assert crowded_cores(run(environment={"OMP_NUM_THREADS": "4"})) is None
    assert crowded_cores(run(facts={"threads": 4})) is None
    assert crowded_cores(run(1)) is None


def test_launchers_that_give_one_thread_are_believed() -> None:
    command = ["python", "-m", "torch.distributed.run", "train.py"]
    assert crowded_cores(run(command=command)) is None
    assert crowded_cores(run(command=command, environment={"OMP_NUM_THREADS": "16"})) is not None


@pytest.mark.parametrize("readings", [{"cpu.pressure_pct": 5.0}, {"cpu.cores": 6.0}])
def test_idle_cores_or_somebody_elses_load_are_no_crowd(readings: dict[str, float]) -> None:
    assert crowded_cores(run(readings=readings)) is None


def test_a_model_on_a_gpu_computes_elsewhere() -> None:
    assert crowded_cores(run(facts={"model": {"device": "cuda:0"}})) is None


def test_more_processes_than_cores_cannot_be_mended_by_threads() -> None:
    assert crowded_cores(run(40, environment={"OMP_NUM_THREADS": "1"})) is None
