"""Finds the width of the network in mnist.py at which a step takes about so many milliseconds.

calibrate.py --device cpu --workers 2 --threads 1 --seconds 10 1 3 10 100

prints one line of JSON for each: the batch size, the width and the step length that it gives.
"""

import argparse
import json
import time

import torch
from mnist import Clothes, make_net, train
from torch.utils.data import DataLoader

# Widths beyond this need more memory than they are worth.
WIDEST = 4096
CLOSE = 0.1


class Clock:
    """Notes when each turn begins, and gives it at once."""

    def __init__(self):
        self.times = []

    def take(self):
        self.times.append(time.perf_counter())


def measure(args, device, data, batch, width, wanted_ms):
    # A quarter of a second each, so that a search takes seconds.
    warm, steps = 5, max(8, round(250 / wanted_ms))
    data.length = batch * (warm + steps)
    loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=args.workers)
    model = make_net(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock()
    train(model, device, loader, optimizer, warm, steps, clock)
    clock.take()
    begin, end = clock.times
    return 1000 * (end - begin) / steps


def search(args, device, data, wanted_ms):
    """Return the width that comes nearest, by bisection, and the milliseconds that it takes."""
    # A loader's worker needs some 20 µs for an image: short steps get small batches.
    batch = 4 if wanted_ms < 2 else 16 if wanted_ms < 5 else 64
    tried = {}
    low, high, width = 0, WIDEST, 8
    end = time.monotonic() + args.seconds
    while width not in tried and time.monotonic() < end:
        tried[width] = measure(args, device, data, batch, width, wanted_ms)
        if abs(tried[width] - wanted_ms) < CLOSE * wanted_ms:
            break
        if tried[width] < wanted_ms:
            low = width
            width = min(high, 2 * width) if high == WIDEST else (low + high) // 2
        else:
            high = width
            width = (low + high) // 2
    best = min(tried, key=lambda each: abs(tried[each] - wanted_ms))
    return {"wanted_ms": wanted_ms, "batch": batch, "width": best, "ms": tried[best]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each step length")
    parser.add_argument("wanted_ms", type=float, nargs="+")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    data = Clothes(0)
    measure(args, device, data, 64, 8, 10.0)  # once unmeasured: libraries, allocator, clocks
    for wanted_ms in args.wanted_ms:
        print(json.dumps(search(args, device, data, wanted_ms)), flush=True)


if __name__ == "__main__":
    main()
