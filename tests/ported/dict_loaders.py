"""A dict of two loaders, each with a loop of its own; a class as configuration."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

class Config:
    bs = 32
    epochs = 2

class CNN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.h = nn.Linear(c, 2)
    def forward(self, x):
        return self.h(self.f(x).flatten(1))

def seed_everything(seed=42):
    import random, numpy as np
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)

def fit(cfg):
    seed_everything()
    ds = TensorDataset(torch.randn(320, 1, 8, 8), torch.randint(0, 2, (320,)))
    n_val = 64
    tr, va = random_split(ds, [len(ds) - n_val, n_val])
    loaders = {"train": DataLoader(tr, batch_size=cfg.bs, shuffle=True), "val": DataLoader(va, batch_size=cfg.bs)}
    device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    model = CNN(4)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    lossf = nn.CrossEntropyLoss().to(device)
    best_loss = float("inf")
    patience = 0
    for epoch in range(1, cfg.epochs + 1):
        model.train()
        tl = []
        for x, y in loaders["train"]:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = lossf(model(x), y)
            loss.backward()
            optimizer.step()
            tl.append(loss.item())
        model.eval()
        vl = []
        with torch.no_grad():
            for x, y in loaders["val"]:
                x, y = x.to(device), y.to(device)
                vl.append(lossf(model(x), y).item())
        vloss = sum(vl) / len(vl)
        print(f"{epoch} {sum(tl)/len(tl):.4f} {vloss:.4f}")
        if vloss < best_loss:
            best_loss = vloss
            torch.save(model.state_dict(), "b.pt")

if __name__ == "__main__":
    fit(Config())
