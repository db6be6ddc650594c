#!/usr/bin/env python3
# A character model, as small as it gets.
import math
import torch, torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

text = ("the furnace burns while the stoker sings and the ship goes on over the sea " * 12)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
itos = {i: c for c, i in stoi.items()}

class CharDataset(Dataset):
    def __init__(self, text, block):
        self.data = torch.tensor([stoi[c] for c in text]); self.block = block
    def __len__(self): return 512
    def __getitem__(self, i):
        chunk = self.data[i:i + self.block + 1]
        return chunk[:-1], chunk[1:]

class CharRNN(nn.Module):
    def __init__(self, vocab, hidden):
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(vocab, hidden)
        self.rnn = nn.LSTM(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)
    def forward(self, x, state=None):
        h, state = self.rnn(self.emb(x), state)
        return self.out(h), state
    def init_hidden(self, n):
        w = next(self.parameters())
        return (w.new_zeros(1, n, self.hidden), w.new_zeros(1, n, self.hidden))

def sample(model, start="the ", n=10):
    model.eval()
    ids = [stoi[c] for c in start]
    state = None
    with torch.no_grad():
        for _ in range(n):
            logits, _ = model(torch.tensor([ids]))
            ids.append(int(logits[0, -1].argmax()))
    model.train()
    return "".join(itos[i] for i in ids)

if __name__ == '__main__':
    torch.manual_seed(1337)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    loader = DataLoader(CharDataset(text, 16), batch_size=32, shuffle=True, drop_last=True)
    model = CharRNN(len(chars), 24).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(2):
        total_loss, n = 0., 0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            hidden = model.init_hidden(x.size(0))
            logits, _ = model(x, hidden)
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            total_loss += loss.item() * x.size(0)
            n += x.size(0)
            step += 1
            if step % 4 == 0:
                print(f'step {step} loss {loss.item():.4f} ppl {math.exp(loss.item()):.3f}')
        print(f'epoch {epoch}: {total_loss / n:.4f}, {n} sequences')
        print(sample(model))
