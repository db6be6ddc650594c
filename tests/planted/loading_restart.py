"""Short epochs, each with new workers."""

import time

import torch
from loading_parts import BATCH, read_words, train
from torch.utils.data import DataLoader, Dataset

words = read_words(persistent=0, workers=2, epochs=20, batches=16, opening_ms=80.0)


class Pictures(Dataset):
    """Rows that come quickly."""

    def __len__(self):
        return BATCH * words["batches"]

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((3, 64, 64), index / 1000), index % 2


def open_archive(worker):
    """What a worker does before its first row: on a quick machine its start alone takes 10 ms."""
    time.sleep(words["opening_ms"] / 1000)


if __name__ == "__main__":
    loader = DataLoader(
        Pictures(),
        batch_size=BATCH,
        num_workers=words["workers"],
        persistent_workers=bool(words["persistent"]),
        worker_init_fn=open_archive,
    )
    train(loader, words["epochs"], device_ms=10.0)
