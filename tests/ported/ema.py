"""Averaged weights beside the trained ones; the average is validated and saved."""
import copy
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.state_dict().values(), model.state_dict().values()):
            e.copy_(self.decay * e + (1.0 - self.decay) * p)


def evaluate(net, loader, device):
    net.eval()
    correct = total = 0
    loss_sum = 0.0
    criterion = nn.CrossEntropyLoss()
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = net(x)
            loss_sum += criterion(out, y).item() * x.size(0)
            correct += out.argmax(1).eq(y).sum().item()
            total += y.size(0)
    return loss_sum / total, correct / total


def main():
    torch.manual_seed(11)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(320, 8)
    y = (x[:, :4].sum(1) > 0).long()
    train_loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=20)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
    ema = EMA(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    best = 0.0
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        val_loss, acc = evaluate(model, val_loader, device)
        ema_loss, ema_acc = evaluate(ema.module, val_loader, device)
        print(f"{epoch}: {val_loss:.5f} {acc:.4f} ema {ema_loss:.5f} {ema_acc:.4f}")
        if ema_acc >= best:
            best = ema_acc
            torch.save({"model": model.state_dict(), "ema": ema.module.state_dict(), "epoch": epoch}, "best.pt")
    ckpt = torch.load("best.pt")
    model.load_state_dict(ckpt["model"])
    print("best: %.5f %.4f" % evaluate(model, val_loader, device))


if __name__ == "__main__":
    main()
