"""Nothing to gain: rows in memory; or workers that keep up; or workers that stay."""

import torch
from loading_parts import BATCH, decode, read_words, train
from torch.utils.data import DataLoader, Dataset, TensorDataset

words = read_words(kind="memory", epochs=2, batches=80)


class Pictures(Dataset):
    """Rows that one worker decodes faster than the model learns from them."""

    def __len__(self):
        return BATCH * words["batches"]

    def __getitem__(self, index):
        return decode(), index % 2


if __name__ == "__main__":
    size = BATCH * words["batches"]
    if words["kind"] == "memory":
        rows = TensorDataset(torch.rand(size, 3, 64, 64), torch.arange(size) % 2)
        loader = DataLoader(rows, batch_size=BATCH, shuffle=True)
    else:
        loader = DataLoader(Pictures(), batch_size=BATCH, num_workers=1, persistent_workers=True)
    train(loader, words["epochs"], device_ms=25.0)
