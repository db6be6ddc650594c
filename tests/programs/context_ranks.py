"""One rank of a training that asks Stoker's context; the first word says for what."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import stoker


def meets(context):
    import torch

    context.init(timeout_s=30)
    context.init()
    total = torch.tensor([float(context.rank + 1)])
    torch.distributed.all_reduce(total)
    context.barrier(30)
    say(f"rank {context.rank}/{context.world_size} local {context.local_rank}/{context.local_size} "
        f"node {context.node} {context.launcher} {context.device} sum {total.item():.0f} "
        f"env {os.environ['RANK']}{os.environ['WORLD_SIZE']}")  # fmt: skip
    context.print_main("printed once")


def meets_again(context):
    """What was written at the first meeting must not be taken for the second."""
    for meeting in ("first", "second"):
        context.init(timeout_s=30)
        here = Path(f"{meeting}-was-here")
        if context.rank == 1:
            # Rank 0 waits already, and must wait for this.
            context._met()._store.wait(["barrier/1/0"], timedelta(seconds=30))
            here.touch()
        context.barrier(30)
        say(f"rank {context.rank} {meeting} {here.exists()}")
        context.close()


def misses(context):
    if context.rank != 1:
        context.init(timeout_s=10)


def misses_barrier(context):
    context.init(timeout_s=30)
    if context.rank == 1:
        time.sleep(4)
        return
    context.barrier(1)


def stops(context):
    """Only rank 1 is told, and each rank has its own pace: all must stop at the same step."""
    context.init(timeout_s=30)
    for step in range(100_000):
        if context.rank == 1 and step == 40:
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.002 * (1 + context.rank))
        if context.is_main and (context.should_stop or step % 5 == 4):
            Path("saved").touch()
        if context.should_stop:
            break
    say(f"stopped at {step}")
    # Rank 0 keeps the store.
    context.barrier(60)


def saves(context):
    import torch

    context.init(timeout_s=30)
    for step in (9, 10, 11):
        context.checkpoint.save({"step": step, "w": torch.ones(3)}, f"c-{step}.pt", keep=2)
    context.barrier(30)
    path = context.checkpoint.latest("c-0.pt")
    say(f"{path} {context.checkpoint.load(path)['step']} {sorted(map(str, Path().iterdir()))}")


def say(text):
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    context = stoker.context()
    try:
        globals()[sys.argv[1]](context)
    finally:
        context.close()
