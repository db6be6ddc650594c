"""Loads weights as from a pretrained model, freezes a part, trains the rest."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, size: int = 10, code: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(size, code)
        self.decoder = nn.Linear(code, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


def load_pretrained(model: AutoEncoder) -> None:
    g = torch.Generator().manual_seed(0)
    state = {name: torch.randn(value.shape, generator=g) / 3 for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def train(model: AutoEncoder, data: DataLoader, epochs: int) -> None:
    for p in model.encoder.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    for epoch in range(epochs):
        for (x,) in data:
            recon = model(x)
            loss = nn.MSELoss()(recon, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}/{epochs}, loss={loss.item():.6f}")


torch.manual_seed(0)
net = AutoEncoder()
load_pretrained(net)
train(net, DataLoader(TensorDataset(torch.randn(64, 10)), batch_size=8, shuffle=False), 2)
torch.save(net, "whole.pt")
