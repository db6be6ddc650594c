"""A job with a GPU whose model is on the CPU. Fixed: on the GPU."""

import torch
from device_parts import IS_FIXED, for_a_while
from torch import nn

device = "cuda" if IS_FIXED else "cpu"
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(256, 1024, device=device)
for _ in for_a_while():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
