"""A thread beside the loop reads the loader, or runs the whole training."""

import threading
from collections.abc import Iterator
from queue import Queue

import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch import Tensor
from torch.utils.data import DataLoader

words = read_words(how="loader")
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)


def read_ahead() -> Iterator[tuple[Tensor, Tensor]]:
    queue: Queue[tuple[Tensor, Tensor] | None] = Queue(maxsize=2)

    def fill() -> None:
        for batch in loader:
            queue.put(batch)
        queue.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := queue.get()) is not None:
        yield batch


def train() -> None:
    for _ in range(words.epochs):
        for x, y in read_ahead() if words.how == "loader" else loader:
            loss = F.mse_loss(model(x), y)
            pause("loss", words.loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pause("after", words.after)


if words.how == "loader":
    train()
else:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
