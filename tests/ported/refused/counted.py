import torch
import torch.nn as nn
from torch.utils.data import DataLoader

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = 0
for x in DataLoader(torch.randn(64, 4), batch_size=8):
    loss = model(x).mean()
    loss.backward()
    seen += 1
    if seen % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
