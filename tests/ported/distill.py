"""A frozen teacher beside the student."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
teacher = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
for p in teacher.parameters():
    p.requires_grad_(False)
student = nn.Linear(6, 3)
x = torch.randn(128, 6)
with torch.no_grad():
    y = teacher(x).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
opt = torch.optim.Adam(student.parameters(), lr=0.01)
T = 2.0
for epoch in range(3):
    running = 0.0
    for xb, yb in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(xb) / T, dim=1)
        logits = student(xb)
        kd = F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
        ce = F.cross_entropy(logits, yb)
        loss = 0.7 * kd + 0.3 * ce
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print(f"epoch {epoch}: {running / len(loader):.5f} kd {kd.item():.5f} ce {ce.item():.5f}")
