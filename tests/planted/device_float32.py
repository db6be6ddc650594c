"""Large matrices in plain float32. Fixed: in TF32, on the tensor cores."""

import torch
from device_parts import IS_FIXED, for_a_while, make_layers

if IS_FIXED:
    torch.set_float32_matmul_precision("high")
model = make_layers(8, 4096)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(4096, 4096, device="cuda")
for _ in for_a_while():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
