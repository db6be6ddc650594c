"""The pieces of PyTorch's training loops with delays of known length in them; see delays.py.

On a GPU the delays of forward, backward and optimizer are kernels that spin, and the transfer is
a copy of pageable memory; events right before and after each say what it took.
"""

import statistics
import time
from collections import UserDict

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from delays import BATCH, CLASSES, FEATURES, Delays

ON_DEVICE = ("forward", "backward", "optimizer")
# With a little work in every phase the GPU never waits for the host, with and without plants.
FLOOR_MS = 1.0


class Plants(Delays):
    """The delays of this program, on a CPU or a GPU."""

    def __init__(self):
        super().__init__()
        self.device = torch.device("cpu")
        self.events = []
        self.cycles_per_ms = 0.0
        self.ballast = None

    def set_up(self, ms, device, is_busy):
        self.ms.update(ms)
        self.is_busy = is_busy
        self.device = torch.device(device)
        if self.device.type == "cuda":
            self._calibrate_gpu()

    def _calibrate_gpu(self):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):  # the first ones wake the GPU's clocks up
            begin.record()
            torch.cuda._sleep(200_000_000)
            end.record()
            torch.cuda.synchronize()
        self.cycles_per_ms = 200_000_000 / begin.elapsed_time(end)
        if self.ms["transfer"]:
            rate = 32 / _copy_ms(torch.empty(32 << 20, dtype=torch.uint8).fill_(1))
            size = round(rate * self.ms["transfer"] * (1 << 20))
            self.ballast = torch.empty(size, dtype=torch.uint8).fill_(1)

    def at(self, place):
        """Lose the time that is planted here."""
        if self.device.type == "cuda" and place in ON_DEVICE:
            self._spin_on_device(place)
        else:
            super().at(place)

    def transfer(self):
        """Lose the time of a transfer: on a GPU, by a transfer."""
        if self.ballast is not None:
            self._time_on_device("transfer", lambda: self.ballast.to(self.device))
        else:
            self.at("transfer")

    def _spin_on_device(self, place):
        ms = self.ms[place] + FLOOR_MS
        cycles = round(ms * self.cycles_per_ms)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda._sleep(cycles)
        else:
            self._time_on_device(place, lambda: torch.cuda._sleep(cycles))

    def _time_on_device(self, place, work):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        self.events.append((self._counted_as(place), begin, end))

    def worker(self):
        """Return the number of the loader's worker that this is; None in the loop itself."""
        worker = get_worker_info()
        return None if worker is None else worker.id

    def replayed(self):
        """Count what one replay of a captured step holds."""
        for place in ON_DEVICE:
            self.count(place, (self.ms[place] + FLOOR_MS) / 1000)

    def mark(self):
        """Return an event on the GPU's time line; None without a GPU."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def told(self, **more):
        """Return what was planted, and the loop's own clock, as one line of JSON."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        for place, begin, end in self.events:
            self.count(place, begin.elapsed_time(end) / 1000)
        return super().told(**more)


def _copy_ms(tensor):
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        tensor.to("cuda")
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[2:])


PLANTS = Plants()


def time_waits():
    """Take the loop's own time for every batch that it asks for, in any framework."""
    following = _BaseDataLoaderIter.__next__

    def timed(self):
        begin, began = PLANTS.mark(), time.perf_counter()
        try:
            batch = following(self)
        except StopIteration:
            PLANTS.ended(time.perf_counter() - began)
            raise
        seconds, end = time.perf_counter() - began, PLANTS.mark()
        # On a GPU it counts for how long that stood idle.
        PLANTS.waited(lambda: begin.elapsed_time(end) / 1000 if begin else seconds)
        return batch

    _BaseDataLoaderIter.__next__ = timed


class Data(Dataset):
    def __init__(self, batches):
        self.length = batches * BATCH

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        PLANTS.item()
        return {"x": torch.full((FEATURES,), float(index % 7)), "labels": index % CLASSES}


class Batch(UserDict):
    """A batch that moves itself, as those of several libraries do."""

    def to(self, device, **kwargs):
        PLANTS.transfer()
        return Batch({name: value.to(device, **kwargs) for name, value in self.data.items()})


def collate(items):
    batch = Batch(default_collate(items))
    PLANTS.at("collate")
    return batch


def make_loader(batches, workers):
    return DataLoader(Data(batches), batch_size=BATCH, num_workers=workers, collate_fn=collate)


class Stall(torch.autograd.Function):
    """Nothing forward, a delay backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        PLANTS.at("backward")
        return grad


def stall_backward(x):
    return Stall.apply(x)


def stall_forward():
    PLANTS.at("forward")


class Model(nn.Module):
    """Two layers with the delays between them, so that gradients of one come before the other's."""

    # Replaced where they must not be compiled.
    stall_backward = staticmethod(stall_backward)
    stall_forward = staticmethod(stall_forward)

    def __init__(self, outputs=CLASSES):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, outputs)

    def forward(self, x, labels=None):
        x = self.stall_backward(torch.relu(self.first(x)))
        x = self.second(x)
        self.stall_forward()
        if labels is None:
            return x
        return {"loss": nn.functional.cross_entropy(x, labels), "logits": x}


class SlowSGD(torch.optim.SGD):
    """SGD with a delay; the loop's clock ticks at its end."""

    is_main = True

    def step(self, closure=None):
        loss = super().step(closure)
        PLANTS.at("optimizer")
        if self.is_main and not (
            self.param_groups[0]["params"][0].is_cuda and torch.cuda.is_current_stream_capturing()
        ):
            PLANTS.tick()
        return loss
