import torch
import torch.nn as nn
from torch.utils.data import DataLoader

model = nn.DataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
