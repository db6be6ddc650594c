"""Large batches from memory that is not pinned. Fixed: from pinned memory, without waiting."""

import torch
from device_parts import IS_FIXED, for_a_while, make_layers
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 4096, 2048


class Rows(Dataset):
    """Batches that are as good as made: only bringing them to the GPU takes time."""

    def __init__(self):
        self.batch = torch.randn(BATCH, WIDTH)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, at):
        return self.batch + at % 7


loader = DataLoader(Rows(), batch_size=None, num_workers=6, pin_memory=IS_FIXED)
model = make_layers(10, WIDTH, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _, batch in zip(for_a_while(), loader, strict=False):
    x = batch.to("cuda", non_blocking=IS_FIXED).bfloat16()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
