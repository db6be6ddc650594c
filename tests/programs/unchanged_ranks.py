"""Data-parallel training on two ranks, of a launcher or spawned here; rank 0 prints its losses."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.rand(48, 8), torch.rand(48, 2))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, seed=1))
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(loss.item().hex(), flush=True)
        if "fail" in sys.argv and dist.get_rank() == 1:
            raise ValueError("the user's error")
    dist.destroy_process_group()


def spawned(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = folder
    train()


def main():
    if "RANK" in os.environ:
        train()
        return
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(spawned, (str(port),), nprocs=2)


if __name__ == "__main__":
    main()
