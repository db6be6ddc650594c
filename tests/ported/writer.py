"""A logger like those of the web, made in this file; several loaders; a function for loaders."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class SummaryWriter:
    def __init__(self, path):
        self.file = open(path, "w")

    def add_scalar(self, name, value, step):
        self.file.write(f"{step} {name} {value}\n")

    def close(self):
        self.file.close()


def get_loaders(batch_size):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 7, generator=g)
    y = x.mean(1, keepdim=True)
    full = TensorDataset(x, y)
    train = Subset(full, range(240))
    val = Subset(full, range(240, 270))
    test = Subset(full, range(270, 300))
    return (
        DataLoader(train, batch_size=batch_size, shuffle=True),
        DataLoader(val, batch_size=batch_size),
        DataLoader(test, batch_size=batch_size),
    )


def validate(model, loader):
    model.eval()
    losses = []
    with torch.inference_mode():
        for x, y in loader:
            losses.append(nn.functional.l1_loss(model(x), y).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    torch.manual_seed(1)
    writer = SummaryWriter("scalars.txt")
    train_loader, val_loader, test_loader = get_loaders(40)
    model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(3):
        for x, y in train_loader:
            loss = nn.functional.smooth_l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            writer.add_scalar("loss", loss.item(), step)
        print("epoch", epoch, "loss", f"{loss.item():.5f}", "val", f"{validate(model, val_loader):.5f}")
    print("test", f"{validate(model, test_loader):.5f}")
    writer.close()


if __name__ == "__main__":
    main()
