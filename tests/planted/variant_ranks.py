"""Two ranks of another shape: convolutions or wide layers, and one of four causes in each step."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from variant_parts import Viewer, read_words

words = read_words(cause="wide", fixed=0, steps=70)


def make_model() -> nn.Module:
    if words["cause"] == "uneven":
        return Viewer(24)
    if words["cause"] == "deep":
        return nn.Sequential(*(nn.Linear(96, 96) for _ in range(80)))
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(12)))


def make_batch(rank: int) -> torch.Tensor:
    if words["cause"] == "uneven":
        return torch.randn(24 if words["fixed"] or rank else 48, 3, 64, 64)
    return torch.randn(32, 96 if words["cause"] == "deep" else 512)


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    is_by_hand = words["cause"] == "wide" and not words["fixed"]
    if not is_by_hand:
        cap_mb = 0.02 if words["cause"] == "deep" and not words["fixed"] else 25
        model = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(words["steps"]):
        x = make_batch(rank)
        if words["cause"] == "uneven":
            time.sleep(0.005)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if is_by_hand:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(2)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
