"""Mixed precision with a scaler, which skips a step for infinite gradients."""

import torch
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words(skip=10)
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
model = Net(words)
optimizer = SlowSGD(model.parameters(), words.step)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
step = skipped = 0
for _ in range(words.epochs):
    for x, y in loader:
        step += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        if step == words.skip:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        pause("after", words.after)
print("skipped", skipped)
