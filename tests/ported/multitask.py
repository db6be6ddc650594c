import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.cls = nn.Linear(16, 3)
        self.reg = nn.Linear(16, 1)
    def forward(self, x):
        h = torch.relu(self.body(x))
        return {"cls": self.cls(h), "reg": self.reg(h).squeeze(-1)}

torch.manual_seed(6)
x = torch.randn(128, 8); c = torch.randint(0, 3, (128,)); r = torch.randn(128)
loader = DataLoader(TensorDataset(x, c, r), batch_size=32, shuffle=True)
net = TwoHeads()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
for epoch in range(3):
    sums = {"total": 0.0, "cls": 0.0, "reg": 0.0, "n": 0}
    for xb, cb, rb in loader:
        out = net(xb)
        loss_cls = F.cross_entropy(out["cls"], cb)
        loss_reg = F.mse_loss(out["reg"], rb)
        loss = loss_cls + 0.5 * loss_reg
        opt.zero_grad()
        loss.backward()
        opt.step()
        bs = xb.shape[0]
        sums["total"] += loss.item() * bs
        sums["cls"] += loss_cls.item() * bs
        sums["reg"] += loss_reg.item() * bs
        sums["n"] += bs
    print(epoch, *(f"{k}={v / sums['n']:.5f}" for k, v in sums.items()))
