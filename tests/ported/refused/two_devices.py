import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4).to("cuda:0")
        self.b = nn.Linear(4, 1).to("cuda:1")

    def forward(self, x):
        return self.b(self.a(x.to("cuda:0")).to("cuda:1"))


model = Split()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.randn(64, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
