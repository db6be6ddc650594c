"""Tensors made in the loop itself, or by a class of the user's that is called DataLoader.

With `--checks`, so many batches are evaluated in the middle of each epoch, and something is saved.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from loop_parts import Net, SlowSGD, pause, read_words
from torch import Tensor


class DataLoader:
    """Nothing to do with PyTorch's."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.batches):
            yield make()


def make() -> tuple[Tensor, Tensor]:
    pause("data", words.data)
    return torch.randn(2, 8), torch.ones(2, 4)


words = read_words(how="tensors", checks=0)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)


def train(x: Tensor, y: Tensor) -> None:
    loss = F.mse_loss(model(x), y)
    pause("loss", words.loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pause("after", words.after)


@torch.no_grad()
def check() -> None:
    model.eval()
    for _ in range(words.checks):
        x, y = make()
        F.mse_loss(model(x), y).item()
    model.train()
    pause("between", words.between)


for _ in range(words.epochs):
    if words.how == "class":
        for x, y in DataLoader(words.batches):
            train(x, y)
    else:
        for number in range(words.batches):
            if words.checks and number == words.batches // 2:
                check()
            train(*make())
