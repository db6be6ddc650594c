import torch
import torch.nn as nn
from torch.utils.data import DataLoader, WeightedRandomSampler

data = torch.randn(64, 4)
sampler = WeightedRandomSampler(torch.rand(64), 64)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(data, batch_size=8, sampler=sampler):
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
