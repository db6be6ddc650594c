"""Thousands of small files, one for each point of a picture's series; or all of them in one."""

import os
import tempfile
from pathlib import Path

import torch
from loading_parts import BATCH, read_words, train
from torch.utils.data import DataLoader, Dataset

words = read_words(packed=0, epochs=2, batches=50, files=64)
ROW = 3 * 64 * 64


class Pictures(Dataset):
    """Rows of which each part is in a file of its own."""

    def __init__(self, folder):
        self.folder = folder
        part = bytes(ROW // words["files"])
        for number in range(1000):
            (folder / f"{number:04}.bin").write_bytes(part)
        (folder / "packed.bin").write_bytes(1000 * part)
        self.packed = os.open(folder / "packed.bin", os.O_RDONLY)

    def __len__(self):
        return BATCH * words["batches"]

    def read(self, number):
        if words["packed"]:
            size = ROW // words["files"]
            return os.pread(self.packed, size, number * size)
        return (self.folder / f"{number:04}.bin").read_bytes()

    def __getitem__(self, index):
        first = index * words["files"]
        parts = [self.read((first + part) % 1000) for part in range(words["files"])]
        raw = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
        return raw.view(3, 64, 64) / 255, index % 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(DataLoader(Pictures(Path(folder)), batch_size=BATCH), words["epochs"])
