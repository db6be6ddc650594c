import json
import os
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=2, min_delta=0.0, path="checkpoint.pt"):
        self.patience, self.min_delta, self.path = patience, min_delta, path
        self.counter = 0
        self.best_score = None
        self.early_stop = False
        self.val_loss_min = np.inf

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None or score > self.best_score + self.min_delta:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
            self.counter = 0
        else:
            self.counter += 1
            print(f"EarlyStopping counter: {self.counter} out of {self.patience}")
            if self.counter >= self.patience:
                self.early_stop = True

    def save_checkpoint(self, val_loss, model):
        print(f"Validation loss decreased ({self.val_loss_min:.6f} --> {val_loss:.6f}).  Saving model ...")
        torch.save(model.state_dict(), self.path)
        self.val_loss_min = val_loss


np.random.seed(3)
torch.manual_seed(3)
x = np.random.randn(320, 6).astype("float32")
y = (x ** 2).sum(1, keepdims=True).astype("float32")
train_set = TensorDataset(torch.from_numpy(x[:256]), torch.from_numpy(y[:256]))
valid_set = TensorDataset(torch.from_numpy(x[256:]), torch.from_numpy(y[256:]))
train_loader = DataLoader(train_set, 32, True)
valid_loader = DataLoader(valid_set, 24)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
stopper = EarlyStopping()
avg_train_losses, avg_valid_losses = [], []
for epoch in range(1, 9):
    train_losses, valid_losses = [], []
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data.to(device))
        loss = criterion(output, target.to(device))
        loss.backward()
        optimizer.step()
        train_losses.append(loss.item())
    model.eval()
    for data, target in valid_loader:
        output = model(data.to(device))
        loss = criterion(output, target.to(device))
        valid_losses.append(loss.item())
    train_loss, valid_loss = np.average(train_losses), np.average(valid_losses)
    avg_train_losses.append(train_loss)
    avg_valid_losses.append(valid_loss)
    print(f"[{epoch:>2}] train_loss: {train_loss:.5f} valid_loss: {valid_loss:.5f} lr {optimizer.param_groups[0]['lr']:.4f}")
    scheduler.step(valid_loss)
    stopper(valid_loss, model)
    if stopper.early_stop:
        print("Early stopping")
        break
model.load_state_dict(torch.load("checkpoint.pt"))
with open("history.json", "w") as f:
    json.dump({"train": avg_train_losses, "valid": avg_valid_losses}, f)
