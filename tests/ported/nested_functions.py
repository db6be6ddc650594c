"""Everything inside of main: helpers are nested functions that see its variables."""
import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset, random_split


def f1_score(y_true, y_pred, classes):
    """Macro F1, as sklearn has it."""
    scores = []
    for c in range(classes):
        tp = np.sum((y_pred == c) & (y_true == c))
        fp = np.sum((y_pred == c) & (y_true != c))
        fn = np.sum((y_pred != c) & (y_true == c))
        scores.append(2 * tp / max(1, 2 * tp + fp + fn))
    return float(np.mean(scores))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(1234)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X = torch.randn(320, 12)
    W = torch.randn(12, 4)
    Y = (X @ W).argmax(dim=1)
    train_set, val_set = random_split(TensorDataset(X, Y), [256, 64])
    train_dl = DataLoader(train_set, batch_size=args.bs, shuffle=True)
    val_dl = DataLoader(val_set, batch_size=64)

    net = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).to(device)
    decay = [p for p in net.parameters() if p.dim() > 1]
    no_decay = [p for p in net.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}], lr=args.lr
    )
    total = args.epochs * len(train_dl)

    def lr_lambda(step):
        if step < args.warmup:
            return (step + 1) / args.warmup
        return max(0.0, (total - step) / (total - args.warmup))

    sched = LambdaLR(opt, lr_lambda)

    @torch.no_grad()
    def evaluate():
        net.eval()
        preds, trues, loss_sum = [], [], 0.0
        for xb, yb in val_dl:
            xb, yb = xb.to(device), yb.to(device)
            logits = net(xb)
            loss_sum += F.cross_entropy(logits, yb, reduction="sum").item()
            preds.append(logits.argmax(1).cpu().numpy())
            trues.append(yb.cpu().numpy())
        net.train()
        y_pred, y_true = np.concatenate(preds), np.concatenate(trues)
        return loss_sum / len(y_true), f1_score(y_true, y_pred, 4)

    def train_one(xb, yb):
        loss = F.cross_entropy(net(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        return loss.item()

    print("before training: loss %.5f f1 %.4f" % evaluate())
    best = 0.0
    for epoch in range(args.epochs):
        running = 0.0
        for i, (xb, yb) in enumerate(train_dl):
            running += train_one(xb.to(device), yb.to(device))
            if (i + 1) % 4 == 0:
                print(f"  [{epoch}:{i + 1:3d}/{len(train_dl)}] loss {running / (i + 1):.5f} lr {sched.get_last_lr()[0]:.6f}")
        val_loss, f1 = evaluate()
        if f1 > best:
            best = f1
            torch.save(net.state_dict(), "best.pt")
        print(f"epoch {epoch}: train {running / len(train_dl):.5f} val {val_loss:.5f} f1 {f1:.4f}")
    net.load_state_dict(torch.load("best.pt"))
    print("best model: loss %.5f f1 %.4f" % evaluate())


if __name__ == "__main__":
    main()
