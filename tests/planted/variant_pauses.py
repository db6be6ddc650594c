"""Pauses that compute: held-out sentences, large checkpoints, and tables between epochs or steps."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from variant_parts import LENGTH, WORDS, Reader, read_words, train

words = read_words(
    cause="validation", every=1, fixed=0, epochs=8, batches=30, held_out=150, rows=200_000
)


def sentences(batches, size):
    inputs = torch.randint(0, WORDS, (batches * size, LENGTH))
    return DataLoader(TensorDataset(inputs, inputs[:, 0] % 2), batch_size=size)


def validate():
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in held_out))


def save():
    # As large as many models: 60 MB.
    states = [{name: each.clone() for name, each in model.state_dict().items()} for _ in range(60)]
    torch.save(states, "checkpoint.pt")


def tabulate(rows):
    table = sorted((number * 7919 % 10007, str(number)) for number in range(rows))
    return table[0]


def after_epoch(epoch):
    if words["cause"] == "validation" and (epoch + 1) % words["every"] == 0:
        validate()
    if words["cause"] == "saving" and (epoch + 1) % words["every"] == 0:
        save()
    if words["cause"] == "tables" and not words["fixed"]:
        tabulate(words["rows"])


def after_step(loss):
    if words["cause"] == "each step" and not words["fixed"]:
        tabulate(words["rows"])


if __name__ == "__main__":
    torch.manual_seed(7)
    loader, held_out = sentences(words["batches"], 16), sentences(words["held_out"], 8)
    model = Reader()
    train(model, loader, words["epochs"], after_step, after_epoch)
