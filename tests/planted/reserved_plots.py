"""Something slow that is no checkpoint between epochs: pictures of the state of the model."""

import time

from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=20, batches=25, pause=0.5)


def draw(model):
    time.sleep(words["pause"])  # stands for a picture of every layer


loader = rows(words["batches"])
model = Net()
optimizer = sgd(model)
for _ in range(words["epochs"]):
    train_epoch(model, optimizer, loader)
    if words["pause"]:
        draw(model)
