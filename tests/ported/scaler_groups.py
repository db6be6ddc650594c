import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

def train_one_epoch(model, loader, criterion, optimizer, scaler, device, epoch, use_amp):
    model.train()
    running_loss, running_corrects, n = 0.0, 0, 0
    for step, (inputs, labels) in enumerate(loader, 1):
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast(device_type=device.type, dtype=torch.bfloat16, enabled=use_amp):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        scaler.step(optimizer)
        scaler.update()
        preds = outputs.argmax(dim=1)
        running_loss += loss.item() * inputs.size(0)
        running_corrects += torch.sum(preds == labels.data).item()
        n += inputs.size(0)
        if step % 3 == 0:
            print(f"epoch {epoch} step {step}/{len(loader)} grad norm {grad_norm:.4f}")
    return running_loss / n, running_corrects / n

@torch.no_grad()
def validate(model, loader, criterion, device):
    model.eval()
    running_loss, running_corrects = 0.0, 0
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        running_loss += criterion(outputs, labels).item() * inputs.size(0)
        running_corrects += torch.sum(outputs.argmax(1) == labels).item()
    return running_loss / len(loader.dataset), running_corrects / len(loader.dataset)

if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    X, y = torch.randn(320, 20), torch.randint(0, 4, (320,))
    X[torch.arange(320), y] += 2
    train_loader = DataLoader(TensorDataset(X[:256], y[:256]), batch_size=64, shuffle=True)
    val_loader = DataLoader(TensorDataset(X[256:], y[256:]), batch_size=64)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW([
        {"params": model[0].parameters(), "lr": 1e-2},
        {"params": model[2].parameters(), "lr": 5e-2},
    ])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    use_amp = device.type == "cuda"
    scaler = GradScaler(device.type, enabled=use_amp)
    for epoch in range(3):
        train_loss, train_acc = train_one_epoch(model, train_loader, criterion, optimizer, scaler, device, epoch, use_amp)
        val_loss, val_acc = validate(model, val_loader, criterion, device)
        scheduler.step()
        print(f"{epoch} {train_loss:.4f} {train_acc:.4f} {val_loss:.4f} {val_acc:.4f}")
