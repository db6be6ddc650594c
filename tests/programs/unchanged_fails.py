"""A training that fails after some steps, in the place that the command line says."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLACE = sys.argv[1]


class Rows(Dataset):
    """Rows of which one is bad."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if PLACE == "worker" and index == 13:
            raise ValueError("the user's error")
        return torch.ones(4)


class Net(nn.Module):
    """A model that breaks in its sixth call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if PLACE == "forward" and self.calls == 6:
            raise ValueError("the user's error")
        return self.layer(x)


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Rows(), batch_size=2, num_workers=1 if PLACE == "worker" else 0):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
