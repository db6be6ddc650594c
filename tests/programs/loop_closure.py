"""An optimizer that calls the model itself, several times a step."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, pause, read_words
from torch.utils.data import DataLoader


class SlowLBFGS(torch.optim.LBFGS):
    """LBFGS that thinks before it moves."""

    def step(self, closure: object) -> object:
        pause("step", words.step)
        return super().step(closure)


words = read_words()
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
model = Net(words)
optimizer = SlowLBFGS(model.parameters(), lr=0.01, max_iter=2, tolerance_grad=0, tolerance_change=0)
calls = 0
for _ in range(words.epochs):
    for x, y in loader:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            global calls
            calls += 1
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            pause("loss", words.loss)
            loss.backward()
            return loss

        optimizer.step(closure)
        pause("after", words.after)
print("calls", calls)
