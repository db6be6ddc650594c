"""The loop of every tutorial, with or without workers."""

import time

import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, note, pause, read_words
from torch.utils.data import DataLoader


def main() -> None:
    words = read_words(persistent=0, context="")
    loader = DataLoader(
        Rows(words.batches, words.data),
        batch_size=2,
        num_workers=words.workers,
        persistent_workers=bool(words.persistent),
        multiprocessing_context=words.context or None,
    )
    model = Net(words)
    optimizer = SlowSGD(model.parameters(), words.step)
    for _ in range(words.epochs):
        began = time.perf_counter()
        for number, (x, y) in enumerate(loader):
            pause("prepare", words.prepare)
            loss = F.mse_loss(model(x), y)
            pause("loss", words.loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pause("after", words.after)
            began = note("whole" if number else "first", began)


if __name__ == "__main__":
    main()
