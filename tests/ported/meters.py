"""AverageMeter objects, as in the ImageNet example; a warm-up by hand."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter(object):
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).float().mean() * 100.0


def adjust_learning_rate(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * min(1.0, (step + 1) / 5)


def train(train_loader, model, criterion, optimizer, epoch):
    losses = AverageMeter("Loss")
    top1 = AverageMeter("Acc@1")
    model.train()
    for i, (images, target) in enumerate(train_loader):
        adjust_learning_rate(optimizer, epoch * len(train_loader) + i)
        output = model(images)
        loss = criterion(output, target)
        acc1 = accuracy(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Epoch [{epoch}] loss {losses.avg:.5f} acc {top1.avg:.2f}")


def main():
    torch.manual_seed(8)
    x = torch.randn(256, 8)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    loader = torch.utils.data.DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    for epoch in range(3):
        train(loader, model, criterion, optimizer, epoch)


if __name__ == "__main__":
    main()
