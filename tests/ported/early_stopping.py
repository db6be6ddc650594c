"""Validation, best checkpoint, early stopping, ReduceLROnPlateau, loading the best at the end."""
import copy
import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


def build(hidden=16):
    return nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def evaluate(net, loader, loss_fn):
    net.eval()
    total, n, correct = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = net(x)
            total += loss_fn(out, y).item() * x.size(0)
            correct += (out.argmax(1) == y).sum().item()
            n += x.size(0)
    return total / n, correct / n


def main():
    torch.manual_seed(5)
    x = torch.randn(400, 10)
    y = (x[:, 0] * x[:, 1] > 0).long()
    train_set, val_set = random_split(TensorDataset(x, y), [320, 80])
    train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=33)
    net = build()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = optim.Adam(net.parameters(), lr=0.05)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    best, best_state, bad = float("inf"), None, 0
    for epoch in range(12):
        net.train()
        running_loss = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(net(x), y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * x.size(0)
        train_loss = running_loss / len(train_loader.dataset)
        val_loss, val_acc = evaluate(net, val_loader, loss_fn)
        scheduler.step(val_loss)
        print(f"epoch {epoch:2d} loss {train_loss:.5f} val_loss {val_loss:.5f} acc {val_acc:.3f}")
        if val_loss < best:
            best, bad = val_loss, 0
            best_state = copy.deepcopy(net.state_dict())
            torch.save(net.state_dict(), "best.pt")
        else:
            bad += 1
            if bad >= 3:
                print(f"stopped after epoch {epoch}")
                break
    net.load_state_dict(torch.load("best.pt"))
    print("best loss %.5f" % evaluate(net, val_loader, loss_fn)[0])
    net.load_state_dict(best_state)
    os.remove("best.pt")


if __name__ == "__main__":
    main()
