"""The data of the examples: Fashion-MNIST as arrays, or a made-up set of the same shape."""

import gzip
import os
from pathlib import Path

import numpy as np

# Where Debian's package dataset-fashion-mnist puts it; FASHION_MNIST names another folder.
DEBIAN = "/usr/share/datasets/fashion-mnist"
PIXELS = 28 * 28
# Of all pixels to train on, from 0 to 1.
MEAN, DEVIATION = 0.286, 0.353


def read_images(part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `count` pictures (n, 28, 28) and their classes; part is `train` or `t10k`."""
    folder = Path(os.environ.get("FASHION_MNIST", DEBIAN))
    if not folder.is_dir():
        return make_images(part, min(count, 10_000))
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        file.read(8)
        labels = np.frombuffer(file.read(count), np.uint8)
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        file.read(16)
        pixels = np.frombuffer(file.read(len(labels) * PIXELS), np.uint8)
    pictures = (pixels.reshape(-1, 28, 28) / np.float32(255) - MEAN) / DEVIATION
    return pictures.astype(np.float32), labels.astype(np.int64)


def make_images(part: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures of ten made-up classes: a pattern each, and as much noise."""
    patterns = np.random.default_rng(0).normal(size=(10, 28, 28))
    random = np.random.default_rng(1 if part == "train" else 2)
    labels = random.integers(0, 10, count)
    pictures = patterns[labels] + random.normal(size=(count, 28, 28))
    return pictures.astype(np.float32), labels
