"""The timeline finds steps and phases from what hooks say, and is an exact partition of time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.inside.phases import COMM, H2D, NAMES, OTHER
from stoker.watch.inside.timeline import Timeline

TRAIN, VALID = 1, 2
ADAM, SGD = 10, 11


class Clock:
    """A clock that the test moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, milliseconds: float) -> None:
        self.now += milliseconds / 1000


class Loop:
    """A training loop on a timeline, in milliseconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.line = Timeline(owner=1, clock=self.clock)

    def data(self, ms: float, loader: int = TRAIN, got: bool = True) -> None:
        self.line.data_begins()
        self.clock.move(ms)
        self.line.data_ends(loader, got)

    def loader(self, ms: float = 20, loader: int = VALID) -> None:
        """A loader is asked for its iterator, as at the beginning of a `for`."""
        self.line.loader_begins()
        self.wait(ms)
        self.line.loader_ends(loader)

    def read_whole(self, batches: int) -> None:
        """Read a loader to its end, with something done to each batch that nothing sees."""
        self.loader()
        for _ in range(batches):
            self.data(2, VALID)
            self.wait(5)
        self.data(1, VALID, got=False)

    def wait(self, ms: float) -> None:
        self.clock.move(ms)

    def forward(self, ms: float, is_evaluated: bool = False) -> None:
        self.line.forward_begins(is_evaluated)
        self.clock.move(ms)
        self.line.forward_ends()

    def backward(self, ms: float) -> None:
        before = self.line.current
        self.line.backward_begins()
        self.clock.move(ms)
        self.line.backward_ends(before)

    def optimizer(self, ms: float, key: int = ADAM) -> None:
        self.line.optimizer_begins(key)
        self.clock.move(ms)
        self.line.optimizer_ends(key)

    def step(self) -> None:
        self.data(4)
        self.forward(2)
        self.backward(3)
        self.optimizer(1)

    def warm_up(self) -> None:
        for _ in range(3):
            self.step()

    def found(self, kind: str = "steady") -> dict[str, float]:
        """Return the mean of each measure of a kind in milliseconds, and the count of steps."""
        self.line.flush()
        sums: dict[str, list[float]] = {}
        for block in self.line.ready:
            for name, (count, total, _, _) in block.sums.items():
                pair = sums.setdefault(name, [0, 0.0])
                pair[0] += count
                pair[1] += total
        found = {
            name.removeprefix(f"{kind}."): round(1000 * total / sums[f"{kind}.step"][0], 6)
            for name, (_, total) in sums.items()
            if name.startswith(f"{kind}.")
        }
        if found:
            found["count"] = sums[f"{kind}.step"][0]
        return found


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_what_stands_between_two_calls_of_the_model_is_told_apart(loop: Loop) -> None:
    for _ in range(8):
        loop.wait(1)
        for _ in range(4):
            loop.forward(2)
            loop.wait(10)
        loop.backward(3)
        loop.optimizer(1)
    found = loop.found()
    # What follows the last call is the loss.
    assert found["forward"] == pytest.approx(48)
    assert found["between"] == pytest.approx(30)
    assert "evaluated" not in found


def test_one_call_of_the_model_has_nothing_between(loop: Loop) -> None:
    for _ in range(8):
        loop.data(4)
        loop.forward(2)
        loop.wait(5)
        loop.backward(3)
        loop.optimizer(1)
    assert "between" not in loop.found()


def test_a_plain_loop_is_split_into_its_phases(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(5):
        loop.data(4)
        loop.wait(0.5)
        loop.forward(2)
        loop.wait(0.25)
        loop.backward(3)
        loop.optimizer(1)
        loop.wait(0.1)
    found = loop.found()
    # The last step ends with its optimizer: nothing tells what came after it.
    assert found.pop("step") == pytest.approx(10.85 - 0.1 / 5)
    assert found.pop("other") == pytest.approx(0.6 - 0.1 / 5)
    assert found == {"data": 4, "forward": 2.25, "backward": 3, "optimizer": 1, "count": 5}


def test_what_precedes_the_loop_is_start_up_and_in_no_step(loop: Loop) -> None:
    loop.wait(5000)
    loop.warm_up()
    assert loop.found("startup") == {"step": 5000, "count": 1}
    assert loop.found("warmup")["step"] == 10


def test_steps_that_grow_slow_and_stay_so_are_no_warm_up(loop: Loop) -> None:
    """The first batches had been fetched ahead; the loop waits for all others."""
    loop.warm_up()
    for _ in range(20):
        loop.data(24)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
    # It takes three to tell that this is the pace.
    assert loop.found("warmup")["count"] == 5
    assert loop.found()["data"] == 24


def test_slow_steps_that_are_not_alike_are_warm_up(loop: Loop) -> None:
    """As where one shape after the other is compiled for, or tuned."""
    loop.warm_up()
    slow = (400, 900, 300, 600, 100)
    for ms in (*slow, *[2] * 20):
        loop.data(4)
        loop.forward(ms)
        loop.backward(3)
        loop.optimizer(1)
    assert loop.found("warmup")["count"] == 3 + len(slow)
    assert loop.found()["step"] == 10


def test_without_a_call_of_the_model_what_follows_the_batch_is_forward(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.wait(6)
        loop.backward(2)
        loop.optimizer(1)
    assert loop.found() == {
        "data": 1, "forward": 6, "backward": 2, "optimizer": 1, "step": 10, "count": 4,
    }  # fmt: skip


def test_several_backward_passes_make_one_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        for _ in range(3):
            loop.data(1)
            loop.forward(1)
            loop.backward(2)
        loop.optimizer(1)
    assert loop.found() == {
        "data": 3, "forward": 3, "backward": 6, "optimizer": 1, "step": 13, "count": 4,
    }  # fmt: skip


def test_two_optimizers_on_one_batch_make_one_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(2)
        for key in (ADAM, SGD):
            loop.forward(1)
            loop.backward(1)
            loop.optimizer(1, key)
    assert loop.found() == {
        "data": 2, "forward": 2, "backward": 2, "optimizer": 2, "step": 8, "count": 4,
    }  # fmt: skip


def test_two_loaders_read_together_make_one_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(2)
        loop.data(3, VALID)
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    assert loop.found()["data"] == 5
    assert loop.found()["count"] == 4


def test_a_loop_without_a_loader_is_cut_where_its_optimizer_ends(loop: Loop) -> None:
    for _ in range(8):
        loop.wait(1)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
    found = loop.found()
    assert found == {
        "other": 1, "forward": 2, "backward": 3, "optimizer": 1, "step": 7, "count": 5,
    }  # fmt: skip


def test_evaluation_is_in_no_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(3):
        for _ in range(5):
            loop.step()
        for _ in range(4):
            loop.data(2, VALID)
            loop.forward(5)
            loop.wait(1)
        loop.data(1, VALID, got=False)
    assert loop.found("eval") == {"data": 2, "forward": 6, "step": 8, "count": 12}
    steady = loop.found()
    assert steady["count"] == 15
    assert steady["step"] == 10


def test_what_stands_between_two_epochs_is_in_no_step(loop: Loop) -> None:
    for _ in range(3):
        loop.line.loader_begins()
        loop.wait(20)
        loop.line.loader_ends(TRAIN)
        for _ in range(5):
            loop.step()
        loop.data(1, got=False)
        loop.wait(100)
    # The last of the three is not over when the program ends.
    assert loop.found("gap") == {"step": pytest.approx(203 / 3), "count": 3}
    assert loop.found("first")["data"] == 24
    assert loop.found("first")["step"] == 30
    assert loop.found()["step"] == 10


def test_the_end_of_a_loader_that_is_read_ahead_is_in_no_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(40, got=False)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
        loop.data(4)
    assert loop.found()["step"] < 10.1
    assert loop.found("gap")["step"] == 40


def test_starting_the_workers_of_a_validation_is_evaluation(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.step()
        loop.line.loader_begins()
        loop.wait(30)
        loop.line.loader_ends(VALID)
        loop.data(1, VALID)
        loop.forward(2)
        loop.data(0, VALID, got=False)
    assert loop.found("eval")["data"] == 31
    assert loop.found()["step"] == 10


def test_a_call_that_is_a_whole_step_is_told_apart_inside(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.line.forward_begins()
        loop.wait(2)
        loop.backward(3)
        loop.wait(1)
        loop.optimizer(1)
        loop.wait(0.5)
        loop.line.forward_ends()
        loop.wait(4)
    found = loop.found()
    assert (found["forward"], found["backward"], found["optimizer"]) == (3.375, 3, 1)
    assert found["other"] == 3  # the last of four is not told: nothing follows it


def test_the_last_evaluated_batch_is_told_when_the_program_ends(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(3):
        loop.data(1, VALID)
        loop.forward(2)
    assert loop.found("eval")["count"] == 3


def test_the_first_step_of_each_epoch_is_apart(loop: Loop) -> None:
    for _ in range(4):
        loop.line.epoch_begins(TRAIN)
        loop.data(50)
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
        for _ in range(9):
            loop.step()
        loop.data(0, got=False)
    assert loop.line.epochs.count == 4
    assert loop.found("first")["data"] == 50
    assert loop.found("first")["count"] == 3
    assert loop.found("warmup")["count"] == 3
    assert loop.found()["data"] == 4


@pytest.mark.parametrize("is_read_to_its_end", [False, True])
def test_steps_are_steady_where_each_has_a_loader_from_its_beginning(
    loop: Loop, is_read_to_its_end: bool
) -> None:
    """As with `next(iter(loader))` for each batch, or where an epoch has but one."""
    for _ in range(10):
        loop.line.loader_begins()
        loop.wait(20)
        loop.line.loader_ends(TRAIN)
        loop.step()
        if is_read_to_its_end:
            loop.data(1, got=False)
    assert loop.line.epochs.count == (10 if is_read_to_its_end else 1)
    found = loop.found()
    assert found.pop("count") == 7
    assert found == pytest.approx(
        {"data": 24, "forward": 2, "backward": 3, "optimizer": 1, "step": 30}
    )
    assert loop.found("first") == {}


def test_an_epoch_of_one_step_among_others_is_as_any(loop: Loop) -> None:
    loop.warm_up()
    for steps in (5, 1, 5, 1, 1, 5):
        loop.line.epoch_begins(TRAIN)
        for _ in range(steps):
            loop.step()
        loop.data(1, got=False)
    assert loop.line.epochs.count == 6
    # Those that come right after one are not apart from it.
    assert loop.found("first")["count"] == 3


@pytest.mark.parametrize("is_in_a_batch", [False, True])
def test_a_loader_that_is_read_whole_without_any_training_is_in_no_step(
    loop: Loop, is_in_a_batch: bool
) -> None:
    """As where a model is evaluated by another method than its call."""
    loop.loader(20, TRAIN)
    for number in range(20):
        loop.data(4)
        if is_in_a_batch and number % 5 == 4:
            loop.read_whole(10)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
        if not is_in_a_batch and number % 5 == 4:
            loop.read_whole(10)
    assert loop.line.epochs.count == 1
    found = loop.found()
    assert found == {
        "data": 4,
        "forward": 2,
        "backward": 3,
        "optimizer": 1,
        "step": 10,
        "count": 17,
    }
    assert loop.found("first") == {}
    assert loop.found("gap")["step"] * loop.found("gap")["count"] == pytest.approx(4 * 91)


def test_a_loader_whose_one_batch_was_asked_for_ahead_is_in_its_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.loader(20, TRAIN)
        loop.data(4)
        loop.data(1, got=False)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
    assert loop.found()["data"] == 24
    assert loop.line.epochs.count == 4


def test_an_evaluation_in_the_middle_of_an_epoch_begins_no_epoch(loop: Loop) -> None:
    loop.warm_up()
    loop.line.epoch_begins(VALID)
    loop.data(1, VALID)
    loop.forward(1)
    for _ in range(4):
        loop.step()
    assert loop.found("first") == {}
    assert loop.line.epochs.count == 0


def test_an_optimizer_inside_the_backward_pass_is_taken_off_it(loop: Loop) -> None:
    """As where a hook uses each gradient as soon as it is there."""
    loop.warm_up()
    for _ in range(4):
        loop.data(4)
        loop.forward(2)
        loop.line.backward_begins()
        for key in (ADAM, SGD):
            loop.wait(3)
            loop.optimizer(1, key)
        loop.wait(0.5)
        loop.line.backward_ends()
    found = loop.found()
    # The last step ends with its optimizer.
    assert found.pop("backward") == pytest.approx(6.5 - 0.5 / 4)
    assert found.pop("step") == pytest.approx(14.5 - 0.5 / 4)
    assert found == {"data": 4, "forward": 2, "optimizer": 2, "count": 4}


def test_a_closure_inside_the_optimizer_is_forward_and_backward(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.line.optimizer_begins(ADAM)
        loop.wait(0.5)
        loop.forward(2)
        loop.backward(3)
        loop.wait(0.5)
        loop.line.optimizer_ends(ADAM)
    assert loop.found() == {
        "data": 1, "forward": 2, "backward": 3, "optimizer": 1, "step": 7, "count": 4,
    }  # fmt: skip


def test_optimizers_inside_an_engine_are_one_step(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.forward(1)
        loop.backward(1)
        loop.line.optimizer_begins(SGD)
        for _ in range(3):
            loop.optimizer(1)
        loop.line.optimizer_ends(SGD)
    assert loop.found()["optimizer"] == 3
    assert loop.found()["count"] == 4


def test_an_optimizer_that_raised_does_not_stop_the_counting(loop: Loop) -> None:
    loop.warm_up()
    loop.data(1)
    loop.line.optimizer_begins(ADAM)
    for _ in range(3):
        loop.step()
    assert loop.line.steps == 5  # three of warm-up, two closed, one open


def test_communication_inside_the_backward_pass_is_taken_off_it(loop: Loop) -> None:
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.forward(1)
        loop.line.backward_begins()
        loop.wait(2)
        before = loop.line.switch(COMM)
        loop.wait(5)
        loop.line.switch(before)
        loop.line.backward_ends()
        loop.optimizer(1)
    assert loop.found()["backward"] == 2
    assert loop.found()["comm"] == 5


def test_warm_up_goes_on_while_steps_are_slow(loop: Loop) -> None:
    for ms in (900, 30, 10, 40, 25, 11, 10, 30, 10):
        loop.data(ms)
        loop.backward(0)
        loop.optimizer(0)
    assert loop.found("warmup")["count"] == 5
    assert loop.found()["count"] == 4


def test_a_graph_that_is_replayed_once_a_batch_is_the_step(loop: Loop) -> None:
    for _ in range(8):
        loop.data(1)
        before = loop.line.switch(H2D)
        loop.wait(1)
        loop.line.switch(before)
        loop.line.graph_begins(7)
        loop.wait(5)
        loop.line.graph_ends(7)
    assert loop.found() == {"data": 1, "h2d": 1, "graph": 5, "step": 7, "count": 5}


def test_a_forked_child_begins_with_empty_books(loop: Loop) -> None:
    loop.warm_up()
    loop.line.reset(owner=2)
    assert loop.line.steps == 0
    assert loop.line.current == OTHER
    assert loop.found() == {}


EVENTS: dict[str, Callable[[Loop], None]] = {
    "data": lambda loop: loop.data(1),
    "data of another loader": lambda loop: loop.data(1, VALID),
    "no more data": lambda loop: loop.data(1, got=False),
    "epoch": lambda loop: loop.line.epoch_begins(TRAIN),
    "forward": lambda loop: loop.forward(1),
    "backward": lambda loop: loop.backward(1),
    "optimizer": lambda loop: loop.optimizer(1),
    "another optimizer": lambda loop: loop.optimizer(1, SGD),
    "loader": lambda loop: loop.loader(),
    "a whole loader": lambda loop: loop.read_whole(3),
    "optimizer begins": lambda loop: loop.line.optimizer_begins(ADAM),
    "optimizer ends": lambda loop: loop.line.optimizer_ends(ADAM),
    "backward begins": lambda loop: loop.line.backward_begins(),
    "graph begins": lambda loop: loop.line.graph_begins(7),
    "graph ends": lambda loop: loop.line.graph_ends(7),
    "wait": lambda loop: loop.wait(1),
    "evaluated": lambda loop: loop.forward(1, is_evaluated=True),
}


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=60))
def test_no_order_of_events_loses_or_invents_time(names: list[str]) -> None:
    loop = Loop()
    began = loop.clock.now
    for name in names:
        EVENTS[name](loop)
    line = loop.line
    line.switch(OTHER)
    told = sum(
        sums[1]
        for block in [*line.ready, line.block]
        for name, sums in block.sums.items()
        if name.endswith(".step")
    )
    assert told + line._gap_s + sum(line.totals) == pytest.approx(loop.clock.now - began, abs=1e-6)
    for block in [*line.ready, line.block]:
        for kind in ("warmup", "first", "steady", "eval"):
            if f"{kind}.step" in block.sums:
                parts = sum(
                    block.sums[f"{kind}.{phase}"][1]
                    for phase in NAMES
                    if f"{kind}.{phase}" in block.sums
                )
                assert parts == pytest.approx(block.sums[f"{kind}.step"][1], abs=1e-6)


# -- the end ---------------------------------------------------------------------------------


def test_what_comes_after_the_last_step_has_a_row_of_its_own() -> None:
    loop = Loop()
    for _ in range(30):
        loop.data(1)
        loop.step()
    ended = loop.clock.now
    loop.wait(60_000)
    loop.line.flush()
    *training, last = loop.line.ready
    assert last.start == pytest.approx(ended)
    assert last.end == pytest.approx(ended + 60)
    assert list(last.sums) == ["end.step"]
    assert training[-1].end == pytest.approx(ended)


def test_so_it_has_when_the_loader_had_no_more() -> None:
    loop = Loop()
    for _ in range(30):
        loop.data(1)
        loop.step()
    loop.data(1, got=False)
    ended = loop.clock.now
    loop.wait(60_000)
    loop.line.flush()
    *_, training, last = loop.line.ready
    assert [training.end, last.end] == pytest.approx([ended, ended + 60])
    assert "gap.step" in training.sums


def test_a_batch_that_never_came_is_no_end() -> None:
    loop = Loop()
    for _ in range(30):
        loop.data(1)
        loop.step()
    loop.line.data_begins(TRAIN)
    loop.wait(300_000)
    loop.line.flush()
    assert all("end.step" not in block.sums for block in loop.line.ready)


def test_batches_that_are_left_over_and_validation_are_no_end() -> None:
    loop = Loop()
    for number in range(43):
        loop.data(10)
        loop.forward(300)
        loop.backward(290)
        if number % 4 == 3:
            loop.optimizer(1)
    loop.data(1, got=False)
    for _ in range(40):
        loop.data(5, VALID)
        loop.forward(50)
    loop.data(1, VALID, got=False)
    loop.wait(50)
    loop.line.flush()
    assert all(block.start <= block.end for block in loop.line.ready)
    assert all("end.step" not in block.sums for block in loop.line.ready)


def test_a_short_end_and_a_program_without_steps_have_none() -> None:
    loop = Loop()
    loop.wait(60_000)
    loop.line.flush()
    assert loop.line.ready == []
    loop = Loop()
    loop.data(1)
    loop.step()
    loop.wait(500)
    loop.line.flush()
    assert all("end.step" not in block.sums for block in loop.line.ready)


# -- evaluation without a loader -------------------------------------------------------------


def train_without_loader(loop: Loop, steps: int) -> None:
    for _ in range(steps):
        loop.wait(4)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)


def test_what_is_evaluated_between_two_steps_without_a_loader_is_in_neither(loop: Loop) -> None:
    train_without_loader(loop, 8)
    for _ in range(2):
        loop.wait(1)
        for _ in range(5):
            loop.forward(30, is_evaluated=True)
            loop.wait(10)
        loop.wait(1000)  # saves
        train_without_loader(loop, 8)
    steady, evaluated = loop.found(), loop.found("eval")
    assert steady.pop("other") == pytest.approx((19 * 4 + 2 * 1) / 21)
    assert steady.pop("step") == pytest.approx((19 * 10 + 2 * 7) / 21)
    assert steady == {"forward": 2, "backward": 3, "optimizer": 1, "count": 21}
    # The last answer ends the last batch; who knows what follows.
    assert evaluated == {"step": 38, "forward": 30, "other": 8, "count": 10}
    assert loop.found("gap")["step"] == 1014


def test_what_is_evaluated_at_the_end_without_a_loader_is_in_no_step(loop: Loop) -> None:
    train_without_loader(loop, 8)
    for _ in range(3):
        loop.forward(30, is_evaluated=True)
    assert loop.found("eval")["count"] == 3
    assert loop.found()["step"] == 10


def test_samples_that_are_drawn_before_the_next_batch_of_a_loader_are_in_no_step(
    loop: Loop,
) -> None:
    loop.warm_up()
    for _ in range(3):
        loop.step()
        loop.step()
        loop.wait(1)
        for _ in range(5):
            loop.forward(30, is_evaluated=True)
        loop.wait(1000)
    evaluated, steady = loop.found("eval"), loop.found()
    assert (evaluated["count"], evaluated["step"]) == (15, 30)
    assert (steady["count"], steady["forward"]) == (6, 2)
    assert steady["step"] == pytest.approx(10 + 2 / 6)


@pytest.mark.parametrize("has_loader", [True, False])
def test_what_is_evaluated_in_each_step_is_part_of_it(loop: Loop, has_loader: bool) -> None:
    """A player that asks its model what to do, or what a model thought before its step."""
    for _ in range(10):
        loop.data(1) if has_loader else loop.wait(1)
        loop.forward(2)
        loop.backward(3)
        loop.optimizer(1)
        loop.forward(5, is_evaluated=True)
    found = loop.found()
    assert found["forward"] == pytest.approx(7, rel=0.2)
    assert found["evaluated"] == pytest.approx(5, rel=0.2)
    assert loop.found("eval")["count"] == 1


def test_a_teacher_that_is_asked_in_a_step_is_part_of_it(loop: Loop) -> None:
    """In evaluation mode and without gradients too, but with the batch in hand, or within the step."""
    loop.warm_up()
    for _ in range(4):
        loop.data(1)
        loop.forward(5, is_evaluated=True)
        loop.forward(2)
        loop.forward(5, is_evaluated=True)
        loop.backward(3)
        loop.optimizer(1)
    found = loop.found()
    assert (found["forward"], found["evaluated"]) == (12, 10)
    assert loop.found("eval") == {}


def test_what_is_saved_before_samples_are_drawn_is_no_part_of_them(loop: Loop) -> None:
    for _ in range(2):
        loop.line.epoch_begins(TRAIN)
        for _ in range(6):
            loop.step()
        loop.data(0, got=False)
        loop.wait(1000)
        for _ in range(3):
            loop.forward(10, is_evaluated=True)
    assert loop.found("eval") == pytest.approx({"step": 30, "forward": 30, "count": 2})
    gaps = [block.sums["gap.step"][1] for block in loop.line.ready if "gap.step" in block.sums]
    assert sum(gaps) == pytest.approx(2)


def test_the_only_batch_that_is_evaluated_may_be_asked_for_ahead(loop: Loop) -> None:
    loop.line.epoch_begins(TRAIN)
    for _ in range(6):
        loop.step()
    loop.data(0, got=False)
    loop.data(4, VALID)
    loop.data(0, VALID, got=False)
    loop.forward(10, is_evaluated=True)
    assert loop.found("eval") == pytest.approx({"step": 14, "data": 4, "forward": 10, "count": 1})
