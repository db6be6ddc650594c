"""A figure that the host works out after every step, for longer than the GPU's work lasts.

Fixed: after every fiftieth.
"""

import time

import torch
from device_parts import IS_FIXED, for_a_while, make_layers


def work_out(seconds):
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(1000))
    return total


model = make_layers(8, 4096, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
for step in for_a_while():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not IS_FIXED or step % 50 == 0:
        work_out(0.030)
