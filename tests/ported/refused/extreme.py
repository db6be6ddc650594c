import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(128, 4), torch.randn(128, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
worst = 0.0
for epoch in range(2):
    for xb, yb in loader:
        out = net(xb)
        loss = nn.functional.mse_loss(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        worst = max(worst, (out - yb).abs().max().item())
        rmse = torch.sqrt(loss).item()
    print(f"rmse {rmse:.5f} worst {worst:.5f}")
