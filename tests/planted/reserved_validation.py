"""Held-out data larger than what is trained on, after every epoch."""

import torch
import torch.nn.functional as F
from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=24, batches=25, held_out=40, every=1)
loader, held_out = rows(words["batches"]), rows(words["held_out"])
model = Net()
optimizer = sgd(model)
for epoch in range(words["epochs"]):
    train_epoch(model, optimizer, loader)
    if (epoch + 1) % words["every"] == 0:
        with torch.no_grad():
            print(sum(F.cross_entropy(model(x), y).item() for x, y in held_out))
