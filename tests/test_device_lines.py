"""A few traced steps tell how long the device works for each line, and where the host waits."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.watch.inside import device_lines
from stoker.watch.inside.device_lines import BUDGET, FIRST_TRACED, DeviceLines, is_sync
from stoker.watch.inside.marks import Marks
from stoker.watch.inside.timeline import Timeline
from test_marks import FakeDevice
from test_timeline import ADAM, TRAIN, VALID, Clock

# As torch does from C, where there is no frame: under a name that is no user's file.
CALL = """
def call(stack, func, *args):
    if not stack:
        return func(*args)
    mode = stack.pop()
    try:
        return mode.__torch_function__(func, (), args)
    finally:
        stack.append(mode)
"""


class FakeTorch:
    """The part of torch that sees every call: a stack of modes, the last one first."""

    def __init__(self) -> None:
        stack: list[Any] = []

        class TorchFunctionMode:
            def __enter__(self) -> Any:
                stack.append(self)
                return self

            def __exit__(self, *_: object) -> None:
                assert stack.pop() is self

        self.stack = stack
        self.overrides = SimpleNamespace(
            TorchFunctionMode=TorchFunctionMode,
            _get_current_function_mode=lambda: stack[-1] if stack else None,
        )
        space: dict[str, Any] = {}
        exec(compile(CALL, "<torch>", "exec"), space)
        self.call: Callable[..., Any] = partial(space["call"], stack)


class Tensor:
    """A tensor of the device, or one of the host."""

    def __init__(self, is_cuda: bool = True) -> None:
        self.is_cuda = is_cuda


class Traced:
    """A training loop whose only calls are those that a test makes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.device = FakeDevice(self.clock)
        self.line = Timeline(owner=1, clock=self.clock)
        self.errors: list[Exception] = []
        self.torch = FakeTorch()
        self.lines = DeviceLines(self.line, self.torch, self.device)
        marks = Marks(
            self.line, self.device, lambda _, error: self.errors.append(error), self.clock
        )
        marks.is_on, marks.lines = True, self.lines
        self.line.marks = marks

    def step(self, body: Callable[[], object] = lambda: None) -> None:
        self.line.data_begins()
        self.line.data_ends(TRAIN, got=True)
        body()
        self.line.optimizer_begins(ADAM)
        self.line.optimizer_ends(ADAM)
        self.clock.now = max(self.clock.now + 0.001, self.device.busy_until)

    def traced_step(self, body: Callable[[], object] = lambda: None) -> None:
        """Take steps up to one that is traced, which is over when the next one begins."""
        traced: list[object] = []
        while not traced:
            self.step(lambda: traced.append(body()) if self.torch.stack else None)

    def work(self, ms: float) -> Callable[[], None]:
        return lambda: self.device.work(ms)

    def told(self) -> dict[str, dict[str, object]]:
        """Return what is known of each line, by the name of its function."""
        return {code.co_name: facts for (code, _), facts in self.lines.told().items()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_each_line_has_the_time_from_its_first_call_to_that_of_the_next(traced: Traced) -> None:
    call, work = traced.torch.call, traced.work

    def encode() -> None:
        call(work(3))

    def decode() -> None:
        for _ in range(2):
            call(work(2))

    def body() -> None:
        encode()
        decode()

    traced.traced_step(body)
    for _ in range(3):
        traced.step(body)
    told = traced.told()
    assert told["encode"] == {"device_ms": 3.0, "sync": False}
    assert told["decode"] == {"device_ms": 4.0, "sync": False}
    assert traced.lines.traced == 1
    assert not traced.torch.stack


def test_what_is_called_within_a_library_is_time_of_the_users_line(traced: Traced) -> None:
    space: dict[str, Any] = {"call": traced.torch.call, "work": traced.work(5)}
    exec(compile("def layer():\n    call(work)\n", "<library>", "exec"), space)

    def model() -> None:
        space["layer"]()

    traced.traced_step(model)
    traced.step()
    traced.step()
    assert traced.told() == {"model": {"device_ms": 5.0, "sync": False}}


def test_a_line_that_waits_for_the_device_is_named(traced: Traced) -> None:
    def item(tensor: Tensor) -> float:
        return 1.0

    def sync() -> None:
        assert traced.torch.call(item, Tensor()) == 1.0

    def no_sync() -> None:
        traced.torch.call(item, Tensor(is_cuda=False))

    def body() -> None:
        sync()
        no_sync()

    traced.traced_step(body)
    traced.step()
    traced.step()
    waits = {name: facts["sync"] for name, facts in traced.told().items()}
    assert waits["sync"]
    assert not waits["no_sync"]


@pytest.mark.parametrize(
    ("name", "to_host", "waits"),
    [("item", True, True), ("tolist", True, True), ("to", True, True), ("to", False, False),
     ("matmul", False, False)],
)  # fmt: skip
def test_which_calls_wait_for_the_device(name: str, to_host: bool, waits: bool) -> None:
    func = SimpleNamespace(__name__=name)
    result = Tensor(is_cuda=not to_host)
    assert is_sync(func, Tensor(), result) == waits
    assert not is_sync(func, Tensor(is_cuda=False), result)
    assert not is_sync(func, 7, result)


# -- which steps are traced ----------------------------------------------------------------


def test_a_handful_of_steps_is_traced_ever_more_rarely(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lines, "MAX_TRACED", 4)
    at = []
    for _ in range(8000):
        traced.step()
        if traced.torch.stack:
            at.append(traced.line.steps)
    assert at[0] == FIRST_TRACED
    assert len(at) == traced.lines.traced == 4
    assert all(later >= 2 * earlier for earlier, later in pairwise(at))
    # Steps are equally long here: never more of them than the share that they may take.
    assert all(later - earlier >= 1 / BUDGET for earlier, later in pairwise(at))


def test_traced_steps_are_in_no_other_figure(traced: Traced) -> None:
    traced.traced_step(lambda: traced.clock.move(500))
    for _ in range(5):
        traced.step()
    blocks = [*traced.line.ready, traced.line.block]
    slow = {name for each in blocks for name, sums in each.sums.items() if sums[3] > 0.4}
    assert slow
    assert all(name.startswith("traced.") for name in slow)


@pytest.mark.parametrize("is_broken_off", [False, True], ids=["epoch over", "epoch broken off"])
def test_an_epochs_first_step_is_told_as_such(traced: Traced, is_broken_off: bool) -> None:
    """Its loader has started workers, which no other step does."""
    for _ in range(4):
        traced.line.loader_begins()
        traced.clock.move(500)
        traced.line.loader_ends(TRAIN)
        for _ in range(FIRST_TRACED):
            traced.step()
        if not is_broken_off:
            traced.line.data_begins(TRAIN)
            traced.line.data_ends(TRAIN, got=False)
    traced.line.flush()
    found = [pair for each in traced.line.ready for pair in each.sums.items()]
    assert sum(sums[0] for name, sums in found if name == "first.step") == 3
    assert max(sums[3] for name, sums in found if name in ("steady.step", "traced.step")) < 0.1
    assert traced.lines.traced >= 1


def test_a_step_with_evaluation_in_it_tells_nothing_of_lines(traced: Traced) -> None:
    """Another one is traced instead."""
    call = traced.torch.call

    def model() -> None:
        call(traced.work(7))

    def evaluate() -> None:
        call(traced.work(900))

    for _ in range(FIRST_TRACED):
        traced.step()
    for _ in range(10):
        traced.line.data_begins(VALID)
        traced.line.data_ends(VALID, got=True)
        traced.line.forward_begins()
        evaluate()
        traced.line.forward_ends()
        traced.clock.now = max(traced.clock.now, traced.device.busy_until)
    for _ in range(3 * FIRST_TRACED):
        traced.step(model)
    assert traced.told() == {"model": {"device_ms": 7.0, "sync": False}}


def test_compiled_programs_are_never_traced(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = {"frames": {"total": 1}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    for _ in range(3 * FIRST_TRACED):
        traced.step()
        assert not traced.torch.stack


def test_a_mode_of_the_users_own_is_left_where_it_is(traced: Traced) -> None:
    mine = traced.torch.overrides.TorchFunctionMode()
    traced.traced_step(mine.__enter__)
    traced.step()
    assert len(traced.torch.stack) == 2
    mine.__exit__(None, None, None)
    traced.step()
    assert traced.torch.stack == []
    assert not traced.errors


# -- trouble -----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a traceback cannot be mended before 3.11")
def test_an_error_of_the_users_call_is_raised_as_it_is(traced: Traced) -> None:
    def broken() -> None:
        raise ValueError("shapes do not match")

    traced.traced_step()
    with pytest.raises(ValueError, match="shapes do not match") as caught:
        traced.torch.call(broken)
    names = [each.name for each in traceback.extract_tb(caught.tb)]
    assert "__torch_function__" not in names
    assert names[-1] == "broken"


def test_a_device_that_fails_while_it_is_traced_does_not_reach_the_user(traced: Traced) -> None:
    def fail() -> None:
        traced.device.fails_at = "record"
        traced.torch.call(traced.work(1))

    traced.traced_step(fail)
    traced.step()
    assert traced.torch.stack == []
    assert len(traced.errors) == 1


def test_nothing_is_recorded_into_a_graph_that_the_user_captures(traced: Traced) -> None:
    def capture() -> None:
        traced.device.capturing = True
        traced.torch.call(traced.work(1))
        traced.device.capturing = False

    traced.traced_step(capture)
    for _ in range(3):
        traced.step()
    assert not traced.errors


def test_no_step_is_traced_that_begins_within_a_capture(traced: Traced) -> None:
    traced.device.capturing = True
    for _ in range(FIRST_TRACED + 5):
        traced.step()
        assert not traced.torch.stack


def test_all_events_are_let_go_before_a_fork(traced: Traced) -> None:
    traced.traced_step(lambda: traced.torch.call(traced.work(1)))
    marks = traced.line.marks
    assert marks is not None
    assert len(traced.device.living) > 0
    marks.forget()
    assert len(traced.device.living) == 0
    traced.step()
    assert not traced.errors


def test_a_forked_child_records_nothing(traced: Traced) -> None:
    traced.traced_step()
    marks = traced.line.marks
    assert marks is not None
    marks.forget()
    marks.end()
    assert traced.torch.call(lambda: 7) == 7
    assert len(traced.device.living) == 0
    assert traced.torch.stack == []
