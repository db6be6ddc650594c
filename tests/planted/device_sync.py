"""A model that reads a figure of every layer in every step. Fixed: the figures stay on the GPU."""

import torch
from device_parts import IS_FIXED, for_a_while
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(24))

    def forward(self, x):
        figures = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            figure = x.abs().mean()
            figures.append(figure.detach() if IS_FIXED else figure.item())
        return x, figures


model = Net().to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
# Enough rows that a layer takes the GPU longer than the host takes to launch it.
x = torch.randn(6144, 2048, device="cuda", dtype=torch.bfloat16)
for _ in for_a_while():
    answer, figures = model(x)
    loss = answer.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
