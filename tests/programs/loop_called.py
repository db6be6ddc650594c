"""A model that is never called: its `forward`, or a method that gives the loss, is."""

import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Whole(nn.Module):
    """A model with a method of its own, as those of research code have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Net(words)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.body(x)), y)


words = read_words(how="forward")
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
model = Whole()
optimizer = SlowSGD(model.parameters(), words.step)
for _ in range(words.epochs):
    for x, y in loader:
        if words.how == "forward":
            loss = F.mse_loss(model.forward(x), y)
        else:
            loss = model.compute_loss(x, y)
        pause("loss", words.loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
