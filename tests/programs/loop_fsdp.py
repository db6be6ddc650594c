"""Two ranks with FSDP2; one of them comes late to the model."""

import torch.distributed as dist
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

words = read_words(late=0.0)
dist.init_process_group("gloo")
model = Net(words)
fully_shard(model.last)
fully_shard(model)
rows = Rows(2 * words.batches, words.data)
loader = DataLoader(rows, batch_size=2, sampler=DistributedSampler(rows))
optimizer = SlowSGD(model.parameters(), words.step)
for epoch in range(words.epochs):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        pause("late", words.late if dist.get_rank() else 0)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause("after", words.after)
dist.destroy_process_group()
