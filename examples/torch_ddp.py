"""PyTorch DistributedDataParallel: each rank trains a copy on its part of every batch.

Here:          stoker run --procs 2 examples/torch_ddp.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torch_single import count_right, make_model, read_data


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained weights go")
    args = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = read_data("train", args.images)
    order = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch // world, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        # Without this every epoch has the same order.
        order.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                # A rank knows the loss of its own part only.
                mean = loss.detach() / world
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {step} loss {mean.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    part = Subset(test, range(rank, len(test), world))
    right = torch.tensor(count_right(model.module, part, device), device=device)
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right.item() / len(test):.4f}")
        if args.save:
            torch.save(model.module.state_dict(), args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
