import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

def loop(model, loader, optimizer=None):
    is_train = optimizer is not None
    model.train(is_train)
    total, count = 0.0, 0
    with torch.set_grad_enabled(is_train):
        for x, y in tqdm(loader, leave=False):
            loss = F.cross_entropy(model(x), y)
            if is_train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(x)
            count += len(x)
    return total / count

def main():
    torch.manual_seed(0)
    x = torch.randn(300, 6); y = (x[:, 0] > 0).long()
    train_dl = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
    val_dl = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=44)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        train_loss = loop(model, train_dl, optimizer)
        val_loss = loop(model, val_dl)
        print(f"{epoch} train {train_loss:.5f} val {val_loss:.5f}")
main()
