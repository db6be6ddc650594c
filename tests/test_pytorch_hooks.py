"""PyTorch's hooks, on classes that stand in for its loader."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.watch.inside.hooks import spanning
from stoker.watch.inside.marks import MIN_MEASURED
from stoker.watch.inside.models import name_of
from stoker.watch.inside.phases import FORWARD, OPEN, PREPARE
from stoker.watch.inside.process import Watched
from stoker.watch.inside.pytorch import Cuda, PyTorch
from test_marks import Loop
from test_timeline import VALID


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    monkeypatch.setenv("STOKER_SCRIBE", str(tmp_path / "nobody"))
    return Watched()


def watch_loader(watched: Watched) -> Any:
    """Return a loader's class that is watched."""

    class Batches:
        def __next__(self) -> str:
            return "batch"

    class Loader:
        def __init__(self, is_broken: bool = False) -> None:
            self.is_broken = is_broken

        def __iter__(self) -> Any:
            if self.is_broken:
                raise ValueError("this one cannot begin")
            return Batches()

    module = SimpleNamespace(_BaseDataLoaderIter=Batches, DataLoader=Loader)
    PyTorch(watched, SimpleNamespace(Tensor=str))._watch_loader(module)
    return Loader


def test_a_loader_that_cannot_begin_leaves_the_next_one_to_be_seen(watched: Watched) -> None:
    loader = watch_loader(watched)
    with pytest.raises(ValueError, match="cannot begin"):
        iter(loader(is_broken=True))
    assert watched.timeline.current in OPEN
    next(iter(loader()))
    assert watched.timeline.current == PREPARE


def test_batches_of_steps_that_pass_by_are_seen_to_come(watched: Watched) -> None:
    loop = Loop()
    watched.timeline = loop.line
    loop.device.cost_ms = 0.05
    batches = iter(watch_loader(watched)())
    for _ in range(3 * MIN_MEASURED):
        assert next(batches) == "batch"
        assert loop.line.current == PREPARE
        loop.forward()
        loop.backward()
        loop.optimizer()
        loop.wait_for_device()
    assert loop.line.passing is not None
    loop.line.flush()
    assert loop.line.steps == 3 * MIN_MEASURED


def test_a_loader_knows_of_the_steps_that_were_trained_on_it(watched: Watched) -> None:
    loop = Loop()
    watched.timeline = loop.line
    kind = watch_loader(watched)
    training, held_out = kind(), kind()
    for loader, size in ((training, 8), (held_out, 100)):
        loader.batch_size, loader.dataset, loader.batch_sampler = size, [], None
    batches, checks = iter(training), iter(held_out)
    for number in range(6):
        next(batches)
        loop.forward()
        loop.backward()
        loop.optimizer()
        if number == 3:
            for _ in range(9):
                next(checks)
                loop.forward()
    loop.line.flush()
    loaders = watched.facts["loaders"].values()
    assert {each["batch_size"]: each["trained"] for each in loaders} == {8: 6, 100: 0}


def test_an_iterator_that_gives_no_batch_is_no_pass_over_a_loader(watched: Watched) -> None:
    loader = watch_loader(watched)()
    loader.batch_size, loader.dataset, loader.batch_sampler = 8, [], None
    for _ in range(3):
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        iter(loader)
    assert [each["epochs"] for each in watched.facts["loaders"].values()] == [3]


def watch_scaler(watched: Watched) -> Any:
    """Return a scaler's class that is watched."""

    class Scaler:
        def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return optimizer, args, kwargs

    PyTorch(watched, SimpleNamespace(Tensor=str))._watch_scaler(SimpleNamespace(GradScaler=Scaler))
    return Scaler


def test_a_scaler_may_be_given_its_optimizer_by_name(watched: Watched) -> None:
    scaler, adam = watch_scaler(watched)(), object()
    for _ in range(2):
        assert scaler.step(optimizer=adam, closure=None) == (adam, (), {"closure": None})
    assert scaler.step(adam, 1, more=2) == (adam, (1,), {"more": 2})
    watched.timeline.flush()
    assert watched.timeline.steps == 3


def test_a_scaler_that_is_called_wrongly_says_what_it_says_without_us(watched: Watched) -> None:
    kind = watch_scaler(watched)
    with pytest.raises(TypeError) as caught:
        kind().step()
    with pytest.raises(TypeError) as without_us:
        kind.step.__wrapped__(kind())
    assert str(caught.value) == str(without_us.value)


def test_a_model_whose_answer_is_a_gradient_is_evaluated_as_any(watched: Watched) -> None:
    """As one of forces, which are gradients of an energy."""
    loop = Loop()
    loop.marks.is_on = False
    watched.timeline = loop.line
    autograd = SimpleNamespace(backward=loop.launch, grad=loop.launch)
    PyTorch(watched, SimpleNamespace(Tensor=str))._watch_backward(autograd)

    def force(energy_ms: float) -> None:
        loop.clock.move(energy_ms)
        autograd.grad(0)

    model = spanning(loop.line, force, FORWARD)
    for _ in range(10):
        loop.data(4)
        model(2)
        loop.clock.move(1)  # the loss
        autograd.backward(0)
        loop.optimizer()
        for _ in range(2):
            loop.data(1, VALID)
            model(2)
    loop.line.flush()
    assert loop.line.steps == 10
    found = loop.found()
    assert found["forward"] == pytest.approx(3.1)
    assert found["backward"] == pytest.approx(0.1)
    assert loop.found("eval") == pytest.approx({"data": 1, "forward": 2.1})


def test_events_are_for_the_stream_that_is_followed() -> None:
    streams = {1: object(), 2: object()}
    current = [1]
    recorded: list[object] = []
    native = SimpleNamespace(_cuda_getCurrentStream=lambda device: current[0], _cuda_getDevice=int)
    cuda = SimpleNamespace(
        current_stream=lambda: streams[current[0]], is_current_stream_capturing=bool
    )
    device = Cuda(SimpleNamespace(cuda=cuda, _C=native))
    event = SimpleNamespace(record=recorded.append)
    device.record(event)
    current[0] = 2
    device.record(event)
    device.follow()
    current[0] = 1
    device.record(event)
    assert recorded == [streams[1], streams[1], streams[2]]


def test_lightning_ends_an_epoch_without_asking_for_a_batch_that_is_not_there(
    watched: Watched,
) -> None:
    loop = Loop()
    loop.marks.is_on = False
    watched.timeline = loop.line

    class FitLoop:
        def on_advance_end(self) -> None:
            loop.clock.move(300)  # saving, and what the user does

    models = PyTorch(watched, SimpleNamespace(Tensor=str)).models
    models.watch_lightning_epochs(SimpleNamespace(_FitLoop=FitLoop))
    for _ in range(2):
        for _ in range(10):
            loop.data(4)
            loop.forward()
            loop.backward()
            loop.optimizer()
        FitLoop().on_advance_end()
    loop.line.flush()
    assert loop.line.steps == 20
    assert sum(loop.found().values()) == pytest.approx(4.3)
    told = [each.sums["gap.step"] for each in loop.line.ready if "gap.step" in each.sums]
    assert [gap[1] for gap in told] == [pytest.approx(0.3)]


def test_a_model_in_a_wrapper_of_fabric_is_told_by_its_own_name() -> None:
    def module(home: str, name: str, **held: object) -> Any:
        return type(name, (), {"__module__": home, "named_children": lambda _: held.items()})()

    net = module("train", "Net")
    ranks = module("torch.nn.parallel.distributed", "DistributedDataParallel", module=net)
    wrapper = module(
        "lightning.fabric.wrappers", "_FabricModule", _forward_module=ranks, _original_module=net
    )
    assert name_of(wrapper) == "Net"
