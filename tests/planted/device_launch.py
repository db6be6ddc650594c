"""A deep and narrow model: hundreds of kernels of a few microseconds. Fixed: launched as graphs."""

import torch
from device_parts import IS_FIXED, for_a_while
from torch import nn

layers = [layer for _ in range(40) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
model = nn.Sequential(*layers).cuda()
x, y = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
if IS_FIXED:
    model = torch.cuda.make_graphed_callables(model, (x,))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in for_a_while():
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
