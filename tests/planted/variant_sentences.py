"""Sentences that are asked for word by word, or split by one slow line; read by a transformer."""

import time

import torch
from torch.utils.data import DataLoader, Dataset
from variant_parts import LENGTH, WORDS, Reader, read_words, train

words = read_words(kind="asked", wait_ms=0.4, slow=1, workers=0, batch=16, epochs=2, batches=90)
TEXT = " ".join(f"word{number % WORDS}" for number in range(80 * LENGTH))


class Sentences(Dataset):
    """Sentences of one length."""

    def __len__(self):
        return words["batch"] * words["batches"]

    def __getitem__(self, index):
        return self.ask(index) if words["kind"] == "asked" else self.split(index)

    def ask(self, index):
        time.sleep(words["wait_ms"] / 1000)
        row = torch.arange(index, index + LENGTH)
        time.sleep(words["wait_ms"] / 1000)
        row = row % WORDS
        time.sleep(words["wait_ms"] / 1000)
        return row, index % 2

    def split(self, index):
        start = index % LENGTH
        if words["slow"]:
            numbers = [int("".join(c for c in word if c.isdigit())) for word in TEXT.split()]
        else:
            numbers = range(80 * LENGTH)
        row = torch.tensor(numbers[start : start + LENGTH])
        return row % WORDS, index % 2


if __name__ == "__main__":
    torch.manual_seed(7)
    loader = DataLoader(
        Sentences(),
        batch_size=words["batch"],
        num_workers=words["workers"],
        persistent_workers=words["workers"] > 0,
    )
    train(Reader(), loader, words["epochs"])
