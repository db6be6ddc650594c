"""One model on two GPUs of one process: for a model that does not fit on one.

The batch goes through in pieces, so that both GPUs work at a time: while the second half of the
model has one piece, the first half has the next. Without two GPUs both halves share a device.

Here:          stoker run examples/torch_model_parallel.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 2 --time 0:15:00 examples/torch_model_parallel.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torch_single import count_right, make_model, read_data


class TwoDevices(nn.Module):
    """The small network, cut after its first layers."""

    def __init__(self, devices: list[torch.device], pieces: int) -> None:
        super().__init__()
        layers = list(make_model())
        self.devices = devices
        self.pieces = pieces
        self.first = nn.Sequential(*layers[:3]).to(devices[0])
        self.second = nn.Sequential(*layers[3:]).to(devices[1])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Start the next piece on the first device before the second has ended the last one."""
        pieces = iter(images.chunk(self.pieces))
        halfway = self.first(next(pieces)).to(self.devices[1], non_blocking=True)
        ends = []
        for piece in pieces:
            ends.append(self.second(halfway))
            halfway = self.first(piece).to(self.devices[1], non_blocking=True)
        ends.append(self.second(halfway))
        return torch.cat(ends)


def find_devices() -> list[torch.device]:
    """Return two GPUs, or twice what there is."""
    if torch.cuda.device_count() >= 2:
        return [torch.device("cuda", 0), torch.device("cuda", 1)]
    return [torch.device("cuda" if torch.cuda.is_available() else "cpu")] * 2


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pieces", type=int, default=4, help="so many of a batch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained weights go")
    args = parser.parse_args()

    devices = find_devices()
    torch.manual_seed(0)
    model = TwoDevices(devices, args.pieces)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = read_data("train", args.images)
    order = RandomSampler(data, generator=torch.Generator())
    loader = DataLoader(data, batch_size=args.batch, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        order.generator.manual_seed(epoch)
        for images, labels in loader:
            logits = model(images.to(devices[0]))
            loss = nn.functional.cross_entropy(logits, labels.to(devices[1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    whole = nn.Sequential(*model.first, *model.second).to(devices[0])
    print(f"accuracy {count_right(whole, test, devices[0]) / len(test):.4f}")
    if args.save:
        torch.save(whole.state_dict(), args.save)


if __name__ == "__main__":
    main()
