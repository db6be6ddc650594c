import torch
import torch.nn as nn

data = torch.randn(64, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    x = data[torch.randint(0, 64, (8,))]
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
