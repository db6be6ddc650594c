"""The pieces of training loops with delays of known length in them: data, batch, model, optimizer.

A delay sits where real programs lose time. What was planted is counted as it happens, since a
sleep may last longer than was asked for; loader workers count in memory shared with the loop.
On a GPU the delays of forward, backward and optimizer are kernels that spin, and the transfer is
a copy of pageable memory; events right before and after each say what it took.
"""

import json
import multiprocessing
import statistics
import time
from collections import UserDict
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

BATCH = 4
FEATURES = 64
CLASSES = 10
MAX_WORKERS = 16
PLACES = ("item", "collate", "transfer", "forward", "backward", "optimizer", "comm", "late")
COUNTED = (*PLACES, "eval.transfer", "eval.forward")
ON_DEVICE = ("forward", "backward", "optimizer")
# With a little work in every phase the GPU never waits for the host, with and without plants.
FLOOR_MS = 1.0
# A sleep ends late by up to this; the rest is spent turning round.
LATE_S = 0.0003
# The loop's own clock leaves warm-up out, as Stoker does: the first three steps, and of the first
# twenty those that follow them and take twice as long as the best before, until three are alike.
SETTLED = 2
LATEST = 20


class Plants:
    """The delays of this program, and what they came to."""

    def __init__(self):
        self.ms = dict.fromkeys(PLACES, 0.0)
        self.is_busy = self.is_evaluating = False
        self.device = torch.device("cpu")
        # Seconds and calls, by place, for the loop itself and for each worker.
        self.spent = {
            each: multiprocessing.Array("d", 2 * MAX_WORKERS, lock=False) for each in COUNTED
        }
        self.ticks = []
        self.waits = []
        self.ends = []
        self.breaks = set()
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
            self._lose(place, self.ms[place] / 1000)

    def item(self):
        """Lose one item's share of the time planted in a batch's items."""
        self._lose("item", self.ms["item"] / 1000 / BATCH)

    def transfer(self):
        """Lose the time of a transfer: on a GPU, by a transfer."""
        if self.ballast is not None:
            self._time_on_device("transfer", lambda: self.ballast.to(self.device))
        else:
            self.at("transfer")

    def _lose(self, place, seconds):
        began = time.perf_counter()
        if seconds:
            if not self.is_busy:
                time.sleep(max(0.0, seconds - LATE_S))
            while time.perf_counter() - began < seconds:
                pass
        self.count(place, time.perf_counter() - began if seconds else 0.0)

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

    def count(self, place, seconds):
        worker = get_worker_info()
        slot = 0 if worker is None else 2 * (worker.id + 1)
        place = self._counted_as(place) if worker is None else place
        self.spent[place][slot] += seconds
        self.spent[place][slot + 1] += 1

    def _counted_as(self, place):
        return f"eval.{place}" if self.is_evaluating and f"eval.{place}" in self.spent else place

    def replayed(self):
        """Count what one replay of a captured step holds."""
        for place in ON_DEVICE:
            self.count(place, (self.ms[place] + FLOOR_MS) / 1000)

    def tick(self):
        """A step is over."""
        self.ticks.append(time.perf_counter())

    def mark(self):
        """Return an event on the GPU's time line; None without a GPU."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def waited(self, seconds, begin):
        """A batch came after so many seconds; on a GPU what it stood idle since that event counts."""
        if get_worker_info() is None and not self.is_evaluating:
            self.waits.append((len(self.ticks), seconds, begin, self.mark()))

    def ended(self, seconds):
        """A loader had no more batches, which took so many seconds to say."""
        if get_worker_info() is None and not self.is_evaluating:
            self.ends.append((len(self.ticks), seconds))

    def epoch(self):
        """A new epoch begins: the step that follows is not like the others."""
        self.breaks.add(len(self.ticks))

    def told(self, **more):
        """Return what was planted, and the loop's own clock, as one line of JSON."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        for place, begin, end in self.events:
            self.count(place, begin.elapsed_time(end) / 1000)
        lengths = self._lengths()
        kept = {
            index: lengths[index - 1]
            for index in range(warm_at(lengths), len(self.ticks))
            if index not in self.breaks
        }
        waits = sum(
            begin.elapsed_time(end) / 1000 if begin else seconds
            for index, seconds, begin, end in self.waits
            if index in kept
        )
        spent = {each: (sum(array[0::2]), sum(array[1::2])) for each, array in self.spent.items()}
        told = {
            "planted": spent,
            "steps": len(self.ticks),
            "step_ms": 1000 * statistics.fmean(kept.values()),
            "wait_ms": 1000 * waits / len(kept),
        }
        return json.dumps({**told, **more})

    def _lengths(self):
        """Return what lies between two ticks each, less the time in which a loader ended.

        Loaders that fetch one batch ahead end, and wait for their workers, before the last step.
        """
        lengths = [after - before for before, after in pairwise(self.ticks)]
        for index, seconds in self.ends:
            if 0 < index <= len(lengths):
                lengths[index - 1] -= seconds
        return lengths


def warm_at(lengths):
    """Return the first step whose length counts."""
    for index in range(SETTLED, min(LATEST, len(lengths))):
        lately = lengths[index - 2 : index + 1]
        if lengths[index] <= 2 * min(lengths[:index]) or max(lately) <= 1.5 * min(lately):
            return index + 1
    return min(LATEST, len(lengths))


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
        PLANTS.waited(time.perf_counter() - began, begin)
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
