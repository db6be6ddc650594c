"""What the planted loaders share: pictures to decode, and a loop with a device that takes its time.

Every program says with `name=value` words what may be changed of it, so that the same program
runs with the cause planted and with the fix.
"""

import sys
import time
import zlib

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
BYTES = 3 * 64 * 64
# Each takes about 1 ms to decode, on one core, outside Python's lock.
PACKED = zlib.compress(bytes(range(256)) * (1 << 12))


def read_words(**defaults):
    """Return the options: the defaults, with what was given as `name=value`."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    return {name: type(value)(given.get(name, value)) for name, value in defaults.items()}


def decode(times=1):
    """Return a picture, after some work: the first bytes of what was packed."""
    for _ in range(times):
        raw = zlib.decompress(PACKED)
    return torch.frombuffer(bytearray(raw[:BYTES]), dtype=torch.uint8).view(3, 64, 64) / 255


class Device(nn.Module):
    """A small model on a device that computes for a known time, while the host waits for it."""

    def __init__(self, device_ms):
        super().__init__()
        self.device_ms = device_ms
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 2))

    def forward(self, x):
        time.sleep(self.device_ms / 1000)
        return self.layers(x)


def train(loader, epochs, device_ms=10.0):
    """Train a small model."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Device(device_ms)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
