"""DeepSpeed: ZeRO keeps a part of the optimizer (1), gradients (2) and weights (3) on each rank.

The batch of all ranks together stands in deepspeed.json, and so does the stage. Unless told so,
this DeepSpeed clips gradients to a norm of 1, and refuses optimizers that it does not know.

Here:          stoker run --procs 2 examples/torch_deepspeed.py --deepspeed_config examples/deepspeed.json
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/torch_deepspeed.py --deepspeed_config examples/deepspeed.json
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torch_single import count_right, make_model, read_data


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="the folder that the checkpoint goes to")
    # DeepSpeed's own launcher adds --local_rank.
    args, _ = parser.parse_known_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = make_model()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        # An optimizer of PyTorch: DeepSpeed's own are compiled when the job starts.
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        config=args.deepspeed_config,
    )
    rank, world = dist.get_rank(), dist.get_world_size()
    data = read_data("train", args.images)
    order = DistributedSampler(data)
    share = engine.train_micro_batch_size_per_gpu()
    loader = DataLoader(data, batch_size=share, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for images, labels in loader:
            logits = engine(images.to(engine.device))
            loss = nn.functional.cross_entropy(logits, labels.to(engine.device))
            engine.backward(loss)
            engine.step()
            step += 1
            if step % args.every == 0:
                mean = loss.detach() / world
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {step} loss {mean.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    part = Subset(test, range(rank, len(test), world))
    right = torch.tensor(count_right(engine, part, engine.device), device=engine.device)
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right.item() / len(test):.4f}")
    if args.save:
        # Every rank writes its part.
        engine.save_checkpoint(args.save)
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
