"""Finds the width of the network in mnist.py at which a step takes about so many milliseconds.

calibrate.py --device cpu --workers 2 --threads 1 --seconds 10 1 3 10 100

prints one line of JSON for each: the batch size, the width, the workers and the step length that
it gives.
"""

import argparse
import json
import statistics
import time
from itertools import pairwise

import torch

from mnist import Clothes, add_cores, make_loader, make_net, train

# Widths beyond this need more memory than they are worth.
WIDEST = 4096
# The guide's own: where a step is bound by what launches it, it is as good as any.
GUIDES = 32
CLOSE = 0.2


class Clock:
    """Notes when each turn begins, and gives it at once."""

    def __init__(self):
        self.times = []

    def take(self):
        self.times.append(time.perf_counter())


def measure(args, device, data, batch, width, workers, wanted_ms):
    # Half a second each, or 15 steps, so that a search takes seconds; the first fifth to warm up.
    steps = max(3, round(100 / wanted_ms))
    data.length = batch * 5 * steps
    loader = make_loader(data, batch, workers, args)
    model = make_net(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock()
    train(model, device, loader, optimizer, steps, steps, clock, args.cores)
    clock.take()
    return 1000 * statistics.median(end - begin for begin, end in pairwise(clock.times)) / steps


def search(args, device, data, wanted_ms):
    """Return the width that comes nearest, by bisection, and the milliseconds that it takes."""
    # A loader's worker needs some 20 µs for an image, and a batch of a worker takes a millisecond
    # to receive: short steps get small batches, and the shortest no worker.
    batch = 4 if wanted_ms < 2 else 16 if wanted_ms < 5 else 64
    workers = 0 if wanted_ms < 2 else args.workers
    tried = {}
    low, high, width = 0, WIDEST, 0 if wanted_ms < 2 else GUIDES
    end = time.monotonic() + args.seconds
    while width not in tried and time.monotonic() < end:
        tried[width] = measure(args, device, data, batch, width, workers, wanted_ms)
        if abs(tried[width] - wanted_ms) < CLOSE * wanted_ms:
            break
        if tried[width] < wanted_ms:
            low = width
            width = min(high, max(1, 2 * width)) if high == WIDEST else (low + high) // 2
        else:
            high = width
            width = (low + high) // 2
    best = min(tried, key=lambda each: abs(tried[each] - wanted_ms))
    return {
        "wanted_ms": wanted_ms,
        "batch": batch,
        "width": best,
        "workers": workers,
        "ms": tried[best],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    add_cores(parser)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each step length")
    parser.add_argument("wanted_ms", type=float, nargs="+")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    data = Clothes(0)
    # Once unmeasured: libraries, allocator, clocks.
    measure(args, device, data, 64, 8, args.workers, 10.0)
    for wanted_ms in args.wanted_ms:
        print(json.dumps(search(args, device, data, wanted_ms)), flush=True)


if __name__ == "__main__":
    main()
