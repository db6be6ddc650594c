"""What PyTorch's allocator tells of a GPU's memory, and what is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from made_runs import made_rank, made_run, step_row
from stoker.advise.rules.device_memory import RULES
from stoker.watch.inside.device_memory import GIB, read_memory
from stoker.watch.summary import Summary

MEMORY: dict[str, Any] = {
    "total_gib": 80.0, "tensors_gib": 77.0, "taken_gib": 79.0, "retries": 0,
}  # fmt: skip


def stats(taken_gib: float, tensors_gib: float = 0.0, retries: int = 0) -> dict[str, Any]:
    return {
        "reserved_bytes": {"all": {"peak": taken_gib * GIB}},
        "allocated_bytes": {"all": {"peak": tensors_gib * GIB}},
        "num_alloc_retries": retries,
    }


def fake_torch(*devices: dict[str, Any], is_initialized: bool = True) -> Any:
    properties = SimpleNamespace(total_memory=80 * GIB)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: is_initialized,
            device_count=lambda: len(devices),
            memory_stats_as_nested_dict=lambda index: devices[index],
            get_device_properties=lambda index: properties,
        )
    )


def test_the_gpu_that_most_is_held_of_is_told() -> None:
    told = read_memory(fake_torch({}, stats(0.5), stats(60.0, 50.0, retries=3)))
    assert told == {
        "total_gib": 80.0, "tensors_gib": 50.0, "taken_gib": 60.0, "retries": 3,
    }  # fmt: skip


def test_a_gpu_that_nobody_has_touched_is_left_alone() -> None:
    assert read_memory(fake_torch(stats(1.0), is_initialized=False)) is None
    assert read_memory(fake_torch({}, {})) is None


# -- findings --------------------------------------------------------------------------------


def run(memory: object, error: str | None = None, steps: int = 400, **changes: Any) -> Summary:
    rows = [step_row(0, 60, steady_step=(steps, 0.1))]
    facts = {"memory": memory, **({} if error is None else {"error": error})}
    return made_run([made_rank(rows, facts=facts)], **changes)


def keys(summary: Summary) -> list[str]:
    return [finding.key for rule in RULES if (finding := rule(summary)) is not None]


def test_the_error_that_ended_the_run_says_so() -> None:
    summary = run(MEMORY, "torch.OutOfMemoryError", state="failed", exit=1)
    assert keys(summary) == ["gpu-out-of-memory"]
    finding = RULES[0](summary)
    assert finding is not None
    assert finding.why.endswith(
        "ended with torch.OutOfMemoryError; its tensors took up to 77 of 80 GiB."
    )
    assert "expandable_segments" not in finding.fix


def test_memory_that_lies_in_pieces_is_told_apart() -> None:
    memory = {**MEMORY, "tensors_gib": 60.0}
    finding = RULES[0](run(memory, "torch.cuda.OutOfMemoryError", state="failed", exit=1))
    assert finding is not None
    assert finding.fix.startswith("24 % of the memory lay in pieces between tensors: set ")
    assert "expandable_segments:True" in finding.fix


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("torch.OutOfMemoryError", "ended"),
        ("builtins.ValueError", "failed"),
        # Also what TensorFlow says of a full disk.
        ("tensorflow.python.framework.errors_impl.ResourceExhaustedError", "failed"),
        ("ray.exceptions.OutOfMemoryError", "failed"),
        (None, "failed"),
    ],
)
def test_errors_that_the_script_caught_or_that_are_others_end_nothing(
    error: str | None, state: str
) -> None:
    assert keys(run(MEMORY, error, state=state)) == []


def test_an_allocator_that_starts_over_again_and_again_is_told() -> None:
    summary = run({**MEMORY, "retries": 40})
    assert keys(summary) == ["gpu-memory-full"]
    finding = RULES[1](summary)
    assert finding is not None
    assert finding.why.startswith("40 times in 400 steps nothing was left")


@pytest.mark.parametrize(("retries", "steps"), [(4, 100), (6, 4000)])
def test_a_few_times_at_the_start_are_usual(retries: int, steps: int) -> None:
    assert keys(run({**MEMORY, "retries": retries}, steps=steps)) == []


@pytest.mark.parametrize(
    "damaged", [None, 5, [], {"retries": "many"}, {"retries": float("nan")}, {"retries": -1}]
)
def test_damaged_counts_are_none(damaged: object) -> None:
    assert keys(run(damaged)) == []
