"""Pictures that workers decode for a ResNet-50 in bfloat16: as many workers as are asked for.

With `leave=1` the workers are still there when Python ends.
"""

import sys

import torch
from device_parts import for_a_while
from torch.utils.data import DataLoader, Dataset
from torchvision.io import decode_jpeg, encode_jpeg
from torchvision.models import resnet50
from torchvision.transforms import v2

words = {"workers": 2, "height": 375, "batch": 64, "leave": 0}
words.update(
    (name, int(value)) for name, _, value in (word.partition("=") for word in sys.argv[1:])
)
HEIGHT, WIDTH = words["height"], words["height"] * 4 // 3


class Pictures(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        smooth = torch.linspace(0, 200, WIDTH).expand(3, HEIGHT, WIDTH)
        noise = 24 * torch.randn(16, 1, HEIGHT, WIDTH, generator=draw)
        self.files = [encode_jpeg((smooth + each).clamp(0, 255).to(torch.uint8)) for each in noise]
        self.change = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()])

    def __len__(self):
        return 1_000_000

    def __getitem__(self, at):
        return self.change(decode_jpeg(self.files[at % len(self.files)])), at % 1000


loader = DataLoader(
    Pictures(),
    words["batch"],
    num_workers=words["workers"],
    pin_memory=True,
    persistent_workers=True,
)
model = resnet50().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _, (x, y) in zip(for_a_while(), loader, strict=False):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        answer = model(x.to(memory_format=torch.channels_last).float().div(255))
        loss = torch.nn.functional.cross_entropy(answer, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if not words["leave"]:
    del loader
