"""Two loaders read side by side, one with labels and one without."""

import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words()
labelled = DataLoader(Rows(words.batches, words.data / 3), batch_size=2)
unlabelled = DataLoader(Rows(words.batches + 3, 2 * words.data / 3), batch_size=2)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)
for _ in range(words.epochs):
    for (x, y), (z, _) in zip(labelled, unlabelled):
        loss = F.mse_loss(model(x), y) + 0.1 * model(z).square().mean()
        pause("loss", words.loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
