"""Automatic mixed precision with a scaler and gradient clipping."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(1)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    use_amp = device != "cpu"
    x = torch.randn(192, 8)
    y = torch.randint(0, 4, (192,))
    loader = DataLoader(TensorDataset(x, y), 24, True)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    model.to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    ce = nn.CrossEntropyLoss()
    for epoch in range(2):
        for step, (xb, yb) in enumerate(loader):
            xb = xb.to(device)
            yb = yb.to(device)
            with torch.autocast(device_type="cuda" if use_amp else "cpu", enabled=use_amp):
                loss = ce(model(xb), yb)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            if step % 2 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.5f}")


main()
