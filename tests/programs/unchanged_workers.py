"""Trains for ever with two workers, after printing its own number and theirs."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    """Rows without end."""

    def __iter__(self):
        while True:
            yield torch.ones(4)


def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(Endless(), batch_size=4, num_workers=2))
    for step, x in enumerate(batches):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if step == 20:
            print(os.getpid(), *(each.pid for each in batches._workers), flush=True)


if __name__ == "__main__":
    main()
