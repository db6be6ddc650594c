"""A progress bar around the loader, and a scheduler that steps with each batch."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
EPOCHS, BATCH = 2, 32
ds = TensorDataset(torch.randn(256, 16), torch.randint(0, 2, (256,)).float())
dl = DataLoader(ds, batch_size=BATCH, shuffle=True, num_workers=0, pin_memory=False)
model = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))
optim = torch.optim.SGD(model.parameters(), lr=0.3)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=0.5, total_steps=EPOCHS * len(dl))
bce = nn.BCEWithLogitsLoss()
for epoch in range(EPOCHS):
    bar = tqdm(dl, desc=f"epoch {epoch}")
    for x, y in bar:
        loss = bce(model(x).squeeze(-1), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        bar.set_postfix(loss=loss.item())
    print(f"epoch {epoch}: loss = {loss:.5f}")
