# Trains, is "interrupted", and goes on from a checkpoint with everything in it: model, optimizer,
# scheduler, step, history.
import json
import os
from dataclasses import asdict, dataclass

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    width: int = 24
    batch_size: int = 16
    lr: float = 0.05
    epochs: int = 4
    ckpt: str = "ckpt/last.pt"
    seed: int = 99


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


def accuracy(model, loader, device):
    model.eval()
    right = count = 0
    with torch.no_grad():
        for x, y in loader:
            pred = model(x.to(device)).argmax(-1)
            right += (pred == y.to(device)).sum().item()
            count += y.size(0)
    return right / count


def train(cfg, stop_after=None):
    torch.manual_seed(cfg.seed)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    x = torch.randn(192, 6)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=cfg.batch_size, shuffle=False, drop_last=True)
    test_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=32)

    model = MLP(cfg.width)
    model.to(device)
    optimizer = optim.SGD(
        [{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": cfg.lr * 2}],
        lr=cfg.lr, momentum=0.9, weight_decay=1e-4,
    )
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    first_epoch, history = 0, []

    if os.path.isfile(cfg.ckpt):
        checkpoint = torch.load(cfg.ckpt, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch = checkpoint["epoch"] + 1
        history = checkpoint["history"]
        print(f"=> resumed after epoch {checkpoint['epoch']}, accuracy {history[-1]['acc']:.4f}")

    for epoch in range(first_epoch, cfg.epochs):
        model.train()
        losses = []
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        acc = accuracy(model, test_loader, device)
        history.append({"epoch": epoch, "loss": sum(losses) / len(losses), "acc": acc})
        print(f"epoch {epoch} loss {history[-1]['loss']:.5f} acc {acc:.4f} lr {optimizer.param_groups[1]['lr']:.4f}")
        os.makedirs(os.path.dirname(cfg.ckpt), exist_ok=True)
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
                "history": history,
                "config": asdict(cfg),
            },
            cfg.ckpt,
        )
        if stop_after is not None and epoch + 1 >= stop_after:
            print("interrupted")
            return history
    with open("history.json", "w") as f:
        json.dump(history, f, indent=2)
    print(f"train accuracy {accuracy(model, train_loader, device):.4f}")
    return history


if __name__ == "__main__":
    config = Config()
    train(config, stop_after=2)
    final = train(config)
    print("final", f"{final[-1]['loss']:.5f}", f"{final[-1]['acc']:.4f}")
