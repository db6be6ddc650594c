"""Two ranks with DDP, a deep and narrow model, and gradients sent in crumbs, or in large buckets."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 80
# The first bucket of DDP holds 1 MiB whatever is asked for; crumbs begin after it.
CRUMBS_MB = 0.004


def main() -> None:
    cap_mb = 25 if "fixed" in sys.argv else CRUMBS_MB
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(120))), bucket_cap_mb=cap_mb
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(64, 64)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
