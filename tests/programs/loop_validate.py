"""Validation between epochs, and after every few steps within one."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch import nn
from torch.utils.data import DataLoader


class Whole(nn.Module):
    """What is trained; what is evaluated lies within it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.criterion = inner, nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


words = read_words(every=8, checks=5, how="same")
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
held_out = DataLoader(
    Rows(words.checks, words.check, "check"), batch_size=2, num_workers=words.workers
)
model = Net(words)
trained = Whole(model) if words.how == "inner" else model
optimizer = SlowSGD(model.parameters(), words.step)


@torch.no_grad()
def validate() -> float:
    model.eval()
    total = 0.0
    for x, y in held_out:
        total += F.mse_loss(model(x), y).item()
        pause("loss", words.loss)
    model.train()
    return total


step = 0
for _ in range(words.epochs):
    for x, y in loader:
        loss = F.mse_loss(trained(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
        step += 1
        if step % words.every == 0:
            validate()
    validate()
    pause("between", words.between)
