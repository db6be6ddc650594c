"""Sequences of other lengths, padded by a collate function; accuracy over tokens."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

class Tags(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = 6
            w = torch.randint(1, 20, (length,), generator=g)
            self.items.append((w, w % 3))
    def __len__(self): return len(self.items)
    def __getitem__(self, i): return self.items[i]

def collate(batch):
    words, tags = zip(*batch)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=-100)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 8, padding_idx=0)
        self.out = nn.Linear(8, 3)
    def forward(self, w):
        return self.out(self.emb(w))

def main():
    torch.manual_seed(0)
    train_loader = DataLoader(Tags(128, 0), batch_size=16, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(Tags(40, 1), batch_size=16, collate_fn=collate)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    best_acc = 0
    for epoch in range(3):
        model.train()
        n_correct, n_tokens, losses = 0, 0, []
        for words, tags in train_loader:
            logits = model(words)
            loss = criterion(logits.view(-1, 3), tags.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            mask = tags != -100
            n_correct += ((logits.argmax(-1) == tags) & mask).sum().item()
            n_tokens += mask.sum().item()
        model.eval()
        c, t = 0, 0
        with torch.no_grad():
            for words, tags in dev_loader:
                p = model(words).argmax(-1)
                m = tags != -100
                c += (p[m] == tags[m]).sum().item()
                t += m.sum().item()
        acc = c / t
        print(f"{epoch} loss {sum(losses) / len(losses):.5f} acc {n_correct / n_tokens:.5f} dev {acc:.5f} tokens {n_tokens}")
        if acc > best_acc:
            best_acc = acc
            torch.save(model.state_dict(), "tagger.pt")
    model.load_state_dict(torch.load("tagger.pt"))

main()
