import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Learner:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.losses = []

    def one_batch(self, xb, yb):
        self.pred = self.net(xb)
        self.loss = nn.functional.mse_loss(self.pred, yb)
        self.loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        self.losses.append(self.loss.item())

    def fit(self, dl, epochs):
        for epoch in range(epochs):
            for xb, yb in dl:
                self.one_batch(xb, yb)
            print(f"epoch {epoch} loss {sum(self.losses[-len(dl):]) / len(dl):.5f} last {self.loss:.5f}")

torch.manual_seed(0)
dl = DataLoader(TensorDataset(torch.randn(96, 5), torch.randn(96, 2)), batch_size=24, shuffle=True)
learn = Learner(nn.Linear(5, 2), 0.05)
learn.fit(dl, 2)
