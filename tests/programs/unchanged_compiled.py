"""Compiles models, steps and optimizers, and prints what the compiler counted.

With `device`, for more steps, and if it is watched then as on a device: most steps are not measured.
"""

import json
import sys
import time

import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
told = {}
EPOCHS = 12 if "device" in sys.argv else 2


class Event:
    """A mark on the time line of a device that is none."""

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.1


class Device:
    """A device on which marks are so dear that few steps can be measured."""

    make_event = Event

    def follow(self):
        pass

    def record(self, event):
        end = time.perf_counter() + 5e-5
        while time.perf_counter() < end:
            pass

    def is_capturing(self):
        return False


def work_on_a_device():
    if "_stoker_inside.process" in sys.modules:
        from _stoker_inside.marks import Marks
        from _stoker_inside.process import current

        watched = current()
        watched.timeline.marks = Marks(watched.timeline, Device(), watched.give_up_on)
        watched.timeline.marks.is_on = True


def check_marks():
    """The stand-in was taken for a device to the end; otherwise this has tried nothing."""
    if "_stoker_inside.process" in sys.modules:
        from _stoker_inside.process import current

        assert not current().timeline.marks.is_broken, current().notes


def check_gates(are_there):
    """Where gates were compiled they are there until the first compiler comes, and not after."""
    gates = sys.modules.get("_stoker_inside.gates")
    if gates is not None and gates.NATIVE is not None:
        for kind in (Net, Broken):
            assert (type(vars(kind)["__call__"]).__name__ == "Gate") == are_there, kind
        # What lies within a model may be evaluated alone, and is no longer watched when compiled.
        assert ("__call__" in vars(Within)) == are_there


def train_uncompiled():
    """Models of all classes, for long enough that most steps pass by."""
    for kind in (Net, Broken, Outer):
        model = kind()
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    check_gates(are_there=True)


def counted(name, train):
    """Run one way to train, and keep the compiler's own counts of it."""
    torch._dynamo.reset()
    counters.clear()
    backend = CompileCounter()
    torch.manual_seed(0)
    losses = train(backend)
    told[name] = {
        "losses": losses,
        "frames": backend.frame_count,
        "ops": backend.op_count,
        "stats": dict(counters["stats"]),
        # How often, not why: the words name the function that was called.
        "breaks": sum(counters["graph_break"].values()),
        "recompiles": dict(counters["recompiles"]),
    }


class Net(nn.Module):
    """Layers of its own class inside, and a second shape at the end of the epoch."""

    def __init__(self, depth=1):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.inner = Net(depth - 1) if depth else None

    def forward(self, x):
        x = torch.relu(self.layer(x))
        return x if self.inner is None else self.inner(x)


class Broken(Net):
    """A model with a graph break."""

    def forward(self, x):
        x = super().forward(x)
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break()
        return x + 1


class Within(nn.Module):
    """All that the model around it has."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Outer(nn.Module):
    """A model with all it has in another."""

    def __init__(self):
        super().__init__()
        self.within = Within()

    def forward(self, x):
        return self.within(x) * 2


def batches():
    data = TensorDataset(torch.rand(38, 8), torch.rand(38, 8))
    for _ in range(EPOCHS):
        yield from DataLoader(data, batch_size=4)


def loop(model, optimizer, forward=None, step=None):
    losses = []
    for x, y in batches():
        loss = nn.functional.mse_loss((forward or model)(x), y)
        optimizer.zero_grad()
        loss.backward()
        (step or optimizer.step)()
        losses.append(loss.item().hex())
    return losses


def of_model(backend, kind=Net):
    model = kind()
    compiled = torch.compile(model, backend=backend)
    return loop(compiled, torch.optim.SGD(model.parameters(), lr=0.1))


def in_place(backend):
    model = Net()
    model.compile(backend=backend)
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def of_function(backend):
    model = Net()

    @torch.compile(backend=backend)
    def forward(x):
        return model(x) * 2

    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1), forward)


def of_part(backend):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model[0] = torch.compile(model[0], backend=backend)
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def of_step(backend):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def step():
        optimizer.step()

    return loop(model, optimizer, step=step)


def of_everything(backend):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def train_step(x, y):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return [train_step(x, y).item().hex() for x, y in batches()]


def of_grad(backend):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def penalty(x):
        x = x.detach().requires_grad_()
        y = model(x).sum()
        return torch.autograd.grad(y, x)[0].square().sum()

    losses = loop(model, optimizer)
    return losses + [penalty(x).item().hex() for x, _ in batches()]


def after_training(backend, kind=Net):
    """The model's class is known by now; compiling comes later."""
    model = kind()
    losses = loop(model, torch.optim.SGD(model.parameters(), lr=0.1))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    return losses + loop(compiled, torch.optim.SGD(model.parameters(), lr=0.1))


if "device" in sys.argv:
    work_on_a_device()
    train_uncompiled()
for name, train in {
    # First, as what lies within is left alone once anything was compiled.
    "a model with another in it, after training": lambda backend: after_training(backend, Outer),
    "a model": of_model,
    "a model with a graph break": lambda backend: of_model(backend, Broken),
    "a model in place": in_place,
    "a function that calls the model": of_function,
    "a part of the model": of_part,
    "the optimizer's step": of_step,
    "the whole step": of_everything,
    "a gradient inside": of_grad,
    "a model after training": after_training,
}.items():
    counted(name, train)
if "device" in sys.argv:
    check_gates(are_there=False)
    check_marks()
print(json.dumps(told))
