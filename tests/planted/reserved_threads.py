"""A model that computes on the CPU, with as many threads as OMP_NUM_THREADS says or torch takes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

steps = int(sys.argv[1])
torch.manual_seed(7)
x, y = torch.randn(32, 256), torch.randint(0, 10, (32,))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(steps):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
