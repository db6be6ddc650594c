"""Checkpoints every epoch, and resumes from the last one; run twice in one go."""
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CKPT = "checkpoint.pt"


def save_checkpoint(model, optimizer, epoch):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, CKPT)


def load_checkpoint(model, optimizer):
    if not os.path.exists(CKPT):
        return 0
    state = torch.load(CKPT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print("resumed at epoch", state["epoch"] + 1)
    return state["epoch"] + 1


def run(until):
    torch.manual_seed(11)
    data = TensorDataset(torch.randn(128, 4), torch.randn(128, 2))
    loader = DataLoader(data, batch_size=16, shuffle=False)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start_epoch = load_checkpoint(model, optimizer)
    for epoch in range(start_epoch, until):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} last loss {loss.item():.6f}")
        save_checkpoint(model, optimizer, epoch)


if __name__ == "__main__":
    run(2)
    run(4)
