"""Too few workers: the batch is made while the model waits, and a core is free."""

import time
import zlib

import torch
from loading_parts import BATCH, PACKED, decode, read_words, train
from torch.utils.data import DataLoader, Dataset

words = read_words(workers=0, asked=0, epochs=2, batches=80, device_ms=10.0)


class Pictures(Dataset):
    """Rows that take a while to decode, to crop and to check."""

    def __len__(self):
        return BATCH * words["batches"]

    def __getitem__(self, index):
        row = decode()
        row = row + zlib.adler32(zlib.decompress(PACKED)) % 2
        row = row - row.mean()
        check = zlib.decompress(PACKED)
        return row, len(check) % 2


class Asked(Pictures):
    """Rows that somebody else makes, one question after the other."""

    def __getitem__(self, index):
        time.sleep(0.001)
        row = torch.full((3, 64, 64), index / 1000)
        time.sleep(0.001)
        row = row - row.mean()
        time.sleep(0.001)
        return row, index % 2


if __name__ == "__main__":
    loader = DataLoader(
        Asked() if words["asked"] else Pictures(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=words["workers"],
        persistent_workers=words["workers"] > 0,
    )
    train(loader, words["epochs"], words["device_ms"])
