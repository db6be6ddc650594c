# torch.compile, channels_last, warm-up by LambdaLR, a checkpoint with config
import os
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2)
        self.conv2 = nn.Conv2d(width, width, 3)
        self.fc = nn.Linear(width, 5)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x)).mean((2, 3))
        return self.fc(x)

def main():
    torch.manual_seed(5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(128, 3, 10, 10)
    y = torch.randint(0, 5, (128,))
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True)
    model = Net().to(device, memory_format=torch.channels_last)
    if os.environ.get("COMPILE") == "1":
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))
    step = 0
    max_steps = 10
    done = False
    while not done:
        for images, labels in loader:
            images = images.to(device, memory_format=torch.channels_last)
            labels = labels.to(device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            warmup.step()
            step += 1
            if not torch.isfinite(loss):
                raise RuntimeError("loss is not finite")
            print(f"step={step:03d} loss={loss.detach():.5f} lr={warmup.get_last_lr()[0]:.4f}")
            if step >= max_steps:
                done = True
                break
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")

if __name__ == "__main__":
    main()
