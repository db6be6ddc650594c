import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def training_loss(self, x):
        return self.fc(x).pow(2).mean()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model.training_loss(x)
    loss.backward()
    optimizer.step()
