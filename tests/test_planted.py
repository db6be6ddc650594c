"""Real trainings with a planted cause: it is what is found first. In healthy ones nothing is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from patience import patiently
from planted_causes import (
    CAUSES,
    ROOT,
    can_limit_memory,
    is_right,
    on,
    run_cause,
    serious,
)
from stoker.advise.stages import stages_of
from stoker.watch.summary import Summary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all((ROOT / f".venv-{each}/bin/python").exists() for each in ("torch", "tf")),
        reason="no PyTorch and TensorFlow: scripts/setup-frameworks",
    ),
]

Check = Callable[[Summary], bool]
Settle = Callable[[str, Check], None]


@pytest.fixture(scope="session")
def settle(tmp_path_factory: pytest.TempPathFactory) -> Settle:
    """Run a training until what is found in it is right, a few times at most."""
    done: dict[str, Summary] = {}

    def find(name: str, check: Check) -> None:
        cause = CAUSES[name]

        def trial(number: int) -> None:
            if name not in done or number:
                folder = tmp_path_factory.mktemp("planted") / "run"
                done[name] = run_cause(cause, folder, cause.words, cause.environ)
            assert check(done[name]), serious(done[name])

        patiently(trial)

    return find


@pytest.mark.parametrize("name", on("cpu"))
def test_the_planted_cause_comes_first(name: str, settle: Settle) -> None:
    if CAUSES[name].memory_mb is not None and not can_limit_memory():
        pytest.skip("no control group with a limit can be made here")
    settle(name, lambda summary: is_right(CAUSES[name], summary))


def test_a_leak_is_measured(settle: Settle) -> None:
    def leaks_half_a_megabyte_a_step(summary: Summary) -> bool:
        findings = serious(summary)
        if not findings or findings[0].key != "rising-memory":
            return False
        rank = summary.ranks[0]
        steps_s = rank.steps / (summary.wall_s - (rank.startup_s or 0.0))
        return findings[0].figures["gib_per_hour"] == pytest.approx(steps_s * 3600 / 2048, rel=0.25)

    settle("a leak", leaks_half_a_megabyte_a_step)


def test_layers_that_are_unfrozen_begin_a_new_stage(settle: Settle) -> None:
    def has_two_stages(summary: Summary) -> bool:
        stages = [each for each in stages_of(summary) if each.name.startswith("training")]
        first, last = stages[0], stages[-1]
        if first.split is None or last.split is None:
            return False
        # A backward pass through the body takes 20 ms more.
        return (
            first.split.phases["backward"] < 0.015
            and last.split.phases["backward"] > 0.020
            and abs(first.steps - last.steps) <= 0.3 * first.steps
        )

    settle("healthy: layers unfrozen", has_two_stages)
