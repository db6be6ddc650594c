"""What the watching of one process counts and how often it looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.watch.inside import process
from stoker.watch.inside.haste import HASTE_AMONG_MANY_S, HASTE_S, Haste
from stoker.watch.inside.phases import NAMES
from stoker.watch.inside.process import (
    EARLY_LOOKS,
    LOOK_BUDGET,
    LOOK_S,
    MAX_LOOK_S,
    Watched,
)
from test_marks import Loop
from test_run_unchanged import until


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


def test_beside_a_profiler_no_line_of_ours_runs_until_it_has_ended(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    looks: list[float] = []
    running: list[str] = []

    def get_profiler(_: int) -> str | None:
        asked.append(running[0] if running else None)
        return asked[-1]

    monkeypatch.setattr(process, "get_profiler", get_profiler)
    monkeypatch.setattr(watched, "_look", lambda _, seconds: looks.append(seconds))
    watched._resume()
    try:
        until(lambda: looks)
        running.append("cProfile")
        until(lambda: asked[-1])
        before = len(looks)
        watched._before_fork()
        watched._resume()
        until(lambda: len(asked) > 8 and all(asked[-4:]))
        assert len(looks) == before
        running.clear()
        until(lambda: len(looks) > before)
        # What was not seen is not taken for what comes after it.
        assert looks[before] == 0
        assert "profiler" in watched.notes[0]
    finally:
        running.clear()
        watched._pause(10)


def test_what_we_do_in_the_programs_thread_is_our_cost_and_no_line_of_its(
    watched: Watched,
) -> None:
    def look() -> None:
        watched._look(me=0, seconds=0.5)

    def take_a_while() -> None:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        look()

    watched.work(take_a_while)
    assert watched.worked_s >= 0.01
    assert not any(each[0] == __file__ for each in watched.lines.told(NAMES, {}))
    look()
    assert any(each[0] == __file__ for each in watched.lines.told(NAMES, {}))
    with pytest.raises(ZeroDivisionError):
        watched.work(lambda: print(1 / 0))
    assert not watched._is_working


def test_what_the_device_has_passed_is_told_at_the_end(watched: Watched) -> None:
    loop = Loop()
    watched.timeline = loop.line
    loop.steps(12, data_ms=0, ahead_ms=1000)
    loop.wait_for_device()
    watched.flush()
    assert loop.marks.measured == 11


def test_gradients_that_nothing_we_know_steps_by_are_told(watched: Watched) -> None:
    watched.timeline = loop = Loop().line
    assert watched._unstepped() == {}
    loop.backward_begins()
    loop.backward_ends()
    assert watched._unstepped() == {"is_unstepped": True}
    loop.optimizer_begins(1)
    loop.optimizer_ends(1)
    assert watched._unstepped() == {}


@pytest.fixture
def haste(monkeypatch: pytest.MonkeyPatch) -> Iterator[Haste]:
    before, put = sys.getswitchinterval(), sys.setswitchinterval
    for name in ("getswitchinterval", "setswitchinterval"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    made = Haste()
    made.install()
    yield made
    put(before)


def test_our_thread_wants_the_lock_at_once_and_the_program_does_not_see_it(haste: Haste) -> None:
    before = sys.getswitchinterval()
    for is_alone, wanted in ((True, HASTE_S), (False, HASTE_AMONG_MANY_S)):
        haste.hurry(is_alone)
        assert haste._get() == pytest.approx(wanted)
        assert sys.getswitchinterval() == before
    haste.rest()
    assert haste._get() == sys.getswitchinterval() == before


def test_an_interval_that_the_program_sets_is_kept(haste: Haste) -> None:
    with pytest.raises(ValueError, match="strictly positive"):
        sys.setswitchinterval(0)
    haste.hurry(True)
    sys.setswitchinterval(0.25)
    haste.hurry(True)
    assert haste._get() == sys.getswitchinterval() == 0.25
    haste.rest()
    assert haste._get() == sys.getswitchinterval() == 0.25


def test_when_the_program_forks_our_thread_is_gone_and_not_only_about_to_be(
    watched: Watched,
) -> None:
    # Python 3.12 counts the threads of the process at a fork, and warns if there are several.
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir()))
    for _ in range(300):
        watched._resume()
        watched._before_fork()
        assert len(list(tasks.iterdir())) == before
