import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def accuracy(model, loader):
    correct = total = 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += y.shape[0]
    return correct / total
def main():
    torch.manual_seed(0)
    x = torch.randn(192, 6); y = (x[:, 0] > 0).long()
    train_dl = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=32, shuffle=True)
    val_dl = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=32)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        model.train()
        for x, y in train_dl:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"{epoch} loss {loss.item():.5f} train {accuracy(model, train_dl):.5f} val {accuracy(model, val_dl):.5f}")
main()
