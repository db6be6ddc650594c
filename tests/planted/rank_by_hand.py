"""Two ranks that average every gradient by a call of its own, or let DDP do it."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    is_fixed = "fixed" in sys.argv
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model: nn.Module = nn.Sequential(*(nn.Linear(128, 128) for _ in range(60)))
    if is_fixed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(128, 128)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if not is_fixed:
            average(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
