"""PyTorch on one GPU, or on the CPU: where the other PyTorch examples start from.

Here:          stoker run examples/torch_single.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 1 --time 0:15:00 examples/torch_single.py
"""

import argparse

import torch
from fashion_mnist import read_images
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def make_model() -> nn.Module:
    """Return a small network that learns the same on any number of ranks.

    Dropout and batch norm would differ. ReLU and the largest of a pool have kinks, at which the
    rounding of a sum decides which way the training goes.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * 5 * 5, 10),
    )  # fmt: skip


def read_data(part: str, count: int) -> TensorDataset:
    """Return pictures with one channel, and their classes."""
    images, labels = read_images(part, count)
    return TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels))


def count_right(model: nn.Module, data: TensorDataset, device: torch.device) -> int:
    """Return how many pictures the model puts into the right class."""
    with torch.inference_mode():
        return sum(
            int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
            for images, labels in DataLoader(data, batch_size=1000)
        )


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained weights go")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = read_data("train", args.images)
    order = RandomSampler(data, generator=torch.Generator())
    loader = DataLoader(data, batch_size=args.batch, sampler=order, drop_last=True)

    step = 0
    for epoch in range(args.epochs):
        # The order of DistributedSampler, so that all examples train alike.
        order.generator.manual_seed(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.every == 0:
                print(f"step {step} loss {loss.item():.6f}", flush=True)

    test = read_data("t10k", args.images)
    print(f"accuracy {count_right(model, test, device) / len(test):.4f}")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
