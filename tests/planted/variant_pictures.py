"""Large pictures in batches of their own size, decoded by a few workers, seen by convolutions."""

import time

import torch
from loading_parts import decode
from torch.utils.data import DataLoader, Dataset
from variant_parts import Viewer, read_words, train

words = read_words(
    wait_ms=0.0, decodes=0, workers=1, batch=24, epochs=3, batches=40, persistent=1, width=16
)


class Pictures(Dataset):
    """Pictures that are waited for, then decoded, or neither."""

    def __len__(self):
        return words["batch"] * words["batches"]

    def __getitem__(self, index):
        time.sleep(words["wait_ms"] / 2000)
        row = decode(words["decodes"]) if words["decodes"] else torch.full((3, 64, 64), index / 9e3)
        time.sleep(words["wait_ms"] / 2000)
        return row, index % 2


if __name__ == "__main__":
    torch.manual_seed(7)
    loader = DataLoader(
        Pictures(),
        batch_size=words["batch"],
        shuffle=True,
        num_workers=words["workers"],
        persistent_workers=bool(words["persistent"]),
    )
    train(Viewer(words["width"]), loader, words["epochs"])
