"""Globals that functions use; an exponential average of the weights; exceptions caught."""
import copy
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOADER = DataLoader(TensorDataset(torch.randn(72, 4), torch.randn(72, 1)), batch_size=12, shuffle=True)
MODEL = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 1)).to(DEVICE)
EMA = copy.deepcopy(MODEL)
OPT = torch.optim.Adam(MODEL.parameters(), lr=0.01)


def update_ema(decay=0.9):
    with torch.no_grad():
        for a, b in zip(EMA.parameters(), MODEL.parameters()):
            a.mul_(decay).add_(b, alpha=1 - decay)


def epoch_of_training():
    mean = 0.0
    for n, (x, y) in enumerate(LOADER, start=1):
        loss = nn.functional.mse_loss(MODEL(x.to(DEVICE)), y.to(DEVICE))
        OPT.zero_grad()
        loss.backward()
        OPT.step()
        update_ema()
        mean += (loss.item() - mean) / n
    return mean


try:
    for epoch in range(3):
        print(f"{epoch} loss {epoch_of_training():.6f}", file=sys.stdout)
    print(f"ema {sum(p.abs().sum().item() for p in EMA.parameters()):.4f}")
except KeyboardInterrupt:
    print("interrupted")
