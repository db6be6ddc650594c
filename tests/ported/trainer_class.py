"""A Trainer class with typed attributes and a dataclass for its settings."""
from dataclasses import dataclass
from typing import Tuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    batch_size: int = 16
    epochs: int = 3
    lr: float = 1e-2


class Points(Dataset):
    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, 6, generator=generator)
        self.y = self.x @ torch.arange(6.0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


class Trainer:
    def __init__(self, model: nn.Module, config: Config) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.config = config
        self.loader = DataLoader(Points(128), batch_size=config.batch_size, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.loss_fn = nn.MSELoss()

    def step(self, batch) -> float:
        x, y = (each.to(self.device) for each in batch)
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(x).squeeze(1), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self) -> None:
        for epoch in range(self.config.epochs):
            losses = []
            for batch in self.loader:
                losses.append(self.step(batch))
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.5f}")

    def save(self, path: str) -> None:
        torch.save({"model": self.model.state_dict(), "config": self.config}, path)


if __name__ == "__main__":
    torch.manual_seed(7)
    trainer = Trainer(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)), Config())
    trainer.fit()
    trainer.save("trainer.pt")
