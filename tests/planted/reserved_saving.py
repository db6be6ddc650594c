"""A checkpoint after every epoch, or every few steps, on a disk that is slow to write."""

import io
import time

import torch
from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=24, batches=25, every=1, within=0)


class SlowFile:
    """A file that takes a while to write."""

    def __init__(self, name):
        self.file = io.FileIO(name, "wb")

    def write(self, data):
        time.sleep(0.01)
        return self.file.write(data)

    def flush(self):
        self.file.flush()


loader = rows(words["batches"])
model = Net()
optimizer = sgd(model)
steps = 0


def save():
    torch.save(model.state_dict(), SlowFile("checkpoint.pt"))


def after(_):
    global steps
    steps += 1
    if words["within"] and steps % (words["within"] * words["every"]) == 0:
        save()


for epoch in range(words["epochs"]):
    train_epoch(model, optimizer, loader, after)
    if not words["within"] and (epoch + 1) % words["every"] == 0:
        save()
