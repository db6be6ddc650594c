"""What a program sees of itself in the middle of a training: errors, warnings, callers, graphs."""

import gc
import inspect
import json
import sys
import threading
import traceback
import warnings
import weakref

import torch
import torch.distributed as dist
import torch.fx
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

told = {}
# What the parts below are to do in their next call.
wanted = set()


def ask(what):
    return what in wanted


class Batch:
    """A batch with a `to` of its own."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        if ask("error in the batch's to"):
            raise ValueError("in to")
        return Batch(self.x.to(device))


class Rows(Dataset):
    """Rows that fail or warn on demand."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if ask("error in the dataset") or ask("error in a worker"):
            raise ValueError("in a row")
        if ask("place of a warning in the dataset"):
            for level in (1, 2, 3, 4, 5, 6):
                warnings.warn(f"row {level}", stacklevel=level)
        return torch.ones(4)


class Stream(IterableDataset):
    """Says that it has fewer rows than it has."""

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(torch.ones(3, 2, 4))

    def __repr__(self):
        return "a stream"


class Net(nn.Module):
    """A model with a model of its own class inside."""

    def __init__(self, depth=1):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = Net(depth - 1) if depth else None

    def forward(self, x):
        is_inner = self.inner is None
        if ask("error in an inner module of the same class") and is_inner:
            raise ValueError("inside")
        if ask("error in forward") and not is_inner:
            raise ValueError("in forward")
        if ask("error in grad inside forward"):
            torch.autograd.grad(x.sum(), x)
        if ask("place of a warning in forward") and not is_inner:
            for level in range(1, 6):
                warnings.warn(f"forward {level}", stacklevel=level)
        x = torch.relu(self.layer(x))
        return x if self.inner is None else self.inner(x)


class Fails(torch.autograd.Function):
    """An error on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")


def collate(rows):
    if ask("error in collate"):
        raise ValueError("in collate")
    return Batch(torch.stack(rows))


def order():
    yield 0
    if ask("error in the sampler"):
        raise ValueError("in the sampler")
    yield from range(1, 8)


class Order:
    """A sampler."""

    def __iter__(self):
        return order()

    def __len__(self):
        return 8


def closure():
    if ask("error in the closure"):
        raise ValueError("in the closure")
    return torch.tensor(0.0)


def before_step(*_):
    if ask("error in a hook of the optimizer"):
        raise ValueError("in a hook")


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_pre_hook(before_step)
loader = DataLoader(Rows(), batch_size=2, sampler=Order(), collate_fn=collate)


def epoch(loader=loader):
    for batch in loader:
        x = batch.to("cpu").x
        y = model(x)
        if ask("error in backward"):
            y = Fails.apply(y)
        if ask("error of backward"):
            y = y.detach()
        if ask("error in zero_grad"):
            optimizer.param_groups[0]["params"] = [1]
        optimizer.zero_grad()
        y.sum().backward()
        optimizer.step(closure if ask("error in the closure") else None)


def failing(topic, action=epoch):
    """Keep the traceback of what the action raises."""
    wanted.add(topic)
    groups = [dict(each) for each in optimizer.param_groups]
    try:
        action()
        told[topic] = "no error"
    except BaseException:
        told[topic] = traceback.format_exc()
    optimizer.param_groups[:] = groups
    wanted.discard(topic)


def read_twice():
    stream = DataLoader(Stream(), batch_size=None)
    for _ in range(2):
        for x in stream:
            model(x).sum().backward()
            optimizer.step()


def in_thread(action):
    def run():
        error = []

        def caught():
            try:
                action()
            except BaseException as raised:
                error.append(raised)

        thread = threading.Thread(target=caught)
        thread.start()
        thread.join()
        raise error[0]

    return run


def names_of_threads():
    """A loader's own threads end a moment after its workers do: they are waited for."""
    for each in threading.enumerate():
        if each is not threading.current_thread():
            each.join(5)
    return [each.name for each in threading.enumerate()]


def warning(topic, action=epoch):
    """Keep the places of the warnings."""
    wanted.add(topic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    told[topic] = "\n".join(f"{each.filename}:{each.lineno} {each.message}" for each in caught)
    wanted.discard(topic)


def read_to_the_end():
    batches = iter(loader)
    while True:
        next(batches)


def scale():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.step(optimizer)


def main():
    for _ in range(6):
        epoch()
    failing("error in the dataset")
    in_worker = DataLoader(Rows(), batch_size=2, num_workers=1, collate_fn=collate)
    failing("error in a worker", lambda: epoch(in_worker))
    for topic in (
        "error in collate", "error in the sampler", "error in forward",
        "error in an inner module of the same class", "error in backward", "error of backward",
        "error in grad inside forward", "error in the closure",
        "error in a hook of the optimizer", "error in zero_grad", "error in the batch's to",
    ):  # fmt: skip
        failing(topic)
        epoch()
    failing("error of the scaler", scale)
    failing("error of a collective", lambda: dist.all_reduce(torch.ones(1)))
    failing("end of the loader", read_to_the_end)
    wanted.add("error in the dataset")
    failing("error of a loader in a thread", in_thread(epoch))
    wanted.clear()
    wanted.add("error in forward")
    failing("error of a model in a thread", in_thread(lambda: model(torch.ones(2, 4))))
    wanted.clear()
    epoch()

    def old_words():
        y = model(torch.ones(2, 4)).sum()
        torch.autograd.backward(y, grad_variables=torch.ones(()))

    warning("place of a warning of torch", old_words)
    warning("place of a warning in forward")
    warning("place of a warning in the dataset")
    warning("warnings of a dataset's length", read_twice)
    look_at_graphs()
    look_at_lives()
    look_at_names()
    told["threads"] = str(names_of_threads())
    json.dump(told, sys.stdout)


class Keeps(torch.fx.Tracer):
    """A tracer for which the user's model is one piece."""

    def is_leaf_module(self, module, name):
        return isinstance(module, Net) or super().is_leaf_module(module, name)


def look_at_graphs():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return self.net(x) + 1

    told["graph of a model with a layer of the same class"] = str(Keeps().trace(Outer()))
    calls = []
    original = nn.Module.__call__

    def counting(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return original(self, *args, **kwargs)

    nn.Module.__call__ = counting
    model(torch.ones(2, 4))
    nn.Module.__call__ = original
    told["calls patched by others"] = str(calls)


def look_at_lives():
    gc.collect()
    gc.disable()
    lives = {}
    other = Net()
    stepping = torch.optim.SGD(other.parameters(), lr=0.1)
    batches = iter(DataLoader(Rows(), batch_size=2, num_workers=1))
    for x in batches:
        y = other(x)
        y.sum().backward()
        stepping.step()
    refs = {"model": other, "optimizer": stepping, "batches": batches, "batch": x, "result": y}
    lives = {name: weakref.ref(each) for name, each in refs.items()}
    workers = batches._workers
    del refs, other, stepping, batches, x, y
    told["lives of objects"] = str(
        [(name, ref() is None) for name, ref in lives.items()]
        + [each.is_alive() for each in workers]
    )
    gc.enable()


def look_at_names():
    functions = [
        DataLoader.__iter__, torch.autograd.backward, torch.autograd.grad, dist.all_reduce,
        torch.optim.Optimizer.zero_grad, torch.amp.GradScaler.step, Batch.to, Net.forward,
        torch.optim.SGD.step,
    ]  # fmt: skip
    told["signatures"] = "\n".join(
        f"{each.__module__} {each.__qualname__} {inspect.signature(each)} {inspect.getsource(each)}"
        for each in functions
    )
    told["attributes of the model"] = str(
        [sorted(vars(each)) for each in model.modules()]
        + [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
        + [len(each._backward_hooks or ()) for each in model.modules()]
    )
    told["state of the optimizer"] = str(
        [sorted(vars(optimizer)), optimizer.state_dict(), len(optimizer._optimizer_step_pre_hooks)]
    )


if __name__ == "__main__":
    main()
