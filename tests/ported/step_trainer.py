"""A Trainer that counts steps, not epochs: it asks an iterator for the next batch, and evaluates now and then."""
import time
from collections import deque

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Sines(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(n, 1, generator=g) * 6 - 3
        self.y = torch.sin(self.x) + 0.05 * torch.randn(n, 1, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Trainer:
    def __init__(self, model, lr=0.02, batch_size=32, device="cpu"):
        self.device = device
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.SmoothL1Loss()
        self.train_loader = DataLoader(Sines(256, 1), batch_size=batch_size, shuffle=True)
        self.val_loader = DataLoader(Sines(64, 2), batch_size=16)
        self.recent = deque(maxlen=5)
        self.step = 0
        self.best = float("inf")

    def train_step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, n = 0.0, 0
        for x, y in self.val_loader:
            out = self.model(x.to(self.device))
            total += nn.functional.mse_loss(out, y.to(self.device), reduction="sum").item()
            n += y.numel()
        self.model.train()
        return total / n

    def fit(self, steps, eval_every=8):
        started = time.time()
        batches = iter(self.train_loader)
        for self.step in range(1, steps + 1):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(self.train_loader)
                batch = next(batches)
            self.recent.append(self.train_step(batch))
            if self.step % 4 == 0:
                print(f"step {self.step}/{steps} | loss {sum(self.recent) / len(self.recent):.5f}")
            if self.step % eval_every == 0:
                mse = self.validate()
                marker = ""
                if mse < self.best:
                    self.best, marker = mse, " *"
                    torch.save(self.model.state_dict(), "best_model.pt")
                print(f"step {self.step} | val mse {mse:.5f}{marker}")
        return time.time() - started


def build_model(hidden=16):
    return nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))


if __name__ == "__main__":
    torch.manual_seed(7)
    trainer = Trainer(build_model(), device="cuda" if torch.cuda.is_available() else "cpu")
    print(f"start | val mse {trainer.validate():.5f}")
    trainer.fit(24)
    print(f"end | val mse {trainer.validate():.5f} best {trainer.best:.5f}")
