"""What the wrapped functions take of a step that is not measured, with the processor's caches cold.

    .venv/bin/python -m stoker run --quiet --python .venv-torch/bin/python \\
        benchmarks/programs/cold_hooks.py 30

Run under watch, on a CPU that plays a device: one step in 80 is measured. Between any two calls so
many MiB are read (8). The hooks are put in and taken out every 50 steps, at random; of what a call
takes with and without them the outer tenths are left out.
"""

import random
import statistics
import sys
import time

import numpy as np
import torch
from _stoker_inside.marks import Marks
from _stoker_inside.process import current
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
MIB = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
BLOCK, WARM, STRIDE = 50, 400, 80.0
CALLS = ("the next batch", "zero_grad", "forward", "backward", "optimizer")


class Event:
    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.1


class Device:
    """Has passed every mark at once."""

    make_event = Event

    def follow(self):
        pass

    def record(self, event):
        pass

    def is_capturing(self):
        return False


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Hooks:
    """What is wrapped on the way of a step, with what it was before."""

    def __init__(self):
        places = ((dataloader._BaseDataLoaderIter, "__next__"), (torch.autograd, "backward"),
                  (optimizers.Optimizer, "zero_grad"), (Net, "__call__"))  # fmt: skip
        self.wrapped = [(owner, name, vars(owner)[name]) for owner, name in places]
        self.around = [(each, dict(each)) for each in (optimizers._global_optimizer_pre_hooks,
                                                       optimizers._global_optimizer_post_hooks)]  # fmt: skip

    def put(self, is_in):
        for owner, name, wrapper in self.wrapped:
            original = torch.nn.Module.__call__ if owner is Net else wrapper.__wrapped__
            setattr(owner, name, wrapper if is_in else original)
        for hooks, ours in self.around:
            hooks.clear()
            hooks.update(ours if is_in else {})


def train(seconds):
    """Return the microseconds of each call, with the hooks and without."""
    marks = current().timeline.marks = Marks(current().timeline, Device(), print)
    marks.is_on = True
    count = 1 << 22
    data = TensorDataset(torch.zeros(count, 4), torch.zeros(count, dtype=torch.long))
    batches = iter(DataLoader(data, batch_size=1))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    read = np.zeros(int(MIB * 2**17))
    found = {True: [], False: []}
    hooks, is_in, step, began = None, True, 0, time.perf_counter()
    while step < WARM or time.perf_counter() - began < seconds:
        if step == WARM:
            marks._choose_stride = lambda: None
            marks.stride, hooks = STRIDE, Hooks()
        if step >= WARM and step % BLOCK == 0:
            is_in = random.random() < 0.5
            hooks.put(is_in)
        took = []

        def timed(call, *args, took=took):
            read.sum()
            start = time.perf_counter()
            result = call(*args)
            took.append(1e6 * (time.perf_counter() - start))
            return result

        x, y = timed(next, batches)
        timed(optimizer.zero_grad)
        loss = torch.nn.functional.cross_entropy(timed(model, x), y)
        timed(loss.backward)
        timed(optimizer.step)
        step += 1
        if step > WARM and step % BLOCK > 2:
            found[is_in].append(took)
    hooks.put(True)
    assert not marks.is_broken
    return found


def middle(values):
    tenth = len(values) // 10
    return statistics.mean(sorted(values)[tenth : len(values) - tenth])


def main():
    torch.set_num_threads(1)
    random.seed(1)
    found = train(SECONDS)
    total = 0.0
    for index, name in enumerate(CALLS):
        with_us, without = (
            middle([each[index] for each in found[is_in]]) for is_in in (True, False)
        )
        total += with_us - without
        print(f"{name:15} {without:6.1f} µs, watched {with_us:6.1f}: {with_us - without:+5.1f}")
    print(f"{'all':15} {total:+.1f} µs, {len(found[True])} and {len(found[False])} steps")


if __name__ == "__main__":
    main()
