import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import TensorDataset, DataLoader, random_split
from tqdm import tqdm

EPOCHS = 2
LR = 0.05
BATCH_SIZE = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check_accuracy(loader, model):
    num_correct = 0
    num_samples = 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            x = x.to(device=DEVICE)
            y = y.to(device=DEVICE)
            scores = model(x)
            _, predictions = scores.max(1)
            num_correct += (predictions == y).sum()
            num_samples += predictions.size(0)
    print(f"Got {num_correct}/{num_samples} with accuracy {float(num_correct)/float(num_samples)*100:.2f}")
    model.train()
    return num_correct / num_samples


def main():
    torch.manual_seed(0)
    data = torch.randn(300, 10)
    target = (data[:, 0] * data[:, 1] > 0).long()
    train_ds, val_ds = random_split(TensorDataset(data, target), [256, 44])
    train_loader = DataLoader(dataset=train_ds, batch_size=BATCH_SIZE, shuffle=True)
    val_loader = DataLoader(dataset=val_ds, batch_size=BATCH_SIZE, shuffle=False)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    model.to(DEVICE)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.AdamW(model.parameters(), lr=LR)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LR, steps_per_epoch=len(train_loader), epochs=EPOCHS)
    for epoch in range(EPOCHS):
        loop = tqdm(train_loader, leave=True)
        mean_loss = []
        for batch_idx, (x, y) in enumerate(loop):
            x, y = x.to(DEVICE), y.to(DEVICE)
            out = model(x)
            loss = criterion(out, y)
            mean_loss.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            # update progress bar
            loop.set_postfix(loss=loss.item(), lr=scheduler.get_last_lr()[0])
        print(f"Mean loss was {sum(mean_loss)/len(mean_loss):.5f}, lr {scheduler.get_last_lr()[0]:.6f}")
        check_accuracy(val_loader, model)


if __name__ == "__main__":
    main()
