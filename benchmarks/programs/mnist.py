"""A small convolutional network on Fashion-MNIST, as beginners' guides show it.

It times blocks of steps of its own steady loop, each when it is told to go on, so that several
processes can take turns. Generated images stand in where the data set is not installed (Debian:
dataset-fashion-mnist). One epoch is as long as the run. On which cores the loop runs, and on which
its workers, can be told: one core may be a third faster than another, by what its neighbours do.
"""

import argparse
import gzip
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGES = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
EVERYWHERE = os.sched_getaffinity(0)
LABELS = Path("/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz")


class Clothes(Dataset):
    def __init__(self, length):
        self.length = length
        if IMAGES.exists():
            raw = bytearray(gzip.decompress(IMAGES.read_bytes())[16:])
            self.images = torch.frombuffer(raw, dtype=torch.uint8).view(-1, 1, 28, 28)
            raw = bytearray(gzip.decompress(LABELS.read_bytes())[8:])
            self.labels = torch.frombuffer(raw, dtype=torch.uint8).long()
        else:
            self.images = torch.randint(0, 256, (20000, 1, 28, 28), dtype=torch.uint8)
            self.labels = torch.randint(0, 10, (20000,))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        index %= len(self.labels)
        image = (self.images[index].float() / 255 - 0.2860) / 0.3530
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3)
        self.conv2 = nn.Conv2d(width, 2 * width, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(144 * 2 * width, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return self.fc2(x)


def make_net(width):
    """Return the network of that width; a step of the narrowest, without convolutions, is short."""
    return Net(width) if width else nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def train(model, device, loader, optimizer, warm, block, turns, cores=()):
    """Train on every batch: some to warm up, then block after block, each in its turn."""
    model.train()
    for step, (images, labels) in enumerate(loader):
        if step == 0 and cores:
            # This thread alone, and the one of the backward pass, which it starts later.
            os.sched_setaffinity(0, cores)
        if step >= warm and (step - warm) % block == 0:
            synchronize(device)
            turns.take()
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    synchronize(device)


class Turns:
    """Tells whoever gave the turn how long it took, and waits for the next."""

    def __init__(self, folder):
        self.go = (folder / "go").open("rb", buffering=0)
        self.done = (folder / "done").open("w")
        self.began = time.perf_counter()

    def take(self):
        self.end()
        self.go.read(1)
        self.began = time.perf_counter()

    def end(self):
        self.done.write(f"{time.perf_counter() - self.began}\n")
        self.done.flush()


class OnCores:
    """Keeps a loader's worker on some cores."""

    def __init__(self, cores):
        self.cores = cores

    def __call__(self, worker):
        os.sched_setaffinity(0, self.cores)


def numbers(text):
    return [int(each) for each in text.split(",")]


def add_cores(parser):
    parser.add_argument("--cores", type=numbers, default=[], help="of the loop")
    parser.add_argument("--worker-cores", type=numbers, help="of the loader's workers")


def make_loader(data, batch, workers, args):
    """Return a loader whose workers keep to their cores; they are started from anywhere."""
    os.sched_setaffinity(0, EVERYWHERE)
    settle = OnCores(args.worker_cores) if args.worker_cores else None
    return DataLoader(
        data, batch_size=batch, shuffle=True, num_workers=workers, worker_init_fn=settle
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="SGD", choices=["SGD", "Adam"])
    parser.add_argument("--turns", type=Path, required=True, help="a folder with two pipes")
    add_cores(parser)
    parser.add_argument("trainings", nargs="+", help="batch,width,workers,warm,block,blocks")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    turns = Turns(args.turns)
    for training in args.trainings:
        turns.take()
        batch, width, workers, warm, block, blocks = numbers(training)
        data = Clothes(batch * (warm + block * blocks))
        loader = make_loader(data, batch, workers, args)
        model = make_net(width).to(device)
        optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.01)
        train(model, device, loader, optimizer, warm, block, turns, args.cores)
    turns.end()


if __name__ == "__main__":
    main()
