"""What the planted GPU programs share: how long they train, and a model of plain layers."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn

IS_FIXED = "fixed" in sys.argv
SECONDS = 18.0


def for_a_while(seconds: float = SECONDS) -> Iterator[int]:
    """Count steps until the time is up."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1
        if number % 20 == 0 and torch.cuda.is_initialized():
            # A host that is far ahead would end long before its GPU.
            torch.cuda.synchronize()


def make_layers(count: int, width: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return linear layers with an activation behind each."""
    layers = [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to("cuda", dtype)
