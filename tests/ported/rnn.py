"""A recurrent network with a hidden state made by a method of the model, and padding in collate."""
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Tagger(nn.Module):
    def __init__(self, words=20, hidden=12):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(words, hidden, padding_idx=0)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 2)

    def init_hidden(self, size):
        return torch.zeros(1, size, self.hidden)

    def forward(self, x, h):
        y, h = self.rnn(self.embed(x), h)
        return self.out(y.mean(1))


def collate(batch):
    words, tags = zip(*batch)
    return pad_sequence([torch.tensor(each) for each in words], batch_first=True), torch.tensor(tags)


random.seed(4)
torch.manual_seed(4)
DATA = []
for _ in range(128):
    words = [random.randrange(1, 20) for _ in range(9)]
    DATA.append((words, int(sum(words) > 90)))
model = Tagger()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(DATA, batch_size=16, shuffle=True, collate_fn=collate)
for epoch in range(2):
    correct = total = 0
    for words, tags in loader:
        h = model.init_hidden(words.size(0))
        optimizer.zero_grad()
        scores = model(words, h)
        loss = criterion(scores, tags)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        correct += (scores.argmax(1) == tags).sum().item()
        total += tags.size(0)
    print(epoch, "loss", round(loss.item(), 5), "accuracy", correct / total)
