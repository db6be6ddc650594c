"""What the variants share: models that compute rather than pause, of other shapes than the planted ones.

The gains that are announced were never fitted to them.
"""

import torch
import torch.nn.functional as F
from loading_parts import read_words  # noqa: F401
from torch import nn

torch.set_num_threads(1)
WORDS, LENGTH = 1000, 48


class Reader(nn.Module):
    """A small transformer that reads sentences."""

    def __init__(self, width=96, depth=2):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.layers(self.words(x)).mean(1))


class Viewer(nn.Module):
    """A small network of convolutions that looks at pictures."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 2),
        )

    def forward(self, x):
        return self.layers(x)


def train(model, loader, epochs, after_step=None, after_epoch=None):
    """Train a model; what comes after each step and each epoch is the program's own."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after_step is not None:
                after_step(loss)
        if after_epoch is not None:
            after_epoch(epoch)
