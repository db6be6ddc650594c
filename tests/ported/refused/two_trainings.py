"""two trainings -> refused"""
import torch, torch.nn as nn
from torch.utils.data import DataLoader
def train(m, dl):
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    for x in dl:
        o.zero_grad()
        l = m(x).pow(2).mean()
        l.backward()
        o.step()
    print(l.item())
dl = DataLoader(torch.randn(64, 4), batch_size=8)
m = nn.Linear(4, 1)
train(m, dl)
m = nn.Linear(4, 2)
train(m, dl)
