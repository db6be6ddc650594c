"""Horovod with PyTorch: MPI or Gloo starts the ranks, the optimizer averages the gradients.

Here:          stoker run --procs 2 examples/torch_horovod.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_horovod.py
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
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

    hvd.init()
    rank, world = hvd.rank(), hvd.size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    # All ranks start from the weights of the first.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    data = read_data("train", args.images)
    order = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, batch_size=args.batch // world, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                mean = hvd.allreduce(loss.detach(), name="loss")
                if rank == 0:
                    print(f"step {step} loss {mean.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    part = Subset(test, range(rank, len(test), world))
    right = hvd.allreduce(torch.tensor(count_right(model, part, device)), op=hvd.Sum)
    if rank == 0:
        print(f"accuracy {right.item() / len(test):.4f}")
        if args.save:
            torch.save(model.state_dict(), args.save)
    hvd.shutdown()


if __name__ == "__main__":
    main()
