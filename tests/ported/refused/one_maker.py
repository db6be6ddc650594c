import math
import random
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 3
EPOCHS = 3
BATCH = 64
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)

# toy tabular data, standardised by hand
features = np.random.normal(size=(384, 8)).astype("float32")
logit = features[:, 0] - 0.5 * features[:, 1] + 0.25 * features[:, 2] * features[:, 3]
labels = (logit + 0.3 * np.random.normal(size=384) > 0).astype("float32")
features = (features - features.mean(0)) / features.std(0)
train_x, val_x, test_x = np.split(features, [256, 320])
train_y, val_y, test_y = np.split(labels, [256, 320])


def to_loader(x, y, shuffle=False):
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=BATCH, shuffle=shuffle)


loaders = {
    "train": to_loader(train_x, train_y, shuffle=True),
    "val": to_loader(val_x, val_y),
    "test": to_loader(test_x, test_y),
}


def roc_auc(scores, truth):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    pos = truth.sum()
    neg = len(truth) - pos
    return (ranks[truth == 1].sum() - pos * (pos + 1) / 2) / (pos * neg)


def predict(model, loader):
    model.eval()
    scores, truth = [], []
    with torch.no_grad():
        for x, y in loader:
            scores.extend(torch.sigmoid(model(x.to(device)).squeeze(1)).cpu().tolist())
            truth.extend(y.tolist())
    return np.array(scores), np.array(truth)


def report(name, model):
    scores, truth = predict(model, loaders[name])
    hard = scores > 0.5
    acc = (hard == truth.astype(bool)).mean()
    print("%-5s auc %.4f acc %.4f" % (name, roc_auc(scores, truth), acc))
    return roc_auc(scores, truth)


model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1)).to(device)
groups = [
    {"params": model[0].parameters(), "lr": 5e-3},
    {"params": model[2].parameters(), "lr": 1e-2},
]
optimizer = torch.optim.Adam(groups, weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5 * (1 + math.cos(math.pi * e / EPOCHS)))
loss_fn = nn.BCEWithLogitsLoss()

report("val", model)
best_auc, best_epoch = 0.0, -1
for epoch in range(EPOCHS):
    model.train()
    epoch_loss = 0.0
    seen = 0
    for x, y in loaders["train"]:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x).squeeze(1)
        loss = loss_fn(out, y)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(x)
        seen += len(x)
        sys.stdout.write(f"\repoch {epoch} {100 * seen / len(train_x):5.1f}% loss {epoch_loss / seen:.5f}")
    scheduler.step()
    sys.stdout.write("\n")
    auc = report("val", model)
    if auc > best_auc:
        best_auc, best_epoch = auc, epoch
print(f"best epoch {best_epoch} auc {best_auc:.4f}")
report("test", model)
