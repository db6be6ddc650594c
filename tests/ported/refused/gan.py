import torch
import torch.nn as nn
from torch.utils.data import DataLoader

G, D = nn.Linear(2, 4), nn.Linear(4, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
for real in DataLoader(torch.randn(64, 4), batch_size=8):
    d_loss = (D(G(torch.randn(8, 2)).detach()) - D(real)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = -D(G(torch.randn(8, 2))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
