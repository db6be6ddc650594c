"""Batches of a class with its own `to`, as those of graph and text libraries."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch import Tensor
from torch.utils.data import DataLoader


class Batch:
    """What a collate function returns."""

    def __init__(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        self.x = torch.stack([x for x, _ in rows])
        self.y = torch.stack([y for _, y in rows])

    def to(self, device: str) -> "Batch":
        pause("prepare", words.prepare)
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self


words = read_words()
loader = DataLoader(Rows(words.batches, words.data), batch_size=2, collate_fn=Batch)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)
for _ in range(words.epochs):
    for batch in loader:
        batch = batch.to("cpu")
        loss = F.mse_loss(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
