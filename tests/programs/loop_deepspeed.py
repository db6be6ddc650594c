"""DeepSpeed's engine, with ZeRO and gradient accumulation as the words say."""

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words
from torch.utils.data import DataLoader

words = read_words(stage=0, every=1)
deepspeed.init_distributed("gloo", verbose=False)
torch.manual_seed(0)
model = Net(words)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=SlowSGD(model.parameters(), words.step),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": words.every,
        "zero_optimization": {"stage": words.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    },
)
loader = DataLoader(Rows(words.batches, words.data), batch_size=2)
for _ in range(words.epochs):
    for x, y in loader:
        pause("prepare", words.prepare)
        loss = F.mse_loss(engine(x), y)
        pause("loss", words.loss)
        engine.backward(loss)
        engine.step()
        pause("after", words.after)
dist.destroy_process_group()
