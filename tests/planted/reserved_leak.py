"""Something is kept of every step: half a megabyte, as outputs in a list would be."""

import torch
from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=9, batches=150, leak=1)
model = Net()
optimizer = sgd(model)
history = []


def remember(loss):
    history.append(torch.full((1 << 17,), loss.item()) if words["leak"] else loss.item())


for _ in range(words["epochs"]):
    train_epoch(model, optimizer, rows(words["batches"]), remember)
