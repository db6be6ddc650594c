"""Cross-validation: a new model in each turn of a loop."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
full = TensorDataset(torch.randn(120, 5), torch.randn(120, 1))
for fold in range(3):
    held = set(range(fold * 40, fold * 40 + 40))
    train_loader = DataLoader(Subset(full, [i for i in range(120) if i not in held]), batch_size=20)
    val_loader = DataLoader(Subset(full, sorted(held)), batch_size=20)
    net = nn.Linear(5, 1)
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    for epoch in range(2):
        net.train()
        for xb, yb in train_loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(xb), yb)
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            val = sum(nn.functional.mse_loss(net(xb), yb).item() for xb, yb in val_loader) / len(val_loader)
        print(f"fold {fold} epoch {epoch} loss {loss.item():.5f} val {val:.5f}")
