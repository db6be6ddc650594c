"""Steps measured on the time line of a device that works while the host runs ahead."""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled import compiled
from stoker.watch.inside.gates import Gates
from stoker.watch.inside.hooks import NOBODY, around_steps, asking, spanning
from stoker.watch.inside.marks import (
    BUDGET,
    MAX_PENDING,
    MAX_STRIDE,
    MIN_MEASURED,
    STRETCH,
    Marks,
)
from stoker.watch.inside.phases import BACKWARD, FORWARD, H2D, OPEN, OPTIMIZER, OTHER
from stoker.watch.inside.timeline import Timeline
from test_timeline import ADAM, SGD, TRAIN, VALID, Clock

# A step with one batch has this many marks, the one that opens it among them.
MARKS_A_STEP = 10


class Event:
    """A mark on the device's time line, at a time that is known when it is recorded."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.at = device, 0.0

    def query(self) -> bool:
        self.device.enter("query")
        return self.at <= self.device.clock.now

    def elapsed_time(self, end: Event) -> float:
        self.device.enter("elapsed_time")
        assert self.query(), "nothing may wait for the device"
        assert end.query(), "nothing may wait for the device"
        return 1000 * (end.at - self.at)


ENGINE = 77


class FakeDevice:
    """Works through what it was given, one piece after the other."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        # A stream beside the one that is computed on: the program is on it, and it is followed.
        self.is_beside = self.is_beside_followed = False
        self.busy_until = self.busy_beside_until = clock.now
        self.made = 0
        self.recorded = 0
        self.living: weakref.WeakSet[Event] = weakref.WeakSet()
        self.fails_at = ""
        self.capturing = False
        # What it costs the host to record an event.
        self.cost_ms = 0.0

    def enter(self, name: str) -> None:
        if name == self.fails_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def work(self, ms: float) -> None:
        if self.is_beside:
            self.busy_beside_until = max(self.busy_beside_until, self.clock.now) + ms / 1000
            return
        self.busy_until = max(self.busy_until, self.clock.now) + ms / 1000

    def make_event(self) -> Event:
        self.enter("make_event")
        event = Event(self)
        self.made += 1
        self.living.add(event)
        return event

    def wait_for_beside(self) -> None:
        self.busy_until = max(self.busy_until, self.busy_beside_until)

    def follow(self) -> None:
        self.is_beside_followed = self.is_beside

    def record(self, event: Event) -> None:
        assert not self.capturing, "it would be caught in the graph"
        self.enter("record")
        self.recorded += 1
        self.clock.move(self.cost_ms)
        until = self.busy_beside_until if self.is_beside_followed else self.busy_until
        event.at = max(until, self.clock.now)

    def is_capturing(self) -> bool:
        self.enter("is_capturing")
        return self.capturing


class Loader:
    """Gives batches, each of which is waited for."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.ms = 0.0
        self.is_over = False
        wrapper = asking(loop.line, Loader.load, Loader.ask_at_length)
        self.ask = loop.gated(wrapper, "asking", Loader.load)

    def load(self) -> None:
        self.loop.clock.move(self.ms)
        if self.is_over:
            raise StopIteration

    def ask_at_length(self) -> None:
        line = self.loop.line
        line.data_begins(id(self))
        try:
            self.load()
        except StopIteration:
            line.data_ends(id(self), got=False)
            raise
        line.data_ends(id(self), got=True)


class Evaluated:
    """A model in evaluation mode."""

    training = False


class Loop:
    """A loop whose host takes 0.1 ms to give the device each piece of work."""

    def __init__(self, native: Any = None) -> None:
        self.clock = Clock()
        self.device = FakeDevice(self.clock)
        self.line = Timeline(owner=get_ident(), clock=self.clock)
        self.line.has_gradients = lambda: False
        self.errors: list[tuple[str, Exception]] = []
        self.marks = Marks(
            self.line, self.device, lambda *told: self.errors.append(told), self.clock
        )
        self.marks.is_on = True
        self.line.marks = self.marks
        self.gates = Gates(self.line, native)
        self.gates.open()
        self.loaders = {TRAIN: Loader(self), VALID: Loader(self)}
        self.optimizers = {ADAM: object(), SGD: object()}
        before, after = around_steps(self.line, NOBODY, lambda optimizer: None)
        self.before, self.after = self.gated(before, "before"), self.gated(after, "after")

    def gated(self, wrapper: Any, way: str, original: Any = None) -> Any:
        """Return a wrapper, with a gate before it if there are any."""
        place = type("Place", (), {})
        self.gates.put(place, "call", wrapper, way, original or wrapper)
        return vars(place)["call"]

    def model(self, call: Callable[..., object]) -> Any:
        """Return a model that is called so, watched."""
        return self.gated(spanning(self.line, call, FORWARD), "forward", call)

    def sample(self, count: int) -> None:
        """The model draws samples, in evaluation mode and without gradients."""

        def call(model: Evaluated) -> None:
            self.launch(2)

        for _ in range(count):
            self.model(call)(Evaluated())
            self.wait_for_device()
            self.clock.move(0.5)  # looks at it

    def data(self, ms: float, loader: int = TRAIN) -> None:
        asked = self.loaders[loader]
        asked.ms = ms
        asked.ask(asked)

    def epoch(self) -> None:
        """The loader has no more, and is asked for its iterator again."""
        loader = self.loaders[TRAIN]
        loader.is_over = True
        with suppress(StopIteration):
            self.data(1)
        loader.is_over = False
        self.line.loader_begins()
        self.clock.move(1)
        self.line.loader_ends(id(loader))

    def launch(self, ms: float) -> None:
        self.clock.move(0.1)
        self.device.work(ms)

    def forward(self, ms: float = 2) -> None:
        self.model(self.launch)(ms)

    def backward(self, ms: float = 3) -> None:
        wrapper = spanning(self.line, self.launch, BACKWARD, where=OPEN | {FORWARD})
        self.gated(wrapper, "backward", self.launch)(ms)

    def step_in_a_call(self) -> None:
        """The forward pass, the backward pass and the optimizer, all in one call of the model."""

        def whole() -> None:
            self.launch(1)
            self.backward()
            self.optimizer()

        self.data(1)
        self.model(whole)()

    def steps_in_a_call(self) -> None:
        """Several of an optimizer's steps in one call, as Lightning has it where one steps by hand."""

        def whole() -> None:
            for _ in range(3):
                self.launch(1)
                self.backward()
                self.optimizer()
                self.launch(1)

        self.data(1)
        self.model(whole)()

    def steps_in_a_backward_pass(self) -> None:
        """Each gradient is used as soon as it is there."""

        def whole(ms: float) -> None:
            self.launch(ms)
            self.optimizer()
            self.launch(ms)
            self.optimizer(key=SGD)

        wrapper = spanning(self.line, whole, BACKWARD, where=OPEN | {FORWARD})
        self.data(1)
        self.forward()
        self.gated(wrapper, "backward", whole)(2)

    def closure(self) -> None:
        """The optimizer calls the model, as Lightning has it, or a scaler the optimizer."""
        number = id(self.optimizers[ADAM])
        self.line.optimizer_begins(number)
        self.forward()
        self.backward()
        self.optimizer()
        self.line.optimizer_ends(number)

    def engine(self) -> None:
        """What steps is no optimizer, but has one, as with DeepSpeed."""
        self.line.optimizer_begins(ENGINE)
        self.optimizer()
        self.line.optimizer_ends(ENGINE)

    def batch_in_a_step(self) -> None:
        """An optimizer that is given a closure, which takes a batch."""
        self.before(self.optimizers[ADAM], (), {})
        self.data(1)
        self.forward()
        self.backward()
        self.after(self.optimizers[ADAM], (), {})

    def optimizer_fails(self) -> None:
        """What was begun does not end; the program goes on with another batch."""
        self.before(self.optimizers[ADAM], (), {})
        self.data(1)

    def failure(self) -> None:
        with suppress(ZeroDivisionError):
            self.model(lambda: 1 // 0)()

    def optimizer(self, ms: float = 1, key: int = ADAM) -> None:
        self.before(self.optimizers[key], (), {})
        self.launch(ms)
        self.after(self.optimizers[key], (), {})

    def graph(self) -> None:
        self.line.graph_begins(7)
        self.launch(2)
        self.line.graph_ends(7)

    def wait_for_device(self, ahead_ms: float = 0) -> None:
        """As `loss.item()` does, or a queue that holds so much work and no more."""
        self.clock.now = max(self.clock.now, self.device.busy_until - ahead_ms / 1000)

    def steps(
        self,
        count: int,
        data_ms: float = 4,
        ahead_ms: float = 0,
        optimizers: Sequence[int] = (ADAM,),
    ) -> None:
        for _ in range(count):
            self.data(data_ms)
            self.forward()
            self.backward()
            for each in optimizers:
                self.engine() if each == ENGINE else self.optimizer(key=each)
            self.wait_for_device(ahead_ms)

    def evaluation(self, data_ms: float = 2, loader: int = VALID) -> None:
        self.data(data_ms, loader)
        self.forward()

    def forget_found(self) -> None:
        for block in [*self.line.ready, self.line.block]:
            block.sums.clear()

    def found(self, kind: str = "steady") -> dict[str, float]:
        """Return the mean of each measure over the measured steps of a kind, in milliseconds."""
        sums: dict[str, list[float]] = {}
        for block in [*self.line.ready, self.line.block]:
            for name, (count, total, _, _) in block.sums.items():
                if name.startswith(f"{kind}.") and ".host." not in name:
                    pair = sums.setdefault(name.removeprefix(f"{kind}."), [0, 0.0])
                    pair[0] += count
                    pair[1] += total
        steps = sums.pop("step", [1])
        measured = sums.get("device_step", steps)[0]
        found = {name: round(1000 * total / measured, 6) for name, (_, total) in sums.items()}
        return {name: value for name, value in found.items() if value}


@pytest.fixture
def loop() -> Loop:
    return Loop()


# -- phases ------------------------------------------------------------------------------


def test_phases_are_as_long_as_on_the_device(loop: Loop) -> None:
    loop.steps(20)
    # The host is ahead only within the step: what it takes to launch the first piece shows.
    assert loop.found() == {
        "data": 4, "forward": 2.1, "backward": 3, "optimizer": 1, "device_step": 10.1,
    }  # fmt: skip
    assert loop.found("warmup")["device_step"] == pytest.approx(10.1)
    assert not loop.errors


def test_a_wait_for_data_that_the_device_spends_working_does_not_show(loop: Loop) -> None:
    # 4.3 ms a step for the host and 6 ms for the device: after a while it has enough to do.
    loop.steps(20, ahead_ms=20)
    loop.forget_found()
    loop.steps(20, ahead_ms=20)
    assert loop.found() == {
        "forward": 2, "backward": 3, "optimizer": 1, "device_step": 6, "data_hidden": 4,
    }  # fmt: skip


def test_a_wait_for_data_that_the_device_spends_idle_shows_whole(loop: Loop) -> None:
    loop.steps(20, data_ms=30)
    assert loop.found()["data"] == 30
    assert "data_hidden" not in loop.found()


def test_a_wait_that_is_half_hidden_shows_by_half(loop: Loop) -> None:
    # While the host waits 12 ms, the device works off the 5.8 ms that are left of its 6.
    loop.steps(20, data_ms=12, ahead_ms=100)
    found = loop.found()
    assert found["data"] == pytest.approx(6.2)
    assert found["data_hidden"] == pytest.approx(5.8)
    assert found["device_step"] == pytest.approx(12.3)


@pytest.mark.parametrize("has_loader_beside", [False, True])
def test_a_batch_that_is_copied_ahead_beside_the_model_shows_where_it_is_waited_for(
    loop: Loop, has_loader_beside: bool
) -> None:
    """As those do who copy the next batch on a stream of their own, and may ask for it there, too."""

    def steps(copy_ms: float) -> None:
        for _ in range(20):
            loop.device.wait_for_beside()
            loop.device.is_beside = has_loader_beside
            loop.data(1)
            loop.device.is_beside = True
            before = loop.line.switch(H2D)
            loop.launch(copy_ms)
            loop.line.switch(before)
            loop.device.is_beside = False
            loop.forward()
            loop.backward()
            loop.optimizer()
            loop.wait_for_device(20)

    steps(3)
    loop.forget_found()
    steps(3)
    found = loop.found()
    assert all(each >= 0 for each in found.values())
    assert {name: found[name] for name in ("forward", "backward", "optimizer", "device_step")} == {
        "forward": 2, "backward": 3, "optimizer": 1, "device_step": 6,
    }  # fmt: skip
    assert "h2d" not in found
    steps(10)
    loop.forget_found()
    steps(10)
    # The model has nothing to do for 4 ms.
    found = loop.found()
    assert found["device_step"] == pytest.approx(10)
    assert sum(found.get(name, 0) for name in ("data", "h2d", "other")) == pytest.approx(4)
    assert not loop.errors


def test_nothing_is_recorded_before_the_device_is_used(loop: Loop) -> None:
    loop.marks.is_on = False
    loop.steps(10)
    assert loop.device.made == 0
    assert loop.found("warmup")["data"] == 4  # by the host's clock, under the usual names
    loop.marks.is_on = True
    loop.steps(10)
    assert loop.marks.measured > 5


# -- which steps are measured ----------------------------------------------------------------


def test_a_loop_without_a_loader_is_measured_from_optimizer_to_optimizer(loop: Loop) -> None:
    for _ in range(30):
        loop.clock.move(1)
        loop.forward()
        loop.backward()
        loop.optimizer()
        loop.wait_for_device()
    assert loop.marks.measured >= 8
    assert loop.found() == {
        "other": 1, "forward": 2.1, "backward": 3, "optimizer": 1, "device_step": 7.1,
    }  # fmt: skip


def test_two_optimizers_without_a_loader_are_one_step(loop: Loop) -> None:
    for _ in range(30):
        for key in (ADAM, SGD):
            loop.forward()
            loop.backward()
            loop.optimizer(key=key)
            loop.wait_for_device()
    assert loop.marks.measured >= 8
    assert loop.found() == {
        "forward": 4.2, "backward": 6, "optimizer": 2, "device_step": 12.2,
    }  # fmt: skip


@pytest.mark.parametrize(("loader", "measured"), [(TRAIN, 3), (VALID, 2)])
def test_batches_that_are_evaluated_are_measured_and_are_no_steps(
    loop: Loop, loader: int, measured: int
) -> None:
    loop.steps(10)
    before = loop.marks.measured
    for _ in range(3):
        loop.evaluation(loader=loader)
        loop.wait_for_device()
    loop.steps(11)
    # But for the last of a loader, after which anything may have come, and the step that begins there.
    assert loop.marks.measured - before == measured + 10
    assert loop.found("eval") == {"data": 2, "forward": 2.1, "device_step": 4.1}
    assert loop.found()["device_step"] == 10.1


@pytest.mark.parametrize(
    ("loader", "evaluated", "found"),
    [
        # The device was still at work on the batch before.
        (TRAIN, 10, {"forward": 2, "data_hidden": 2, "device_step": 2}),
        # A loader's only batch is its last.
        (VALID, 0, {}),
    ],
)
def test_a_step_with_an_evaluation_in_it_is_not_measured(
    loop: Loop, loader: int, evaluated: int, found: dict[str, float]
) -> None:
    """Neither with it nor from where it ended."""
    loop.steps(10)
    before = loop.marks.measured
    for _ in range(10):
        loop.data(1)
        loop.forward()
        loop.backward()
        loop.evaluation(loader=loader)
        loop.wait_for_device()
        loop.steps(1)
    loop.steps(1)
    assert loop.marks.measured - before == evaluated + 1
    assert loop.found("eval") == found
    assert loop.found()["device_step"] == 10.1


def test_what_follows_the_last_answer_is_part_of_no_batch_on_the_device_either(loop: Loop) -> None:
    loop.steps(10)
    loop.evaluation()
    loop.launch(500)
    loop.line.data_begins(TRAIN)
    loop.line.data_ends(TRAIN, got=True)
    loop.forward()
    loop.backward()
    loop.optimizer()
    loop.wait_for_device()
    loop.line.flush()
    assert "device_step" not in loop.found("eval")


def test_an_evaluation_after_a_loader_that_fetches_ahead_is_measured(loop: Loop) -> None:
    """Such a loader says that it has no more before its last batch is used."""
    for _ in range(5):
        loop.steps(10)
        loop.line.data_begins(TRAIN)
        loop.line.data_ends(TRAIN, got=False)
        loop.forward()
        loop.backward()
        loop.optimizer()
        loop.wait_for_device()
        for _ in range(4):
            loop.evaluation()
            loop.wait_for_device()
        loop.line.data_begins(VALID)
        loop.line.data_ends(VALID, got=False)
    assert loop.found("eval") == {"data": 2, "forward": 2.1, "device_step": 4.1}
    assert loop.found()["device_step"] == 10.1


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize("cost_ms", [0, 0.05])
def test_samples_between_two_steps_are_measured_and_are_no_part_of_a_step(
    has_loader: bool, has_gates: bool, cost_ms: float
) -> None:
    loop = Loop(compiled("_gate") if has_gates else None)
    loop.device.cost_ms = cost_ms
    for _ in range(40):
        for _ in range(10):
            loop.data(4) if has_loader else loop.clock.move(4)
            loop.forward()
            loop.backward()
            loop.optimizer()
            loop.wait_for_device()
        loop.sample(20)
        loop.clock.move(1000)  # writes them
    loop.line.flush()
    found, evaluated = loop.found(), loop.found("eval")
    phases = {name: found[name] for name in ("forward", "backward", "optimizer")}
    assert phases == pytest.approx({"forward": 2.1, "backward": 3, "optimizer": 1}, rel=0.05)
    assert evaluated["forward"] == pytest.approx(2.1, rel=0.05)
    counts = [
        sum(block.sums.get(f"{kind}.step", [0])[0] for block in loop.line.ready)
        for kind in ("warmup", "steady", "eval")
    ]
    assert counts == [3, 397, 800]


def test_an_evaluation_that_is_traced_is_not_measured(loop: Loop) -> None:
    loop.steps(10)
    loop.evaluation()
    loop.line.is_traced = True
    loop.evaluation()
    loop.evaluation()
    loop.steps(1)
    assert "device_step" not in loop.found("eval")


def test_batches_that_are_evaluated_leave_the_first_steps_to_be_measured(loop: Loop) -> None:
    loop.device.cost_ms = 0.05
    for _ in range(2 * MIN_MEASURED):
        loop.evaluation()
        loop.wait_for_device()
    before = loop.marks.measured
    loop.steps(MIN_MEASURED)
    assert loop.marks.measured - before >= MIN_MEASURED - 2


def test_a_step_in_which_a_graph_is_captured_is_left_out(loop: Loop) -> None:
    loop.steps(10)
    before = loop.marks.measured
    loop.data(4)
    loop.device.capturing = True
    loop.forward(500)
    loop.device.capturing = False
    loop.backward()
    loop.optimizer()
    loop.wait_for_device()
    loop.steps(10)
    assert loop.marks.measured - before == 10
    assert loop.found()["device_step"] == 10.1
    assert not loop.errors


# -- what it costs -----------------------------------------------------------------------------


def share_of_time(loop: Loop, run: Callable[[], None]) -> float:
    began, recorded = loop.clock.now, loop.device.recorded
    run()
    cost = loop.device.cost_ms / 1000 * (loop.device.recorded - recorded)
    return cost / (loop.clock.now - began)


@pytest.mark.parametrize("cost_ms", [0.001, 0.01, 0.05, 0.2])
def test_the_dearer_a_mark_the_fewer_steps_are_measured(loop: Loop, cost_ms: float) -> None:
    loop.device.cost_ms = cost_ms
    loop.steps(10 + MIN_MEASURED)
    assert share_of_time(loop, lambda: loop.steps(500)) < 1.5 * BUDGET
    assert loop.marks.measured > MIN_MEASURED + 4
    assert (loop.marks.stride == 1) == (cost_ms == 0.001)


def test_however_dear_some_steps_are_measured(loop: Loop) -> None:
    loop.device.cost_ms = 100
    loop.steps(10 * MAX_STRIDE)
    assert loop.marks.stride == MAX_STRIDE
    assert loop.marks.measured >= MIN_MEASURED + 8
    loop.device.cost_ms = 0.0001
    loop.steps(2 * STRETCH * MAX_STRIDE)
    assert loop.marks.stride == 1


def test_a_program_that_only_evaluates_pays_no_more(loop: Loop) -> None:
    def evaluate(count: int) -> None:
        for _ in range(count):
            loop.evaluation()
            loop.wait_for_device()

    loop.device.cost_ms = 0.05
    evaluate(10 + MIN_MEASURED)
    assert share_of_time(loop, lambda: evaluate(1000)) < 1.5 * BUDGET
    assert loop.marks.measured > MIN_MEASURED + 4
    assert loop.found("eval")["forward"] == pytest.approx(2.1, rel=0.05)


def test_one_long_step_does_not_make_the_short_ones_after_it_dear(loop: Loop) -> None:
    loop.device.cost_ms = 0.05
    loop.steps(200)
    usual = loop.marks.stride
    assert usual > 10
    for _ in range(2 * int(usual)):
        loop.clock.move(60_000)
        loop.steps(int(usual))
        assert loop.marks.stride > usual / 2


def test_where_steps_become_longer_more_of_them_are_measured_soon(loop: Loop) -> None:
    loop.device.cost_ms = 0.05
    loop.steps(500, data_ms=0)
    assert loop.marks.stride > 15
    loop.steps(STRETCH * MAX_STRIDE, data_ms=200)
    assert loop.marks.stride < 3


def test_a_host_that_runs_ahead_is_measured_by_what_the_device_takes(loop: Loop) -> None:
    """Its own steps are short, whatever marks cost: the device has time enough meanwhile."""
    loop.device.cost_ms = 0.01
    for _ in range(20):
        for _ in range(20):
            loop.data(0)
            loop.forward(20)
            loop.backward(40)
            loop.optimizer(1)
        loop.wait_for_device()
    assert loop.marks.stride <= 2
    assert loop.marks.measured > 100


def test_what_the_first_marks_cost_says_nothing_of_the_others(loop: Loop) -> None:
    """The first ones set the device up."""
    loop.device.cost_ms = 5
    loop.steps(2, ahead_ms=100)
    loop.device.cost_ms = 0.002
    loop.steps(2 * MIN_MEASURED, ahead_ms=100)
    assert loop.marks.stride < 2


def test_a_short_run_is_measured_whole_whatever_that_costs(loop: Loop) -> None:
    loop.device.cost_ms = 1
    loop.steps(MIN_MEASURED)
    assert loop.marks.measured == MIN_MEASURED - 2


def test_what_the_device_has_passed_by_the_end_is_read(loop: Loop) -> None:
    loop.steps(12, data_ms=0, ahead_ms=1000)
    assert loop.marks.measured == 0
    loop.wait_for_device()
    loop.line.flush()
    assert loop.marks.measured == 11
    assert loop.found()["backward"] == pytest.approx(3)


@pytest.mark.parametrize(
    ("workers", "cost_ms"),
    [(2, 0.005), (2, 0.02), (3, 0.01), (8, 0.005), (8, 0.02), (16, 0.01)],
)
def test_batches_that_come_in_rounds_are_measured_as_they_come(
    loop: Loop, workers: int, cost_ms: float
) -> None:
    """Those of so many workers come at once, and the first of them is what is waited for."""
    loop.device.cost_ms = cost_ms
    for _ in range(48_000 // workers):
        loop.steps(1, data_ms=10 * workers)
        loop.steps(workers - 1, data_ms=0)
    assert loop.found()["data"] == pytest.approx(10, rel=0.1)


def test_pauses_between_steps_do_not_make_the_steps_dearer(loop: Loop) -> None:
    def train_in_turns() -> None:
        for _ in range(100):
            loop.clock.move(3000)
            loop.steps(30)

    loop.device.cost_ms = 0.05
    train_in_turns()
    began = loop.clock.now
    share = share_of_time(loop, train_in_turns)
    passed_s = loop.clock.now - began
    assert share * passed_s / (passed_s - 300) < 1.5 * BUDGET


def test_marks_between_which_nothing_can_have_been_launched_are_one(loop: Loop) -> None:
    loop.steps(10)
    recorded = loop.device.recorded
    loop.steps(1)
    # Opened; data, what follows it, the model, the loss, backward, what follows it, the optimizer and
    # its end: where one of them begins as the other ends, one event is both.
    assert loop.device.recorded - recorded < MARKS_A_STEP
    # The device had nothing to do for as long as the launch took.
    assert loop.found()["forward"] == pytest.approx(2.1)
    assert loop.found()["backward"] == pytest.approx(3)


def test_events_are_used_again(loop: Loop) -> None:
    loop.steps(20, ahead_ms=20)
    made = loop.device.made
    loop.steps(200, ahead_ms=20)
    assert loop.device.made == made
    assert loop.device.recorded > 1000


def test_steps_that_wait_to_be_read_are_bounded(loop: Loop) -> None:
    loop.device.work(1e9)
    loop.steps(200, ahead_ms=1e12)
    assert loop.marks.measured == 0
    assert loop.marks.dropped > 100
    assert len(loop.device.living) <= (MAX_PENDING + 2) * MARKS_A_STEP
    loop.wait_for_device()
    loop.steps(MAX_PENDING)
    assert loop.marks.measured == MAX_PENDING


def test_every_event_is_let_go_before_a_fork(loop: Loop) -> None:
    loop.steps(10, ahead_ms=100)
    loop.data(4)
    loop.forward()
    assert len(loop.device.living) > MARKS_A_STEP
    loop.marks.forget()
    assert len(loop.device.living) == 0
    # The parent goes on in the middle of its step.
    measured = loop.marks.measured
    loop.backward()
    loop.optimizer()
    loop.steps(10)
    assert loop.marks.measured - measured >= 8
    assert not loop.errors


def test_a_forked_child_leaves_the_device_alone(loop: Loop) -> None:
    loop.steps(10)
    loop.marks.forget()
    loop.marks.end()
    recorded = loop.device.recorded
    loop.steps(10)
    assert loop.device.recorded == recorded


# -- a device in trouble -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["make_event", "record", "is_capturing", "query", "elapsed_time"])
def test_a_device_that_raises_is_told_once_and_measured_no_more(call: str, loop: Loop) -> None:
    loop.steps(10)
    loop.marks.forget()  # so that new events are needed
    loop.device.fails_at = call
    steps = loop.line.steps
    loop.steps(10)
    assert [(what, type(error)) for what, error in loop.errors] == [
        ("the device's time line", RuntimeError)
    ]
    assert loop.line.steps == steps + 10
    recorded = loop.device.recorded
    loop.steps(5)
    assert loop.device.recorded == recorded


def test_what_the_host_measures_after_that_is_not_added_to_the_device_s_phases(loop: Loop) -> None:
    loop.steps(20)
    before = loop.found()
    loop.device.fails_at = "record"
    loop.steps(20)
    assert loop.found() == before


def test_the_first_steps_are_measured_also_after_many_evaluated_batches(loop: Loop) -> None:
    loop.device.cost_ms = 0.05
    loop.steps(20)
    for _ in range(4 * MIN_MEASURED):
        loop.evaluation()
        loop.wait_for_device()
    before = loop.marks.measured
    loop.steps(20)
    # But for the one that begins where an evaluation ended, and the last, which is open.
    assert loop.marks.measured - before >= 18


def test_steps_pass_by_again_after_one_that_took_a_batch_in_the_optimizers_step() -> None:
    loop = Loop()
    loop.device.cost_ms = 0.05
    loop.steps(20 + MIN_MEASURED)
    loop.data(4)
    loop.batch_in_a_step()
    before = loop.line.steps
    loop.steps(20)
    assert loop.line.passing is not None
    assert loop.line.steps + len(loop.line.passing.ends) == before + 20


@pytest.mark.parametrize("has_gates", [False, True])
def test_after_steps_that_pass_by_an_epoch_has_a_first_one_again(has_gates: bool) -> None:
    loop = Loop(compiled("_gate") if has_gates else None)
    loop.device.cost_ms = 0.05
    loop.steps(20 + MIN_MEASURED)
    for _ in range(3):
        loop.epoch()
        loop.steps(4)
    loop.line.flush()
    assert sum(block.sums.get("first.step", [0])[0] for block in loop.line.ready) == 3
    assert loop.line.epochs.count == 3


EVENTS: dict[str, Callable[[Loop], None]] = {
    "data": lambda loop: loop.data(1),
    "other data": lambda loop: loop.data(1, VALID),
    "forward": lambda loop: loop.forward(),
    "backward": lambda loop: loop.backward(),
    "optimizer": lambda loop: loop.optimizer(),
    "other optimizer": lambda loop: loop.optimizer(key=SGD),
    "optimizer fails": lambda loop: loop.optimizer_fails(),
    "graph": lambda loop: loop.graph(),
    "step": lambda loop: loop.steps(1, ahead_ms=20),
    "steps": lambda loop: loop.steps(12, data_ms=1, ahead_ms=20),
    "steps of both": lambda loop: loop.steps(3, ahead_ms=20, optimizers=(ADAM, SGD)),
    "steps in turn": lambda loop: loop.steps(3, ahead_ms=20, optimizers=(SGD, ADAM)),
    "step of an engine": lambda loop: loop.steps(3, ahead_ms=20, optimizers=(ENGINE,)),
    "epoch": lambda loop: loop.epoch(),
    "step in a call": lambda loop: loop.step_in_a_call(),
    "steps in a call": lambda loop: loop.steps_in_a_call(),
    "steps in a backward pass": lambda loop: loop.steps_in_a_backward_pass(),
    "closure": lambda loop: loop.closure(),
    "failure": lambda loop: loop.failure(),
    "evaluation": lambda loop: loop.evaluation(),
    "samples": lambda loop: loop.sample(4),
    "wait": lambda loop: loop.wait_for_device(),
    "fork": lambda loop: loop.marks.forget(),
    "capture": lambda loop: setattr(loop.device, "capturing", not loop.device.capturing),
}


@pytest.mark.parametrize("has_gates", [False, True])
def test_a_backward_pass_goes_on_after_an_optimizer_within_it(has_gates: bool) -> None:
    loop = Loop(compiled("_gate") if has_gates else None)
    loop.device.cost_ms = 0.05
    phases: list[int] = []
    launch = loop.launch

    def told(ms: float) -> None:
        phases.append(loop.line.current)
        launch(ms)

    loop.launch = told  # type: ignore[method-assign]
    for _ in range(20 + MIN_MEASURED):
        loop.steps_in_a_backward_pass()
        loop.wait_for_device()
    assert loop.line.passing is not None
    # The model, then a gradient and its optimizer, twice.
    assert phases[:5] == [FORWARD, BACKWARD, OPTIMIZER, BACKWARD, OPTIMIZER]
    # Of steps that pass by, those of an optimizer are not told.
    assert phases[-5:] == [FORWARD, BACKWARD, BACKWARD, BACKWARD, BACKWARD]


@pytest.mark.parametrize("has_gates", [False, True])
def test_after_a_backward_pass_that_went_otherwise_comes_what_it_began_in(has_gates: bool) -> None:
    """It began as those before, and another optimizer stepped in it; the one before was in a closure."""
    loop = Loop(compiled("_gate") if has_gates else None)
    loop.device.cost_ms = 0.05
    loop.steps(20 + MIN_MEASURED)
    loop.closure()
    loop.steps_in_a_backward_pass()
    assert loop.line.current == OTHER


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("is_engines", [True, False])
def test_optimizers_step_in_the_threads_of_a_backward_pass(is_engines: bool) -> None:
    """A device has such a thread, for which the one that we watch waits; others train for themselves."""
    loop = Loop()
    loop.before, loop.after = around_steps(
        loop.line, NOBODY, lambda optimizer: None, lambda: is_engines
    )
    for _ in range(10):
        loop.data(4)
        loop.forward()
        loop.line.backward_begins()
        loop.launch(3)
        if is_engines:
            in_thread(loop.optimizer)
        loop.line.backward_ends()
        if not is_engines:
            loop.optimizer()
        loop.wait_for_device()
    owner = loop.line.owner
    if not is_engines:
        loop.line.backward_begins()
        in_thread(loop.optimizer)
        loop.line.backward_ends()
    assert loop.line.owner == owner == get_ident()
    loop.line.flush()
    assert loop.line.steps == 10
    assert {name: loop.found()[name] for name in ("forward", "backward", "optimizer")} == {
        "forward": 2.1, "backward": 3, "optimizer": 1,
    }  # fmt: skip


@pytest.mark.parametrize("has_gates", [False, True])
@given(
    st.lists(st.sampled_from(sorted(EVENTS)), max_size=80),
    st.sampled_from((0, 20 + MIN_MEASURED)),
    st.sampled_from(((ADAM,), (ADAM, SGD), (ENGINE,))),
)
def test_the_short_way_through_a_step_tells_what_the_long_one_does(
    has_gates: bool, names: list[str], steps: int, optimizers: Sequence[int]
) -> None:
    told = []
    for is_short in (True, False):
        loop = Loop(compiled("_gate") if has_gates and is_short else None)
        loop.device.cost_ms = 0.05
        if not is_short:
            loop.line._has_passed = lambda loader: False  # type: ignore[method-assign]
        loop.steps(steps, optimizers=optimizers)
        assert loop.line.is_light == bool(steps)
        phases = []
        for name in names:
            EVENTS[name](loop)
            phases.append(loop.line.current)
        loop.device.capturing = False
        loop.steps(20)
        loop.line.flush()
        sums = [
            (name, [round(each, 9) for each in sums])
            for block in loop.line.ready
            for name, sums in sorted(block.sums.items())
        ]
        told.append((sums, loop.line.steps, loop.line.epochs.count, loop.marks.measured, phases))
    assert told[0] == told[1]


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=80))
def test_no_order_of_events_makes_a_device_step_other_than_its_phases(names: list[str]) -> None:
    loop = Loop()
    for name in names:
        EVENTS[name](loop)
    loop.device.capturing = False
    loop.steps(3)
    assert not loop.errors
    for kind in ("warmup", "first", "steady", "eval"):
        found = loop.found(kind)
        for beside in ("data_hidden", "between", "evaluated"):
            found.pop(beside, None)
        whole = found.pop("device_step", 0)
        assert all(each >= 0 for each in found.values())
        if whole:
            assert sum(found.values()) == pytest.approx(whole, abs=1e-4)
