"""Accelerate around a plain loop."""

import torch
from accelerate import Accelerator
from told import INPUTS, OUTPUTS, RATE, ROWS, STEPS, rows, tell
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
rank, world = accelerator.process_index, accelerator.num_processes
net = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
torch.nn.init.zeros_(net.weight)
data = TensorDataset(*map(torch.tensor, rows()))
model, optimizer, loader = accelerator.prepare(
    net,
    torch.optim.SGD(net.parameters(), lr=RATE),
    DataLoader(data, batch_size=ROWS // world, shuffle=True),
)
for _ in range(STEPS):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
tell(rank, world, net.weight.detach().flatten())
accelerator.end_training()
