from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logger = logging.getLogger(__name__)


@dataclass
class TrainConfig:
    lr: float = 0.05
    batch_size: int = 32
    max_epochs: int = 3
    save_every: int = 1
    snapshot_path: str = "snapshot.pt"
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    history: list[float] = field(default_factory=list)


class MyTrainDataset(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[index]


class Trainer:
    def __init__(self, model: nn.Module, train_data: DataLoader, val_data: DataLoader, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
        self.config = config
        self.model = model.to(config.device)
        self.train_data = train_data
        self.val_data = val_data
        self.optimizer = optimizer
        self.epochs_run = 0
        if Path(config.snapshot_path).exists():
            self._load_snapshot(config.snapshot_path)

    def _load_snapshot(self, path: str) -> None:
        snapshot = torch.load(path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = nn.functional.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch: int) -> None:
        b_sz = len(next(iter(self.train_data))[0])
        print(f"Epoch {epoch} | Batchsize: {b_sz} | Steps: {len(self.train_data)}")
        self.model.train()
        running = 0.0
        for source, targets in self.train_data:
            source = source.to(self.config.device)
            targets = targets.to(self.config.device)
            running += self._run_batch(source, targets)
        print(f"train {running / len(self.train_data):.6f}")

    def _validate(self) -> float:
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for source, targets in self.val_data:
                source, targets = source.to(self.config.device), targets.to(self.config.device)
                total += nn.functional.mse_loss(self.model(source), targets, reduction="sum").item()
                count += targets.numel()
        return total / count

    def _save_snapshot(self, epoch: int) -> None:
        snapshot = {"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.config.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.config.snapshot_path}")

    def train(self, max_epochs: int) -> None:
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            val = self._validate()
            self.config.history.append(val)
            print(f"val {val:.6f}")
            if epoch % self.config.save_every == 0:
                self._save_snapshot(epoch)


def load_train_objs() -> tuple[Dataset, Dataset, nn.Module, torch.optim.Optimizer]:
    train_set = MyTrainDataset(256)
    val_set = MyTrainDataset(50)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return train_set, val_set, model, optimizer


def prepare_dataloader(dataset: Dataset, batch_size: int, shuffle: bool = True) -> DataLoader:
    return DataLoader(dataset, batch_size=batch_size, pin_memory=False, shuffle=shuffle)


def main(config: TrainConfig) -> None:
    torch.manual_seed(0)
    train_set, val_set, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(train_set, config.batch_size)
    val_data = prepare_dataloader(val_set, config.batch_size, shuffle=False)
    trainer = Trainer(model, train_data, val_data, optimizer, config)
    trainer.train(config.max_epochs)


if __name__ == "__main__":
    main(TrainConfig())
