"""What the watching of one process counts and how often it looks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.watch.inside.process import (
    EARLY_LOOKS,
    HASTE_AMONG_MANY_S,
    HASTE_S,
    LOOK_BUDGET,
    LOOK_S,
    MAX_LOOK_S,
    MOMENT_S,
    Watched,
)

COUNTING = """
import sys
from stoker.watch.inside.process import Opens
opens = Opens()
sys.addaudithook(opens.hook)
before = opens.count
for _ in range(3):
    open(sys.executable, "rb").close()
found = opens.count - before
sys.audit("opened")
sys.audit("pickle.find_class", "torch", "Tensor")
assert opens.count - before == found == 3, opens.count
"""


# A lookup may pass the same place of the dictionary twice: with the seeds 0, 3 and 5 it does.
@pytest.mark.parametrize("seed", ["0", "1", "3", "5"])
def test_files_that_are_opened_are_counted_once_and_no_other_event(seed: str) -> None:
    # In a process of its own: a hook can never be taken away again.
    done = subprocess.run(
        [sys.executable, "-c", COUNTING],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    monkeypatch.setenv("STOKER_SCRIBE", str(tmp_path / "nobody"))
    return Watched()


def test_the_first_looks_come_often_so_that_short_runs_have_lines(watched: Watched) -> None:
    assert watched._pace(cost=0.01) == LOOK_S


@pytest.mark.parametrize("cost", [0.0, 1e-4, 1e-3, 1e-2])
def test_later_looks_take_no_more_than_their_share(watched: Watched, cost: float) -> None:
    watched.lines.samples = EARLY_LOOKS
    pace = watched._pace(cost)
    assert LOOK_S < pace <= MAX_LOOK_S
    assert cost / pace <= LOOK_BUDGET or pace == MAX_LOOK_S


def test_loader_workers_never_begin_with_many_looks(watched: Watched) -> None:
    watched.is_child = True
    assert watched._pace(cost=0.0) > LOOK_S


def test_before_a_look_the_lock_is_wanted_at_once_and_only_then(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[float, float]] = []

    class Stop:
        def acquire(self, timeout: float) -> bool:
            waits.append((timeout, sys.getswitchinterval()))
            return False

    before = sys.getswitchinterval()
    monkeypatch.setattr(watched, "_stop", Stop())
    for is_alone, haste in ((True, HASTE_S), (False, HASTE_AMONG_MANY_S)):
        monkeypatch.setattr(watched, "_is_alone", is_alone)
        for looks in range(100):
            watched.lines.samples = looks
            assert not watched._stops_in_a_moment()
            assert sys.getswitchinterval() == before
        assert all(interval == pytest.approx(haste) for _, interval in waits[-100:])
    # As often in one part of these moments as in another.
    moments = sorted(moment / MOMENT_S for moment, _ in waits[:100])
    assert all(abs(moment - at / 100) < 0.03 for at, moment in enumerate(moments))


def test_an_interval_that_the_program_sets_meanwhile_is_kept(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop:
        def acquire(self, timeout: float) -> bool:
            sys.setswitchinterval(0.25)
            return True

    before = sys.getswitchinterval()
    monkeypatch.setattr(watched, "_stop", Stop())
    try:
        assert watched._stops_in_a_moment()
        assert sys.getswitchinterval() == 0.25
    finally:
        sys.setswitchinterval(before)
