"""A small convolutional network on Fashion-MNIST, as beginners' guides show it.

It times its own steady loop and prints one line of JSON. Generated images stand in where the
data set is not installed (Debian: dataset-fashion-mnist). One epoch is as long as the run.
"""

import argparse
import gzip
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGES = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
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


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def train(model, device, loader, optimizer, first, last):
    """Train from the first batch to the last; return the seconds a step from `first` on."""
    model.train()
    begin = 0.0
    for step, (images, labels) in enumerate(loader):
        if step == first:
            synchronize(device)
            begin = time.perf_counter()
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step + 1 == last:
            break
    synchronize(device)
    return (time.perf_counter() - begin) / (last - first)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="SGD", choices=["SGD", "Adam"])
    parser.add_argument(
        "trainings", nargs="+", help="batch,width,first,steps: timed from the step `first` on"
    )
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    for training in args.trainings:
        batch, width, first, last = (int(each) for each in training.split(","))
        data = Clothes(batch * last)
        loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=args.workers)
        model = Net(width).to(device)
        optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.01)
        seconds = train(model, device, loader, optimizer, first, last)
        print(json.dumps({"ms_per_step": 1000 * seconds, "steps": last - first}), flush=True)


if __name__ == "__main__":
    main()
