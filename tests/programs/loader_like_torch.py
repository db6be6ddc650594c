"""Compares our batches with those of PyTorch's DataLoader over the same data set."""

import sys
import warnings

import torch
from torch.utils.data import DataLoader

import stoker

warnings.simplefilter("error")


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        # A tuple of columns becomes a list in PyTorch.
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and one == other


if __name__ == "__main__":
    path = sys.argv[1]
    for parts in (None, ("raw", "cls"), "raw", "txt", ("raw", "txt")):
        for drop_last in (False, True):
            data = stoker.open(path, parts=parts)
            ours = stoker.Loader(data, 4, drop_last=drop_last, num_workers=2)
            theirs = DataLoader(data, 4, drop_last=drop_last)
            assert len(ours) == len(theirs)
            assert same(list(ours), list(theirs)), (parts, drop_last)
    data = stoker.open(path, parts=("raw", "cls"))
    workers = DataLoader(data, 4, num_workers=2, multiprocessing_context="spawn")
    assert same(list(stoker.Loader(data, 4)), list(workers))
    tensors = torch.utils.data.TensorDataset(torch.arange(20.0))
    assert same(list(stoker.Loader(tensors, 3)), list(DataLoader(tensors, 3)))
    shuffled = torch.cat([labels for _, labels in stoker.Loader(data, 4, shuffle=True)])
    assert sorted(shuffled.tolist()) == sorted(each % 5 for each in range(23))
    # What was kept is not overwritten by what came later.
    kept = list(stoker.Loader(data, 2, num_workers=2))
    assert torch.equal(torch.cat([each for each, _ in kept])[:, 0, 0], torch.arange(23).byte())
    print("same")
