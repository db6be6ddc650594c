"""A run that has nothing to mend: a short pass over held-out data and a checkpoint after each epoch."""

import torch
import torch.nn.functional as F
from reserved_parts import Net, read_words, rows, sgd, train_epoch

words = read_words(epochs=5, batches=150, held_out=10)
loader, held_out = rows(words["batches"]), rows(words["held_out"])
model = Net()
optimizer = sgd(model)
for _ in range(words["epochs"]):
    train_epoch(model, optimizer, loader)
    with torch.no_grad():
        print(sum(F.cross_entropy(model(x), y).item() for x, y in held_out))
    torch.save(model.state_dict(), "checkpoint.pt")
