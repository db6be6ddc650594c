"""A small language model: get_batch over a dataset of windows, cosine schedule by hand, no functions."""
import math

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

block_size, batch_size, max_epochs = 8, 16, 1
text = "stoke the furnace, feed the fire; " * 8
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])


class Windows(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        return data[i : i + block_size], data[i + 1 : i + 1 + block_size]


class GPT(nn.Module):
    def __init__(self, vocab, width=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.zeros(block_size, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, idx, targets=None):
        x = self.block(self.tok(idx) + self.pos)
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


torch.manual_seed(1337)
model = GPT(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
train_dl = DataLoader(Windows(), batch_size=batch_size, shuffle=True)
it = 0
for _ in range(max_epochs):
    for xb, yb in train_dl:
        lr = 1e-3 * 0.5 * (1 + math.cos(math.pi * it / 8))
        for g in optimizer.param_groups:
            g["lr"] = lr
        logits, loss = model(xb, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it % 2 == 0:
            lossf = loss.item()
            print(f"iter {it}: loss {lossf:.4f}, lr {lr:.2e}")
        it += 1
