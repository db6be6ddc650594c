"""ResNet-50 on made-up pictures: how many a second these GPUs train, without any reading of data.

The network of He and others (2015), with the stride in the 3x3 convolution, as most measure it.
The batch is that of each rank, as in most published figures.

Here:          stoker run --procs 2 examples/torch_resnet50.py --batch 4 --size 64 --steps 5
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_resnet50.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Blocks and width of the four stages.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4
WARM_UP = 5


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum, past a ReLU."""
        return nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def make_resnet50(classes: int = 1000) -> nn.Sequential:
    """Return the network: 25,557,032 parameters with 1,000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = 64
    for stage, (blocks, width) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = width * EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)


def main() -> None:
    """Train on the same batch again and again, and print pictures a second of all ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256, help="of each rank")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--steps", type=int, default=100, help="measured, after a warm-up")
    args = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)
    model = make_resnet50().to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)
    images = torch.randn(args.batch, 3, args.size, args.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch,), device=device)

    def train_step() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    def wait() -> float:
        """Return the time at which all ranks have come so far."""
        if has_gpu:
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    for _ in range(WARM_UP):
        train_step()
    start = wait()
    for _ in range(args.steps):
        loss = train_step()
    took_s = wait() - start
    if rank == 0:
        print(f"step {args.steps} loss {loss.item():.6f}")
        speed = args.batch * args.steps * world / took_s
        print(f"{speed:.1f} images/s on {world} ranks, {speed / world:.1f} on each")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
