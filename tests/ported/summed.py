"""A loss that is summed over the batch."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Linear(4, 1)
criterion = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(torch.randn(64, 4), batch_size=8)
for x in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), x[:, :1])
    loss.backward()
    optimizer.step()
    print("sum", loss.item(), "mean", loss.item() / len(x))
