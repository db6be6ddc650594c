"""Tests of times are tried again, and skipped only beside a busy neighbour."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import patience
from patience import OUTLIVED, Done, Spent, patiently, run_ranks


class Clock:
    """Stands in for the machine's clocks: others use so many cores."""

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self.read = 0

    def now(self) -> Spent:
        self.read += 1
        return Spent(float(self.read), self.cores * self.read + 0.5 * self.read, 0.5 * self.read)


def fail_always(number: int) -> None:
    raise AssertionError(number)


def test_a_trial_that_passes_late_passes() -> None:
    def trial(number: int) -> int:
        assert number == patience.TRIES - 1
        return number

    assert patiently(trial) == patience.TRIES - 1


def test_on_a_quiet_machine_a_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience.Spent, "now", Clock(0.1).now)
    with pytest.raises(AssertionError):
        patiently(fail_always)


def test_beside_a_busy_neighbour_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience.Spent, "now", Clock(1.5).now)
    with pytest.raises(pytest.skip.Exception, match=r"others used 1\.5 cores"):
        patiently(fail_always)


def test_an_error_is_not_tried_again() -> None:
    tried: list[int] = []

    def crash(number: int) -> None:
        tried.append(number)
        raise RuntimeError("a training that crashes")

    with pytest.raises(RuntimeError):
        patiently(crash)
    assert tried == [0]


def test_own_children_are_no_neighbours() -> None:
    before = Spent.now()
    subprocess.run(["python3", "-c", "sum(range(3_000_000))"], check=True)
    after = Spent.now()
    assert after.own_s > before.own_s
    assert after.machine_s >= before.machine_s


def test_ranks_that_gloo_aborted_run_again(tmp_path: Path) -> None:
    def run(place: Path) -> Done:
        is_first = place.name == "0"
        return subprocess.CompletedProcess([], -6 if is_first else 0, "", OUTLIVED * is_first)

    place, done = run_ranks(run, tmp_path)
    assert (place.name, done.returncode) == ("1", 0)


def test_ranks_that_fail_otherwise_do_not(tmp_path: Path) -> None:
    place, done = run_ranks(
        lambda _: subprocess.CompletedProcess([], 1, "", "ValueError"), tmp_path
    )
    assert (place.name, done.returncode) == ("0", 1)
