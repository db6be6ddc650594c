"""Two models and two optimizers that step in turn."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words()
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
maker, judge = Net(words, 4, 8), Net(words, 8, 1)
step_maker = SlowSGD(maker.parameters(), words.step)
step_judge = SlowSGD(judge.parameters(), words.step)
for _ in range(words.epochs):
    for x, _ in loader:
        fake = maker(torch.randn(2, 4))
        step_judge.zero_grad()
        loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(x)).mean()
        loss.backward()
        step_judge.step()
        pause("prepare", words.prepare)
        step_maker.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        step_maker.step()
        pause("after", words.after)
