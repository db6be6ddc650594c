"""Two ranks with DDP: a slow network, and a rank that comes late to a collective."""

import os
import sys
import tempfile
import threading

import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from loop_parts import Net, Rows, SlowSGD, pause, read_words, tell_spent
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main(rank: int, world: int, meeting: str) -> None:
    words = read_words(network=0.0, late=0.0, how="")
    dist.init_process_group("gloo", meeting, rank=rank, world_size=world)
    model = DistributedDataParallel(Net(words), bucket_cap_mb=0.0001)

    def slow_network(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
        work, later = dist.all_reduce(bucket.buffer(), async_op=True), Future()

        def arrive() -> None:
            work.wait()
            pause("network", words.network)
            later.set_result(bucket.buffer() / world)

        threading.Thread(target=arrive).start()
        return later

    if words.network:
        model.register_comm_hook(None, slow_network)
    rows = Rows(world * words.batches, words.data)
    loader = DataLoader(rows, batch_size=2, sampler=DistributedSampler(rows))
    optimizer = SlowSGD(model.parameters(), words.step)
    for epoch in range(words.epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pause("late", words.late if rank else 0)
            dist.all_reduce(loss.detach())
    dist.destroy_process_group()
    tell_spent()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(main, (2, f"file://{folder}/meeting"), nprocs=2)
    else:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE")
        rank, world = names["RANK" in os.environ]
        main(int(os.environ[rank]), int(os.environ[world]), "env://")
