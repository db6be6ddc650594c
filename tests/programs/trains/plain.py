"""One process that knows of no other."""

import torch
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

x, y = map(torch.tensor, rows())
model = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for _ in range(STEPS):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
tell(0, 1, model.weight.detach().flatten())
