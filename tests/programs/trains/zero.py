"""DeepSpeed with ZeRO; its configuration is the file that --deepspeed_config names."""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--deepspeed_config")
config = parser.parse_args().deepspeed_config
deepspeed.init_distributed("gloo", verbose=False)
rank, world = dist.get_rank(), dist.get_world_size()
x, y = map(torch.tensor, rows(rank, world))
net = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
torch.nn.init.zeros_(net.weight)
engine, *_ = deepspeed.initialize(
    model=net, optimizer=torch.optim.SGD(net.parameters(), lr=RATE), config=config
)
for _ in range(STEPS):
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    engine.step()
with deepspeed.zero.GatheredParameters(list(net.parameters())):
    tell(rank, world, net.weight.detach().flatten())
dist.destroy_process_group()
