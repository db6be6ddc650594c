"""Large matrices in bfloat16, whose loss is read every hundredth step: nothing to say of it."""

import torch
from device_parts import for_a_while, make_layers

model = make_layers(8, 8192, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for step in for_a_while():
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(loss.item())
