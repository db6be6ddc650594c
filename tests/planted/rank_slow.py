"""Two ranks with DDP; one of them writes something of its own in every step, or none does.

Pauses stand for a device that computes and a disk that is waited for: they last as long on a
busy machine.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 120


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.04)
        return self.layer(x)


def main() -> None:
    is_fixed = "fixed" in sys.argv
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 64)
    for _ in range(STEPS):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 1 and not is_fixed:
            time.sleep(0.04)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
