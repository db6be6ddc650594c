"""Two forward passes a step, a contrastive loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

class Pairs(Dataset):
    def __init__(self, n=256):
        g = torch.Generator().manual_seed(0)
        self.a = torch.randn(n, 6, generator=g)
        self.same = torch.rand(n, generator=g) < 0.5
        noise = torch.randn(n, 6, generator=g)
        self.b = torch.where(self.same[:, None], self.a + 0.1 * noise, noise)
    def __len__(self):
        return len(self.a)
    def __getitem__(self, i):
        return self.a[i], self.b[i], self.same[i].float()

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    def forward(self, a, b):
        return self.net(a), self.net(b)

class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin
    def forward(self, a, b, same):
        d = F.pairwise_distance(a, b)
        return (same * d.pow(2) + (1 - same) * F.relu(self.margin - d).pow(2)).mean()

def run():
    torch.manual_seed(2)
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Pairs(), shuffle=True, batch_size=32)
    net = Encoder().to(dev)
    crit = ContrastiveLoss()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    history = []
    for ep in range(3):
        epoch_loss = 0
        correct = 0
        for a, b, same in loader:
            a, b, same = (t.to(dev) for t in (a, b, same))
            opt.zero_grad()
            ea, eb = net(a, b)
            loss = crit(ea, eb, same)
            loss.backward()
            opt.step()
            with torch.no_grad():
                guess = (F.pairwise_distance(ea, eb) < 0.5).float()
                correct += int((guess == same).sum())
            epoch_loss += loss.detach().cpu().item() * len(a)
        epoch_loss /= len(loader.dataset)
        acc = 100.0 * correct / len(loader.dataset)
        history.append((epoch_loss, acc))
        print("epoch", ep, "loss", round(epoch_loss, 5), "acc", round(acc, 2))
    return history

run()
