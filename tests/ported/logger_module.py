"""The logging module, nested functions, a file of metrics, and no epoch in the inner function."""
import json
import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger(__name__)


def main(epochs: int = 3, batch_size: int = 20) -> None:
    torch.manual_seed(9)
    os.makedirs("out", exist_ok=True)
    x = torch.randn(200, 3)
    dataset = TensorDataset(x, x.pow(2).sum(1, keepdim=True))
    loader = DataLoader(dataset, batch_size, shuffle=True)
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    history = []

    def one_epoch() -> float:
        net.train()
        losses = []
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(xb), yb)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    for epoch in range(epochs):
        value = one_epoch()
        history.append(value)
        log.info("epoch %d loss %.5f", epoch, value)
        print(f"epoch {epoch} loss {value:.5f}")
    with open("out/history.json", "w") as stream:
        json.dump(history, stream)


if __name__ == "__main__":
    main()
