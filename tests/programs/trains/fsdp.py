"""FSDP2: each rank holds a part of the weights."""

import torch
import torch.distributed as dist
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x, y = map(torch.tensor, rows(rank, world))
model = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
torch.nn.init.zeros_(model.weight)
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
assert model.weight.to_local().numel() == INPUTS * OUTPUTS // world
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for _ in range(STEPS):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
tell(rank, world, model.weight.full_tensor().detach().flatten())
dist.destroy_process_group()
