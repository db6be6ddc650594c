"""What the planted pauses and reservations share: a small model and a loop around it.

Pauses stand for computing and for slow disks, so that a busy machine changes little. Every program
says with `name=value` words what may be changed of it.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def read_words(**defaults):
    """Return the options: the defaults, with what was given as `name=value`."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    return {name: type(value)(given.get(name, value)) for name, value in defaults.items()}


class Net(nn.Module):
    """Two layers, and a pause for all the others."""

    def __init__(self, pause=0.02):
        super().__init__()
        self.pause = pause
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        time.sleep(self.pause)
        return self.layers(x)


def rows(batches):
    """Return a loader of so many batches."""
    torch.manual_seed(7)
    inputs, labels = torch.randn(8 * batches, 64), torch.randint(0, 2, (8 * batches,))
    return DataLoader(TensorDataset(inputs, labels), batch_size=8)


def train_epoch(model, optimizer, loader, after=None):
    """Train one epoch; `after` is given the loss of each step."""
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(loss)


def sgd(model):
    """Return an optimizer for a model."""
    return torch.optim.SGD(model.parameters(), lr=0.01)
