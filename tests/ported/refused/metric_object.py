"""A metric object fed with outputs; used for training and validation."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Accuracy:
    def __init__(self):
        self.reset()
    def reset(self):
        self.correct, self.total = 0, 0
    def update(self, logits, labels):
        self.correct += (logits.argmax(1) == labels).sum().item()
        self.total += labels.size(0)
    def compute(self):
        return self.correct / self.total

torch.manual_seed(0)
x, y = torch.randn(192, 4), torch.randint(0, 2, (192,))
train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
train_acc, val_acc = Accuracy(), Accuracy()
for epoch in range(2):
    train_acc.reset(); val_acc.reset()
    for xb, yb in train_loader:
        out = net(xb)
        loss = nn.functional.cross_entropy(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        train_acc.update(out, yb)
    with torch.no_grad():
        for xb, yb in val_loader:
            val_acc.update(net(xb), yb)
    print(f"{train_acc.compute():.4f} {val_acc.compute():.4f}")
