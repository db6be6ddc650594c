"""A table beside the model that takes all but a few MB of what the job may have; or more.

`STOKER_PLANTED_MEMORY` names the files that tell how much is used, and how much may be.
"""

import os
from pathlib import Path

from reserved_parts import Net, read_words, rows, sgd, train_epoch

CHUNK = 4 << 20
words = read_words(epochs=3, batches=150, share=0.95)
used, limit = (Path(each) for each in os.environ["STOKER_PLANTED_MEMORY"].split(":"))
model = Net()
optimizer = sgd(model)
table = []
for epoch in range(words["epochs"]):
    if epoch == 1:
        most = words["share"] * int(limit.read_text())
        while int(used.read_text()) < most:
            table.append(b"x" * CHUNK)
    train_epoch(model, optimizer, rows(words["batches"]))
