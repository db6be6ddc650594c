"""Gradient accumulation of the usual form."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 2


def train():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 5), torch.randn(160, 1))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.MSELoss()
    for epoch in range(2):
        running = 0.0
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            out = model(x)
            loss = criterion(out, y) / ACCUMULATE
            loss.backward()
            running += loss.item() * ACCUMULATE
            if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch={epoch} loss={running / len(loader):.6f}")


if __name__ == "__main__":
    train()
