"""What a training can ask about its job, whatever stands in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from stoker.engine.context import Context


@pytest.fixture(autouse=True)
def own_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher is around a test, and handlers are as before after it."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT", "STOKER_SIGNAL", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_alone_it_is_the_main_process_of_one() -> None:
    context = Context()
    assert (context.rank, context.world_size, context.restarts) == (0, 1, 0)
    assert context.is_main
    assert not context.should_stop


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_the_signal_before_the_limit_says_stop_and_reaches_the_users_handler(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("STOKER_SIGNAL", name)
    number = getattr(signal, f"SIG{name}")
    heard: list[int] = []
    signal.signal(number, lambda each, _: heard.append(each))
    context = Context()
    os.kill(os.getpid(), number)
    assert context.should_stop
    assert heard == [number]


def test_ranks_and_restarts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("SLURM_RESTART_COUNT", "2")):
        monkeypatch.setenv(name, value)
    context = Context()
    assert (context.rank, context.world_size, context.restarts) == (3, 8, 2)
    assert not context.is_main


@pytest.mark.parametrize("text", ["", "many", "-1", "3.5", "³"])
def test_nothing_in_the_environment_breaks_the_training(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT", "STOKER_SIGNAL"):
        monkeypatch.setenv(name, text)
    assert Context().rank == 0


def test_in_another_thread_it_only_never_says_stop() -> None:
    made: list[Context] = []
    thread = threading.Thread(target=lambda: made.append(Context()))
    thread.start()
    thread.join()
    assert not made[0].should_stop


def test_it_is_one_for_the_whole_process() -> None:
    code = "import stoker; print(stoker.context() is stoker.context())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
