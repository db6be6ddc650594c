"""A compiled model: `torch.compile(model)` or `model.compile()`."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words(how="function")
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)


class Plain(torch.nn.Module):
    """Layers that the compiler takes whole, around a part that it must not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Net(words), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(torch.compiler.disable(self.inner)(x)))


model = Plain()
optimizer = SlowSGD(model.parameters(), words.step)
if words.how == "function":
    trained = torch.compile(model, backend="eager")
else:
    model.compile(backend="eager")
    trained = model
for _ in range(words.epochs):
    for x, y in loader:
        loss = F.mse_loss(trained(x), y)
        pause("loss", words.loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
