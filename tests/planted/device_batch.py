"""Eight long rows at a time, each on one multiprocessor. Fixed: four times as many."""

import torch
from device_parts import IS_FIXED, for_a_while
from torch import nn

BATCH = 32 if IS_FIXED else 8
model = nn.Sequential(*(nn.LayerNorm(262_144) for _ in range(12))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(BATCH, 262_144, device="cuda")
for _ in for_a_while():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
