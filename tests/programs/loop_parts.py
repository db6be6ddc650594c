"""What the loops share: parts of a training that take as long as the command line says."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

# Milliseconds a batch or a step, by the place where they are spent.
PLACES = ("data", "prepare", "forward", "loss", "backward", "step", "after", "check", "between")


def read_words(**more: object) -> argparse.Namespace:
    """Read `--data 6 --forward 5 …`, and what else a loop has, with its usual value."""
    parser = argparse.ArgumentParser()
    for name in PLACES:
        parser.add_argument(f"--{name}", type=float, default=0.0)
    for name, usual in {"epochs": 2, "batches": 16, "workers": 0, **more}.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    return parser.parse_args()


# What the pauses really took, in seconds: a machine that is busy sleeps too long.
spent: dict[str, list[float]] = {}


def pause(place: str, ms: float) -> None:
    """Do nothing for a while, and remember how long that was."""
    began = time.perf_counter()
    time.sleep(ms / 1000)
    note(place, began)


def note(place: str, began: float) -> float:
    """Remember what took from then to now, and return now."""
    now = time.perf_counter()
    spent.setdefault(place, []).append(now - began)
    return now


@atexit.register
def tell_spent() -> None:
    if folder := os.environ.get("LOOP_SPENT"):
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(spent))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of 8 numbers; two make a batch, and a batch takes `ms`."""

    def __init__(self, batches: int, ms: float, place: str = "row") -> None:
        self.length, self.ms, self.place = 2 * batches, ms, place

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        began = time.perf_counter()
        time.sleep(self.ms / 2000)  # the slow line
        note(self.place, began)
        return torch.full((8,), index / self.length), torch.ones(4)


class Pass(torch.autograd.Function):
    """Passes tensors on, slowly on the way back."""

    @staticmethod
    def forward(ctx: object, x: Tensor, ms: float) -> Tensor:
        ctx.ms = ms
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        pause("backward", ctx.ms)
        return gradient, None


class Net(nn.Module):
    """Two layers; its call and its backward pass take as long as they are told."""

    def __init__(self, words: argparse.Namespace, width: int = 8, answers: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, 16), nn.Linear(16, answers)
        self.forward_ms, self.backward_ms = words.forward, words.backward

    def forward(self, x: Tensor) -> Tensor:
        pause("forward", self.forward_ms)
        return self.last(Pass.apply(torch.relu(self.first(x)), self.backward_ms))


class SlowSGD(torch.optim.SGD):
    """An optimizer whose step takes `ms`."""

    def __init__(self, parameters: object, ms: float) -> None:
        super().__init__(parameters, lr=0.01)
        self.ms = ms

    def step(self, closure: object = None) -> object:
        pause("step", self.ms)
        return super().step(closure)
