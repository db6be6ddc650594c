"""Gradients of several batches before each step of the optimizer."""

import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words(every=4)
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)
for _ in range(words.epochs):
    for number, (x, y) in enumerate(loader, 1):
        loss = F.mse_loss(model(x), y) / words.every
        pause("loss", words.loss)
        loss.backward()
        pause("after", words.after)
        if number % words.every == 0:
            optimizer.step()
            optimizer.zero_grad()
