"""Saves all that people save after some steps; with `load`, loads it and prints the same."""

import copy
import pickle
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(sys.argv[1])
X = torch.linspace(0, 1, 8)


class Net(nn.Module):
    """A model of the user's."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))


def save():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = DataLoader(TensorDataset(torch.rand(32, 8), torch.rand(32, 1)), batch_size=2)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    torch.save(model, FOLDER / "model.pt")
    torch.save(copy.deepcopy(model), FOLDER / "copy.pt")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "scheduler": scheduler.state_dict()}, FOLDER / "state.pt")
    torch.jit.script(model).save(FOLDER / "scripted.pt")
    torch.jit.trace(model, X).save(FOLDER / "traced.pt")
    torch.export.save(torch.export.export(model, (X,)), FOLDER / "exported.pt2")
    strict = torch.export.export(model, (X,), strict=True)
    torch.export.save(strict, FOLDER / "exported_strictly.pt2")
    (FOLDER / "optimizer.pkl").write_bytes(pickle.dumps(optimizer))
    (FOLDER / "loader.pkl").write_bytes(pickle.dumps(loader))
    print(model(X).item().hex(), copy.deepcopy(optimizer).state_dict()["state"][0]["step"])


def load():
    assert "stoker" not in sys.modules
    model = torch.load(FOLDER / "model.pt", weights_only=False)
    optimizer = pickle.loads((FOLDER / "optimizer.pkl").read_bytes())
    others = [
        torch.load(FOLDER / "copy.pt", weights_only=False),
        torch.jit.load(FOLDER / "scripted.pt"),
        torch.jit.load(FOLDER / "traced.pt"),
        torch.export.load(FOLDER / "exported.pt2").module(),
        torch.export.load(FOLDER / "exported_strictly.pt2").module(),
        Net(),
    ]
    others[-1].load_state_dict(torch.load(FOLDER / "state.pt")["model"])
    assert all(torch.allclose(each(X), model(X)) for each in others)
    assert len(pickle.loads((FOLDER / "loader.pkl").read_bytes())) == 16
    optimizer.step()
    print(model(X).item().hex(), optimizer.state_dict()["state"][0]["step"])


if __name__ == "__main__":
    load() if "load" in sys.argv else save()
