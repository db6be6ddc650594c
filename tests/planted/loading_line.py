"""One slow line: a picture is made grey point by point, in Python."""

import torch
from loading_parts import BATCH, decode, read_words, train
from torch.utils.data import DataLoader, Dataset

words = read_words(slow=1, workers=0, epochs=1, batches=80)


def make_grey(row):
    if words["slow"]:
        grey = torch.tensor(
            [sum(row[:, i, j]) / 3 for i in range(0, 64, 8) for j in range(64)]
        ).repeat(8)
    else:
        grey = row.mean(0)
    return grey.view(1, 64, 64).expand(3, 64, 64).contiguous()


class Pictures(Dataset):
    """Rows that are decoded and made grey."""

    def __len__(self):
        return BATCH * words["batches"]

    def __getitem__(self, index):
        row = decode()
        return make_grey(row), index % 2


if __name__ == "__main__":
    loader = DataLoader(Pictures(), batch_size=BATCH, num_workers=words["workers"])
    train(loader, words["epochs"])
