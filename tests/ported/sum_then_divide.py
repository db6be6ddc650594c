import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randn(96, 2)), batch_size=24, shuffle=True)
net = nn.Linear(5, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
ema_loss = None
best = float("inf")
for epoch in range(3):
    for x, y in loader:
        out = net(x)
        loss = torch.sum((out - y) ** 2) / x.shape[0]
        l2 = sum(p.pow(2).sum() for p in net.parameters())
        loss = loss + 1e-3 * l2
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
        ema_loss = value if ema_loss is None else 0.9 * ema_loss + 0.1 * value
        if value < best:
            best = value
    print(f"{epoch} {value:.5f} {ema_loss:.5f} {best:.5f}")
