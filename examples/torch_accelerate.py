"""Hugging Face Accelerate: the loop stays; `prepare` wraps the model and shares out the batches.

Here:          stoker run --procs 2 examples/torch_accelerate.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Subset
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

    # Unless batches are split, the batch of the loader is that of each rank.
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    rank, world = accelerator.process_index, accelerator.num_processes
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = read_data("train", args.images)
    order = RandomSampler(data, generator=torch.Generator())
    loader = DataLoader(data, batch_size=args.batch, sampler=order, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for epoch in range(args.epochs):
        order.generator.manual_seed(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % args.every == 0:
                mean = accelerator.reduce(loss.detach(), "mean")
                accelerator.print(f"step {step} loss {mean.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    part = Subset(test, range(rank, len(test), world))
    bare = accelerator.unwrap_model(model)
    right = torch.tensor(count_right(bare, part, accelerator.device), device=accelerator.device)
    right = accelerator.reduce(right, "sum")
    accelerator.print(f"accuracy {right.item() / len(test):.4f}")
    if args.save:
        accelerator.save(bare.state_dict(), args.save)
    accelerator.end_training()


if __name__ == "__main__":
    main()
