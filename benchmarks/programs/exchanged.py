"""What our hooks cost a loop on a GPU, in one process in which they are put in and taken out.

    stoker run --quiet --python PYTHON benchmarks/programs/exchanged.py 120 4 8

SECONDS, loader workers, and the width of the network of mnist.py. Every 16 steps the hooks are others:
gates in C, the wrappers in Python that stand behind them, or none. Two processes may differ by more
than that; within one, what drifts hits all alike. Without a GPU no step passes by, and gates do nothing.
"""

import gc
import os
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, RandomSampler, dataloader

from mnist import Clothes, OnCores, make_net

BLOCK, SKIPPED, WARM = 16, 5, 600
MODES = ("gates", "wrappers", "none")


class Hooks:
    """Everything of ours that steps pass, in each of its forms."""

    def __init__(self, model):
        gates = next(each for each in gc.get_objects() if type(each).__name__ == "Gates")
        behind = {id(gate): wrapper for _, _, wrapper, gate in gates._places}
        self.places = []
        for place, name in (
            (dataloader._BaseDataLoaderIter, "__next__"),
            (torch.autograd, "backward"),
            (torch.Tensor, "to"),
            (optimizers.Optimizer, "zero_grad"),
            (type(model), "__call__"),
        ):
            gate = vars(place).get(name)
            if not hasattr(gate, "__wrapped__"):
                continue
            bare = torch.nn.Module.__call__ if name == "__call__" else gate.__wrapped__
            self.places.append((place, name, (gate, behind.get(id(gate), gate), bare)))
        self.registered = []
        for place in (
            optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks,
        ):
            gated = dict(place)
            wrappers = {key: behind.get(id(each), each) for key, each in gated.items()}
            self.registered.append((place, (gated, wrappers, {})))

    def put(self, mode):
        for place, name, forms in self.places:
            setattr(place, name, forms[mode])
        for place, forms in self.registered:
            place.clear()
            place.update(forms[mode])


def trimmed(values):
    """Return the mean without the smallest and the largest fiftieth."""
    values = sorted(values)
    cut = len(values) // 50
    return statistics.mean(values[cut : len(values) - cut])


def main():
    seconds, workers, width = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    torch.set_num_threads(4)
    from _stoker_inside.process import current

    timeline = current().timeline
    cores = sorted(os.sched_getaffinity(0))
    has_cores = len(cores) > 8
    data = Clothes(10**9)
    sampler = RandomSampler(data, replacement=True, num_samples=10**8)
    on_others = OnCores(cores[2:]) if has_cores else None
    loader = DataLoader(data, 16, sampler=sampler, num_workers=workers, worker_init_fn=on_others)
    model = make_net(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock, draw = time.perf_counter, random.Random(5)
    found, measured = {mode: [] for mode in MODES}, []
    hooks, order, mode, end, last = None, [], 0, 0.0, 0.0
    for step, (images, labels) in enumerate(loader):
        if step == 1 and has_cores:
            os.sched_setaffinity(0, cores[:2])
        if step == WARM:
            hooks, end = Hooks(model), clock() + seconds
        if hooks is not None and step % BLOCK == 0:
            if clock() > end:
                break
            if not order:
                order = draw.sample(range(3), 3)
            mode = order.pop()
            hooks.put(mode)
        is_measured = timeline.marks is not None and not timeline.is_light
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        now = clock()
        if hooks is not None and step % BLOCK >= SKIPPED:
            is_ours = is_measured and MODES[mode] != "none"
            (measured if is_ours else found[MODES[mode]]).append(1e6 * (now - last))
        last = now
    hooks.put(0)
    bare = trimmed(found["none"])
    for name, values in found.items():
        error = statistics.stdev(values) / len(values) ** 0.5
        added = trimmed(values) - bare
        print(f"{name:9} {len(values)} steps, {trimmed(values):.0f} ± {error:.0f} µs, {added:+.0f}")
    if measured:
        more = statistics.mean(measured) - trimmed(found["gates"])
        print(f"measured  {len(measured)} steps, {more:+.0f}, one in {timeline.marks.stride:.0f}")
    os._exit(0)  # what else there is of the loader is not waited for


if __name__ == "__main__":
    main()
