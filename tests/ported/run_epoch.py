import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(128, 4), torch.randn(128, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
lossfn = nn.MSELoss()
train_losses, test_losses = [], []
def run_epoch(loader, train):
    total, n = 0.0, 0
    for xb, yb in loader:
        loss = lossfn(net(xb), yb)
        if train:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += float(loss) * len(xb)
        n += len(xb)
    return total / n
for epoch in range(3):
    train_losses.append(run_epoch(loader, True))
    net.eval()
    with torch.no_grad():
        test_losses.append(run_epoch(test, False))
    net.train()
    print(f"{epoch} {train_losses[-1]:.5f} {test_losses[-1]:.5f}")
