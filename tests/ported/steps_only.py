"""Counts steps, not epochs: an endless iterator that is made again at its end."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 6), torch.randn(96, 1))
loader = DataLoader(data, batch_size=24, shuffle=True)
model = nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
step, max_steps = 0, 10
it = iter(loader)
while step < max_steps:
    try:
        x, y = next(it)
    except StopIteration:
        it = iter(loader)
        x, y = next(it)
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    print(f"step {step} loss {loss.item():.6f}")
