"""What is noted of a load: time on a core, time waiting for one, files; and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.watch.inside.loading import LOOK_S, LOOK_WORKERS_S, Loading, read_times
from stoker.watch.inside.timeline import Timeline

pytestmark = pytest.mark.skipif(
    read_times("self") is None, reason="this kernel does not count time in queues"
)


def make_loading(clock: Any = time.perf_counter) -> tuple[Loading, Any]:
    notes: list[str] = []
    watched: Any = SimpleNamespace(
        timeline=Timeline(0, clock=clock),
        opens=SimpleNamespace(count=0),
        notes=notes,
        give_up_on=lambda what, error: notes.append(f"{what}: {error}"),
    )
    return Loading(watched), watched


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_load_that_computes_is_on_a_core() -> None:
    loading, watched = make_loading()
    begun = loading.begin(object())
    assert begun is not None
    spin(0.02)
    watched.opens.count += 3
    loading.end(begun)
    sums = watched.timeline.block.sums
    assert sums["loading.core"][1] == pytest.approx(0.02, rel=0.5)
    assert sums["loading.wall"][1] >= sums["loading.core"][1] - 0.005
    assert sums["loading.opens"][1] == 3


def test_a_load_that_waits_is_not() -> None:
    loading, watched = make_loading()
    begun = loading.begin(object())
    assert begun is not None
    subprocess.run(["/bin/sleep", "0.05"], check=True)
    loading.end(begun)
    sums = watched.timeline.block.sums
    assert sums["loading.wall"][1] >= 0.05
    assert sums["loading.core"][1] < 0.03


LOOKING = """
import sys
from types import SimpleNamespace
from stoker.watch.inside.loading import Loading
from stoker.watch.inside.opens import make_opens
from stoker.watch.inside.timeline import Timeline
watched = SimpleNamespace(timeline=Timeline(0), opens=make_opens(), give_up_on=print)
watched.opens.start()
loading = Loading(watched)
loading.end(loading.begin(object()))
assert "loading.core" in watched.timeline.block.sums
assert watched.opens.count == 0, watched.opens.count
"""


def test_looking_is_no_file_of_the_programs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_looks_are_rare() -> None:
    loading, watched = make_loading()
    loading.begin(object())
    assert loading.due == watched.timeline.last + LOOK_S


def test_of_workers_it_is_what_they_did_since_the_last_look() -> None:
    now = [100.0]
    loading, watched = make_loading(lambda: now[0])
    iterator = SimpleNamespace(_workers=[SimpleNamespace(pid=os.getpid())])
    assert loading.begin(iterator) is None
    assert watched.timeline.block.sums == {}
    spin(0.02)
    now[0] += 2.0
    assert loading.begin(iterator) is None
    sums = watched.timeline.block.sums
    assert sums["loading.wall"][1] == 2.0
    assert sums["loading.core"][1] == pytest.approx(0.02, rel=0.5)
    assert loading.due == now[0] + LOOK_WORKERS_S


def test_another_epochs_workers_begin_anew() -> None:
    loading, watched = make_loading()
    mine = [SimpleNamespace(pid=os.getpid())]
    first, second = SimpleNamespace(_workers=mine), SimpleNamespace(_workers=mine)
    loading.begin(first)
    loading.begin(second)
    assert watched.timeline.block.sums == {}


def test_a_worker_that_is_gone_tells_nothing() -> None:
    assert read_times(2**22 + 1) is None
    loading, watched = make_loading()
    iterator = SimpleNamespace(_workers=[SimpleNamespace(pid=2**22 + 1)])
    loading.begin(iterator)
    loading.begin(iterator)
    assert watched.timeline.block.sums == {}


def test_a_fault_ends_the_looks_and_is_noted() -> None:
    loading, watched = make_loading()
    assert loading.begin(SimpleNamespace(_workers=[None])) is None
    assert loading.due == float("inf")
    assert len(watched.notes) == 1
