import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
x, y = torch.randn(100, 4), torch.randint(0, 2, (100,))
sampler = WeightedRandomSampler(torch.ones(100), 100)
loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=sampler)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for xb, yb in loader:
    opt.zero_grad()
    nn.functional.cross_entropy(net(xb), yb).backward()
    opt.step()
