"""A pipeline of ranks: each holds some layers, and pieces of the batch go from one to the next.

Here:          stoker run --procs 2 examples/torch_pipeline.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 2 --time 0:15:00 examples/torch_pipeline.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, RandomSampler
from torch_single import make_model, read_data

# The layers of the two ranks: a third rank would need a third part.
PARTS = (slice(0, 3), slice(3, None))


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pieces", type=int, default=4, help="so many of a batch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    args = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if world != len(PARTS):
        raise SystemExit(f"the model has {len(PARTS)} parts: start {len(PARTS)} ranks, not {world}")
    is_last = rank == world - 1

    torch.manual_seed(0)
    layers = make_model()[PARTS[rank]].to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.02, momentum=0.9)
    stage = PipelineStage(layers, rank, world, device)
    schedule = ScheduleGPipe(stage, args.pieces, loss_fn=nn.functional.cross_entropy)
    data = read_data("train", args.images)
    # The same order everywhere: the first rank feeds the pictures, the last one the classes.
    order = RandomSampler(data, generator=torch.Generator())
    loader = DataLoader(data, batch_size=args.batch, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        order.generator.manual_seed(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            if is_last:
                schedule.step(target=labels.to(device), losses=losses)
            else:
                schedule.step(images.to(device))
            optimizer.step()
            step += 1
            if is_last and step % args.every == 0:
                print(f"step {step} loss {torch.stack(losses).mean().item():.6f}", flush=True)

    right = 0
    test = DataLoader(read_data("t10k", args.images), batch_size=args.batch, drop_last=True)
    for images, labels in test:
        if is_last:
            logits = schedule.eval(target=labels.to(device), losses=[])
            right += int((logits.argmax(1) == labels.to(device)).sum())
        else:
            schedule.eval(images.to(device))
    if is_last:
        print(f"accuracy {right / (len(test) * args.batch):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
