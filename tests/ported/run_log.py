import torch, time
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Run:
    """Stands for an experiment logger."""
    def __init__(self, project, config=None):
        self.project, self.rows = project, []
    def log(self, row, step=None):
        self.rows.append(row)
        print(step, " ".join(f"{k}={v:.5f}" for k, v in row.items()))
    def finish(self):
        print("rows", len(self.rows))


config = dict(lr=0.1, bs=64, epochs=2, accum=2)
run = Run(project="demo", config=config)
torch.manual_seed(9)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
xs = torch.randn(512, 4); ys = torch.sin(xs.sum(1, keepdim=True))
train_dl = DataLoader(TensorDataset(xs[:384], ys[:384]), batch_size=config["bs"] // config["accum"], shuffle=True, num_workers=0)
valid_dl = DataLoader(TensorDataset(xs[384:], ys[384:]), batch_size=config["bs"], shuffle=False)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
loss_fn = nn.SmoothL1Loss()
global_step = 0
for epoch in range(config["epochs"]):
    model.train()
    optimizer.zero_grad()
    for i, (xb, yb) in enumerate(train_dl):
        xb, yb = xb.to(device), yb.to(device)
        loss = loss_fn(model(xb), yb) / config["accum"]
        loss.backward()
        if (i + 1) % config["accum"] == 0:
            optimizer.step()
            optimizer.zero_grad()
            global_step += 1
            run.log({"train/loss": loss.item() * config["accum"]}, step=global_step)
    model.eval()
    with torch.no_grad():
        preds, trues = [], []
        for xb, yb in valid_dl:
            preds.append(model(xb.to(device)).cpu())
            trues.append(yb)
    preds, trues = torch.cat(preds), torch.cat(trues)
    mae = (preds - trues).abs().mean().item()
    r2 = 1 - ((preds - trues) ** 2).sum() / ((trues - trues.mean()) ** 2).sum()
    run.log({"val/mae": mae, "val/r2": r2.item()}, step=global_step)
run.finish()
