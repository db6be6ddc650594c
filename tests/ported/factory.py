"""Model, optimizer and loaders made by functions that return them together."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, width), nn.ReLU())
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


def make_model(device):
    model = Net(18)
    model.apply(init)
    return model.to(device)


def init(m):
    if isinstance(m, nn.Linear):
        nn.init.constant_(m.bias, 0.1)


def make_optimizer(model):
    return torch.optim.AdamW(
        [
            {"params": model.body.parameters(), "lr": 1e-3},
            {"params": model.head.parameters(), "lr": 1e-2},
        ],
        weight_decay=0.01,
    )


def setup(device):
    model = make_model(device)
    optimizer = make_optimizer(model)
    return model, optimizer


def train_one_epoch(model, loader, optimizer, device):
    total_loss, total = 0.0, 0
    for batch in loader:
        x, y = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        bs = x.shape[0]
        total_loss += loss.item() * bs
        total += bs
    return total_loss / total


def main():
    torch.manual_seed(3)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    x = torch.randn(200, 9)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=48, shuffle=True)
    model, optimizer = setup(device)
    n_params = sum(p.numel() for p in model.parameters())
    print("parameters:", n_params)
    for epoch in range(3):
        mean = train_one_epoch(model, loader, optimizer, device)
        print(f"[{epoch}] loss: {mean:.6f} lr: {optimizer.param_groups[0]['lr']}")


if __name__ == "__main__":
    main()
