"""Accelerate around a plain loop, with gradient accumulation."""

import torch.nn.functional as F
from accelerate import Accelerator
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words(every=1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=words.every)
model = Net(words)
model, optimizer, loader = accelerator.prepare(
    model,
    SlowSGD(model.parameters(), words.step),
    DataLoader(Rows(words.batches, words.data), batch_size=2),
)
for _ in range(words.epochs):
    for x, y in loader:
        with accelerator.accumulate(model):
            pause("prepare", words.prepare)
            loss = F.mse_loss(model(x), y)
            pause("loss", words.loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            pause("after", words.after)
    pause("between", words.between)
