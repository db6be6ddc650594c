import argparse, os, csv, random
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import Dataset, DataLoader

def get_args():
    p = argparse.ArgumentParser()
    p.add_argument('--bs', type=int, default=40)
    p.add_argument('--epochs', type=int, default=2)
    p.add_argument('--out', default='out')
    p.add_argument('--workers', type=int, default=1)
    return p.parse_args()

def set_seed(s):
    random.seed(s); np.random.seed(s); torch.manual_seed(s)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(s)

class Series(Dataset):
    def __init__(self, n, length=12):
        t = np.linspace(0, 40, n + length)
        self.values = torch.tensor(np.sin(t) + 0.1 * np.cos(7 * t), dtype=torch.float32)
        self.n, self.length = n, length
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return self.values[i:i + self.length].unsqueeze(-1), self.values[i + self.length]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 8, batch_first=True)
        self.fc = nn.Linear(8, 1)
    def forward(self, x):
        return self.fc(self.gru(x)[0][:, -1]).squeeze(-1)

def train_epoch(model, loader, loss_fn, opt, device):
    model.train()
    total = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
    return total / len(loader.dataset)

def valid_epoch(model, loader, loss_fn, device):
    model.eval()
    total, preds = 0, []
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            preds.append(out.cpu())
            total += loss_fn(out, y).item() * len(x)
    return total / len(loader.dataset), torch.cat(preds)

def main(args):
    set_seed(0)
    os.makedirs(args.out, exist_ok=True)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    train_loader = DataLoader(Series(240), batch_size=args.bs, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(Series(50), batch_size=args.bs, num_workers=args.workers)
    model = Model().to(device)
    opt = optim.Adam(model.parameters(), lr=1e-2)
    sched = optim.lr_scheduler.ExponentialLR(opt, 0.9)
    loss_fn = nn.MSELoss()
    best = float('inf')
    with open(os.path.join(args.out, 'log.csv'), 'w', newline='') as f:
        writer = csv.writer(f)
        writer.writerow(['epoch', 'train', 'val'])
        for epoch in range(args.epochs):
            tr = train_epoch(model, train_loader, loss_fn, opt, device)
            va, preds = valid_epoch(model, val_loader, loss_fn, device)
            sched.step()
            writer.writerow([epoch, tr, va])
            f.flush()
            print(f'{epoch}: train {tr:.6f} val {va:.6f} first {preds[0]:.5f}')
            if va < best:
                best = va
                torch.save({'epoch': epoch, 'state': model.state_dict(), 'opt': opt.state_dict()}, os.path.join(args.out, 'best.pt'))
    np.save(os.path.join(args.out, 'preds.npy'), preds.numpy())

if __name__ == '__main__':
    main(get_args())
