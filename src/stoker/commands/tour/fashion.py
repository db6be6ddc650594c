"""A small CNN on Fashion-MNIST, written as most first scripts are: one process, a plain loader."""

import argparse
import gzip
import pathlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian: dataset-fashion-mnist


def read_idx(path):
    data = gzip.decompress(path.read_bytes())
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)


def load(part, count):
    if FOLDER.is_dir():
        images = read_idx(FOLDER / f"{part}-images-idx3-ubyte.gz")
        labels = read_idx(FOLDER / f"{part}-labels-idx1-ubyte.gz")
        return images[:count], labels[:count]
    print("Fashion-MNIST is not installed: a small generated set is used")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, min(count, 6000))
    images = rng.integers(0, 60, (len(labels), 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 8, 4:24] += 150
    return images, labels.astype(np.uint8)


class Fashion(Dataset):
    def __init__(self, part, count, augment):
        self.images, self.labels = load(part, count)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].astype(np.float32) / 255
        if self.augment:
            image = self.shift(image)
        return torch.from_numpy(image[None].copy()), int(self.labels[index])

    def shift(self, image):
        padded = np.pad(image, 3)
        down, right = torch.randint(0, 7, (2,)).tolist()
        moved = padded[down : down + 28, right : right + 28]
        return moved[:, ::-1] if torch.rand(1).item() < 0.5 else moved


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--images", type=int, default=60000)
    options.add_argument("--workers", type=int, default=0)
    args = options.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(
        Fashion("train", args.images, augment=True),
        batch_size=128,
        shuffle=True,
        num_workers=args.workers,
    )
    valid = DataLoader(Fashion("t10k", 10000, augment=False), batch_size=500)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
                for images, labels in valid
            )
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {right / len(valid.dataset):.1%} right")


if __name__ == "__main__":
    main()
