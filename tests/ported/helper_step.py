"""The loss is made in a function of its own; train_step returns a tensor; kwargs everywhere."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def compute_loss(net, batch):
    x, y = batch
    return nn.functional.huber_loss(net(x), y)


def train_step(net, batch, opt):
    opt.zero_grad()
    loss = compute_loss(net, batch)
    loss.backward()
    opt.step()
    return loss


def fit(net, opt, loader, epochs=2):
    for epoch in range(epochs):
        total = 0.0
        for batch in loader:
            total += train_step(net=net, batch=batch, opt=opt).item()
        print("epoch", epoch, "loss", total / len(loader))


if __name__ == "__main__":
    torch.manual_seed(21)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=20, shuffle=True)
    opt = torch.optim.Adam(params=net.parameters(), lr=1e-2)
    fit(net=net, opt=opt, loader=loader)
