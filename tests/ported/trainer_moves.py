"""Trainer with callbacks, model passed in, moved inside"""
import torch, logging
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
logger = logging.getLogger(__name__)
class Trainer:
    def __init__(self, model, train_loader, val_loader, lr=1e-2, device=None, epochs=2):
        self.device = device or torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
        self.model = model
        self.model.to(self.device)
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.epochs = epochs
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.history = {'train': [], 'val': []}
    def _train_epoch(self, epoch):
        self.model.train()
        epoch_loss = 0
        for batch_idx, (x, y) in enumerate(self.train_loader):
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            out = self.model(x)
            loss = self.criterion(out, y)
            loss.backward()
            self.optimizer.step()
            epoch_loss += loss.item()
        return epoch_loss / len(self.train_loader)
    def _val_epoch(self):
        self.model.eval()
        v = 0
        with torch.no_grad():
            for x, y in self.val_loader:
                v += self.criterion(self.model(x.to(self.device)), y.to(self.device)).item()
        return v / len(self.val_loader)
    def train(self):
        for epoch in range(self.epochs):
            tl = self._train_epoch(epoch)
            vl = self._val_epoch()
            self.history['train'].append(tl); self.history['val'].append(vl)
            print(f"{epoch}: {tl:.5f} {vl:.5f}")
        return self.history
def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    ds = TensorDataset(torch.randn(80, 3), torch.randn(80, 1))
    tl = DataLoader(ds, batch_size=8, shuffle=True)
    vl = DataLoader(ds, batch_size=8)
    t = Trainer(model, tl, vl)
    t.train()
    torch.save(t.model.state_dict(), "m.pt")
if __name__ == '__main__':
    main()
