"""float(), numpy(), loss.data, running mean by hand, time per epoch; dataset size that no rank count divides."""
import time
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
rng = np.random.default_rng(0)
X = rng.normal(size=(240, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [3.0]], dtype=np.float32))
torch.manual_seed(0)
ds = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))
dl = DataLoader(ds, batch_size=24, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.02)
crit = torch.nn.L1Loss()
running = None
for epoch in range(3):
    t0 = time.time()
    losses = np.zeros(len(dl))
    for i, batch in enumerate(dl):
        xb, yb = batch
        opt.zero_grad()
        out = net(xb)
        loss = crit(out, yb)
        loss.backward()
        opt.step()
        losses[i] = float(loss)
        running = loss.data if running is None else 0.9 * running + 0.1 * loss.data
        err = loss.detach().numpy()
    print("epoch %d loss %.5f running %.5f last %.5f" % (epoch, losses.mean(), running, err))
