# Resumes first and moves the model to its device afterwards; the momentum is in the checkpoint.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def resume(path, model, optimizer):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def run(start, until):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(5)
    x = torch.randn(96, 5)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=16)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.95)
    if start:
        resume("late.pt", model, optimizer)
    model = model.to(device)
    for epoch in range(start, until):
        total = 0.0
        for inputs, wanted in loader:
            inputs, wanted = inputs.to(device), wanted.to(device)
            loss = nn.functional.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.6f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "late.pt")


if __name__ == "__main__":
    run(0, 2)
    run(2, 4)
