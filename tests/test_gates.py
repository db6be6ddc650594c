"""Gates before our wrappers: what they do is what the wrappers do, for less."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import traceback
import weakref
from _thread import get_ident
from collections import OrderedDict
from typing import Any

import pytest

from compiled import compiled
from stoker.watch.inside.gates import Gates
from stoker.watch.inside.hooks import NOBODY, around_steps, asking, dressed, spanning
from stoker.watch.inside.passing import SEEN_FORWARD
from stoker.watch.inside.phases import FORWARD, LOSS, OTHER, PREPARE
from stoker.watch.inside.timeline import Timeline

NEVER = float("inf")


def add(one: int, two: int = 2, *more: int, **named: int) -> int:
    """Add numbers."""
    return one + two + sum(more) + sum(named.values())


class Place:
    """Where wrappers are put, and what counts how often each was called."""

    def __init__(self) -> None:
        self.line = Timeline(get_ident())
        self.gates = Gates(self.line, compiled("_gate"))
        self.gates.open()
        self.wrapped = 0
        self.owner: Any = type("Owner", (), {})

    def put(self, original: Any, name: str = "call", way: str = "backward") -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.wrapped += 1
            return original(*args, **kwargs)

        self.gates.put(self.owner, name, dressed(wrapper, original), way)
        return vars(self.owner)[name]

    def put_model(self, kind: Any, original: Any) -> None:
        self.gates.put(
            kind, "__call__", spanning(self.line, original, FORWARD), "forward", original
        )

    def let_pass(self, giver: object = None, optimizers: tuple[object, ...] = ()) -> Any:
        order = [id(each) for each in optimizers]
        self.line.passing = self.line.passing_type(id(giver), order, 0.0, 100, NEVER)
        return self.line.passing


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.parametrize("way", ["backward", "forward"])
def test_a_gate_calls_the_wrapper_or_what_it_wraps_while_steps_pass_by(
    place: Place, way: str
) -> None:
    gate = place.put(add, way=way)
    assert (gate(1), gate(1, 3, 4, five=5), place.wrapped) == (3, 13, 2)
    place.let_pass()
    assert (gate(1), gate(1, 3, 4, five=5), place.wrapped) == (3, 13, 2)
    place.line.flush()
    assert (gate(1), place.wrapped) == (3, 3)


@pytest.mark.parametrize("way", ["backward", "forward"])
@pytest.mark.parametrize("is_passing", [True, False])
def test_errors_come_through_without_a_frame_of_ours(
    place: Place, way: str, is_passing: bool
) -> None:
    gate = place.put(lambda: 1 // 0, way=way)
    if is_passing:
        place.let_pass()
    with pytest.raises(ZeroDivisionError) as caught:
        gate()
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == (["<lambda>"] if is_passing else ["wrapper", "<lambda>"])


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_gate_is_a_method_as_a_function_is_one(place: Place, is_passing: bool) -> None:
    place.put(lambda self, x: (self, x))
    one = place.owner()
    if is_passing:
        place.let_pass()
    assert one.call(1) == (one, 1)
    bound = one.call
    assert bound(x=2) == (one, 2)
    assert place.owner.call(one, 3) == (one, 3)
    assert inspect.ismethod(bound)


def test_phases_of_a_model_are_told_by_its_thread_alone(place: Place) -> None:
    phases = []

    class Model:
        pass

    place.put_model(Model, lambda self: phases.append(place.line.current))
    model: Any = Model()
    passing = place.let_pass()
    elsewhere = threading.Thread(target=model)
    elsewhere.start()
    elsewhere.join()
    assert (phases, passing.seen, place.line.current) == ([OTHER], 0, OTHER)
    model()
    assert (phases[1:], passing.seen, place.line.current) == ([FORWARD], SEEN_FORWARD, LOSS)


def test_a_class_stands_for_its_call_of_the_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Home:
        def __call__(self) -> str:
            return "its own"

    class Model(Home):
        pass

    place.put_model(Model, Home)
    place.let_pass()
    assert Model()() == "its own"
    monkeypatch.setattr(Home, "__call__", lambda self: "another's")
    assert Model()() == "another's"


def test_a_gate_looks_like_what_it_stands_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = place.put(add)
    assert (gate.__name__, gate.__doc__, gate.__module__) == ("add", "Add numbers.", __name__)
    assert gate.__wrapped__ is add
    assert inspect.signature(gate) == inspect.signature(add)
    assert weakref.ref(gate)() is gate
    monkeypatch.setattr(sys.modules[__name__], "add", gate)
    assert pickle.loads(pickle.dumps(gate)) is gate
    assert copy.deepcopy(gate) is gate


@pytest.mark.parametrize("way", ["backward", "forward"])
@pytest.mark.parametrize("is_passing", [True, False])
def test_calls_leave_no_references_behind(place: Place, way: str, is_passing: bool) -> None:
    word = object()
    gate = place.put(lambda *args, **kwargs: None, way=way)
    passing = place.let_pass() if is_passing else None
    before = [sys.getrefcount(each) for each in (word, gate, place.line, passing)]
    for _ in range(1000):
        gate(word, key=word)
    after = [sys.getrefcount(each) for each in (word, gate, place.line, passing)]
    assert after[:3] == before[:3]
    assert not is_passing or after == before


def test_gates_and_what_they_noted_are_let_go() -> None:
    place = Place()
    alive = weakref.ref(place.put(add))
    line = weakref.ref(place.line)
    place.let_pass()
    del place
    gc.collect()
    assert (alive(), line()) == (None, None)


class Loader:
    def __init__(self, *batches: object) -> None:
        self.batches = list(batches)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Any:
        if not self.batches:
            raise StopIteration
        return self.batches.pop(0)


def put_asking(place: Place, asked: list[object]) -> type[Loader]:
    class Watched(Loader):
        pass

    def at_length(self: Any) -> Any:
        asked.append(self)
        return Loader.__next__(self)

    wrapper = asking(place.line, Loader.__next__, dressed(at_length, Loader.__next__))
    place.gates.put(Watched, "__next__", wrapper, "asking")
    return Watched


def test_only_the_loader_that_gave_the_batches_is_passed_by(place: Place) -> None:
    asked: list[object] = []
    kind = put_asking(place, asked)
    ours, other = kind(1, 2, 3), kind(1)
    passing = place.let_pass(giver=ours)
    assert (next(ours), next(ours), next(other), asked) == (1, 2, 1, [other])
    assert place.line.current == PREPARE
    assert len(passing.ends) == 2
    assert 0 < passing.ends[0] <= passing.ends[1] <= place.line.clock()


def test_a_loader_that_has_no_more_ends_the_passing(place: Place) -> None:
    kind = put_asking(place, [])
    ours = kind(1)
    place.let_pass(giver=ours)
    assert list(ours) == [1]
    assert place.line.passing is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_while_we_note_something_is_the_programs_and_an_error_is_ours(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise error

    ours = put_asking(place, [])()
    gate = place.put(place.line.flush, way="forward")
    for name in ("batch_fails", "forward_ends"):
        monkeypatch.setattr(place.line, name, fail)
    place.let_pass(giver=ours)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else StopIteration):
        next(ours)
    place.let_pass()
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            gate()
    else:
        assert gate() is None


def test_a_class_that_is_taken_to_pieces_goes_without_us(place: Place) -> None:
    class Home:
        def __call__(self) -> None:
            pass

    class Model(Home):
        pass

    own = place.put(add, way="forward")
    place.put_model(Model, Home)
    for gate, original in ((vars(Model)["__call__"], Home.__call__), (own, add)):
        make, args = gate.__reduce__()
        assert make(*args) is original
        assert copy.copy(gate) is copy.deepcopy(gate) is gate


def test_a_place_that_cannot_be_changed_is_left(place: Place) -> None:
    class Frozen(type):
        def __setattr__(cls, name: str, value: object) -> None:
            if name in vars(cls):
                raise TypeError("not again")
            super().__setattr__(name, value)

    place.owner = Frozen("Owner", (), {})
    assert place.put(add)(1) == 3
    place.gates.close()


class Handle:
    """As PyTorch gives one for each hook."""

    def __init__(self, hooks: OrderedDict[int, Any], hook: Any) -> None:
        self.id = len(hooks)
        hooks[self.id] = hook
        self.hooks_dict_ref = lambda: hooks


def test_optimizers_that_step_in_their_turn_are_passed_by(place: Place) -> None:
    told: list[object] = []
    hooks: OrderedDict[int, Any] = OrderedDict()
    for way in ("before", "after"):
        place.gates.register(
            lambda hook: Handle(hooks, hook), lambda o, *_, way=way: told.append((way, o)), way
        )
    adam, sgd = Loader(), Loader()
    passing = place.let_pass(optimizers=(adam, sgd))
    for each in (adam, sgd):
        for hook in hooks.values():
            assert hook(each, (), {}) is None
    assert (told, passing.stepped()) == ([], [id(adam), id(sgd)])
    assert passing.stepped_at > 0
    hooks[0](adam, (), {})
    hooks[1](adam, (), {})
    assert told == [("before", adam), ("after", adam)]


def test_a_clock_that_fails_is_left_to_the_wrapper(place: Place) -> None:
    asked: list[object] = []
    ours = put_asking(place, asked)(1)
    passing = place.let_pass(giver=ours)

    def clock() -> float:
        raise RuntimeError("no time")

    place.line.clock = clock
    assert (next(ours), asked) == (1, [])  # the wrapper has the clock that it was made with
    assert len(passing.ends) == 1


def test_when_something_is_compiled_only_wrappers_are_left(place: Place) -> None:
    hooks: OrderedDict[int, Any] = OrderedDict()
    before, _ = around_steps(place.line, NOBODY, lambda optimizer: None)
    gate, kind = place.put(add), put_asking(place, [])
    mine = place.put(add, name="replaced by the program")
    setattr(place.owner, "replaced by the program", add)
    place.gates.register(lambda hook: Handle(hooks, hook), before, "before")
    assert place.gates.behind(gate) is not gate
    assert not inspect.isfunction(gate)
    place.gates.close()
    assert inspect.isfunction(vars(place.owner)["call"])
    assert vars(place.owner)["replaced by the program"] is add is not mine
    assert inspect.isfunction(vars(kind)["__next__"])
    assert hooks[0] is before
    place.put(add, name="later")
    assert inspect.isfunction(vars(place.owner)["later"])


def test_a_step_that_passes_while_gates_are_closed_is_noted_to_its_end(place: Place) -> None:
    ours = put_asking(place, [])(1, 2, 3)
    passing = place.let_pass(giver=ours)
    next(ours)
    place.gates.close()
    next(ours)
    assert len(passing.ends) == 2
