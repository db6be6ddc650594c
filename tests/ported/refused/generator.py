import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def infinite(loader):
    while True:
        for batch in loader:
            yield batch

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randn(96, 2)), batch_size=24, shuffle=True)
net = nn.Linear(5, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
batches = infinite(loader)
for step in range(1, 11):
    x, y = next(batches)
    loss = ((net(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 2 == 0:
        print(f"{step} {loss.item():.5f}")
