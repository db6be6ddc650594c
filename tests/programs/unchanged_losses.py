"""Trains with everything that is random, and prints each loss and the generators' states."""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    """Rows that every generator has a hand in."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        row = torch.full((8,), index / 96)
        row += random.random() + float(np.random.rand()) + torch.rand(8)
        return (row.flip(0) if random.random() < 0.5 else row), torch.rand(2)


class Shuffled:
    """Batches of the user's own making, which have to be drawn to be counted."""

    def __iter__(self):
        yield from torch.randperm(96).view(-1, 8).tolist()

    def __len__(self):
        return sum(1 for _ in self)


def hashed(*states):
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


def main():
    workers, *options = sys.argv[1:]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    batches = {"batch_size": 8, "shuffle": True}
    if "sampler" in options:
        batches = {"batch_sampler": Shuffled()}
    loader = DataLoader(
        Noisy(),
        **batches,
        num_workers=int(workers),
        persistent_workers="persistent" in options,
        multiprocessing_context="spawn" if "spawn" in options else None,
    )
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
    for _ in range(2):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x + 0.1 * torch.randn_like(x)), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            print("loss", loss.item().hex(), norm.item().hex(), random.random(), np.random.rand())
    print(hashed(random.getstate()), hashed(np.random.get_state()[1].tolist()))
    print(hashed(torch.get_rng_state().tolist()))
    print(hashed([each.tolist() for each in model.parameters()]))


if __name__ == "__main__":
    main()
