"""Each epoch trains a new model, of the same class or of another one."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Pass, Rows, SlowSGD, pause, read_words
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Other(nn.Module):
    """A model of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        pause("forward", words.forward)
        return Pass.apply(self.layer(x), words.backward)


words = read_words(how="same")
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
held_out = DataLoader(Rows(3, words.check, "check"), batch_size=2)
for epoch in range(words.epochs):
    model = Other() if words.how == "other" and epoch % 2 else Net(words)
    optimizer = SlowSGD(model.parameters(), words.step)
    for x, y in loader:
        pause("prepare", words.prepare)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
    with torch.no_grad():
        for x, _ in held_out:
            model(x)
