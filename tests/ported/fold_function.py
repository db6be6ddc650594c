import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

K, EPOCHS, BATCH = 3, 2, 16
torch.manual_seed(42)
X = torch.randn(96, 5)
Y = X @ torch.randn(5, 1)
dataset = TensorDataset(X, Y)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train_fold(fold, train_ids, val_ids):
    train_loader = DataLoader(Subset(dataset, train_ids), batch_size=BATCH, shuffle=True)
    val_loader = DataLoader(Subset(dataset, val_ids), batch_size=BATCH)
    model = nn.Linear(5, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    criterion = nn.MSELoss()
    for epoch in range(EPOCHS):
        model.train()
        train_losses = []
        for xb, yb in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(xb.to(device)), yb.to(device))
            loss.backward()
            optimizer.step()
            train_losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            val = sum(criterion(model(xb.to(device)), yb.to(device)).item() for xb, yb in val_loader) / len(val_loader)
        print(f"fold {fold} epoch {epoch} train {sum(train_losses) / len(train_losses):.5f} val {val:.5f}")
    return val


ids = torch.randperm(len(dataset)).tolist()
size = len(ids) // K
scores = []
for fold in range(K):
    val_ids = ids[fold * size:(fold + 1) * size]
    train_ids = ids[:fold * size] + ids[(fold + 1) * size:]
    scores.append(train_fold(fold, train_ids, val_ids))
print(f"mean {sum(scores) / K:.5f}")
