"""Half a minute of preparation before the first step, which a cache would save."""

import time

import torch
from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=3, batches=200, cached=0)


def prepare():
    time.sleep(24)  # stands for counting words in a large text
    return rows(words["batches"])


loader = rows(words["batches"]) if words["cached"] else prepare()
model = Net()
optimizer = sgd(model)
for _ in range(words["epochs"]):
    train_epoch(model, optimizer, loader)
torch.save(model.state_dict(), "last.pt")
