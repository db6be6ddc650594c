"""A scripted model: `torch.jit.script(model)`."""

import torch
import torch.nn.functional as F
from loop_parts import Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words()
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)


class Plain(torch.nn.Module):
    """Layers that can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


model = torch.jit.script(Plain())
optimizer = SlowSGD(model.parameters(), words.step)
for _ in range(words.epochs):
    for x, y in loader:
        pause("prepare", words.prepare)
        loss = F.mse_loss(model(x), y)
        pause("loss", words.loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
