"""What is noted of a PyTorch loader: how it is set up, and which folder its data set reads."""

from __future__ import annotations

import os

from .lines import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

SETTINGS = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
# What data sets call the folder that they read, and the files in it; torchvision's name first.
FOLDERS = ("root", "root_dir", "data_dir", "data_root", "img_dir", "image_dir", "images_dir",
           "folder", "directory", "path")  # fmt: skip
FILES = ("paths", "files", "image_paths", "img_paths", "file_paths", "filenames", "samples",
         "images")  # fmt: skip
# The trainers of libraries that read loaders, by their modules.
TRAINERS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
}
# A Subset holds the dataset that it is a part of, and that may be one, too; so it is with samplers.
MAX_DEPTH = 4


def loader_facts(loader: Any) -> dict[str, object]:
    """Return what a report says about a loader."""
    facts: dict[str, object] = {name: getattr(loader, name, None) for name in SETTINGS}
    # Accelerate, and with it the Trainer of Hugging Face, gives the loader a sampler of batches.
    facts["batch_size"] = facts["batch_size"] or getattr(loader.batch_sampler, "batch_size", None)
    facts["dataset"] = type(loader.dataset).__name__
    facts["root"] = find_root(loader.dataset)
    # Workers would each read the whole of such a dataset, unless it shares itself out.
    facts["is_iterable"] = getattr(loader, "_dataset_kind", 0) == 1
    facts["batches"] = None if facts["is_iterable"] else _batches(loader)
    return facts


def find_trainer(frame: FrameType | None) -> str | None:
    """Return the library whose trainer has called this; None where the loop is the user's own."""
    while frame is not None:
        found = TRAINERS.get(str(frame.f_globals.get("__name__")))
        if found is not None:
            return found
        frame = frame.f_back
    return None


def _batches(loader: Any) -> int | None:
    """Return how many batches an epoch has; None where code of the user's own would have to tell.

    That may do anything, such as drawing random numbers. A loader that was asked for the length of an
    iterable dataset would warn of each batch beyond it.
    """
    asked = loader
    for _ in range(MAX_DEPTH):
        code = getattr(getattr(type(asked), "__len__", None), "__code__", None)
        if code is not None and is_users(code.co_filename):
            return None
        held = getattr(asked, "__dict__", {})
        inner = held.get("batch_sampler")
        asked = held.get("sampler") if inner is None else inner
    try:
        return len(loader)
    except TypeError:
        return None


def find_root(dataset: Any) -> str | None:
    """Return the folder that a dataset reads, where one of its attributes says so."""
    for _ in range(MAX_DEPTH):
        # What is a property may do anything, and is not asked.
        held = getattr(dataset, "__dict__", {})
        for name in FOLDERS:
            folder = _path(held.get(name))
            if folder is not None and os.path.isdir(folder):
                return folder
        for name in FILES:
            if (folder := _common(held.get(name))) is not None:
                return folder
        dataset = held.get("dataset")
    return None


def _common(files: Any) -> str | None:
    """Return the folder that the first and the last file of a list are in."""
    if type(files) not in (list, tuple) or not files:
        return None
    # Some lists have the label beside the file.
    ends = [
        _path(each[0] if type(each) is tuple and each else each) for each in (files[0], files[-1])
    ]
    if None in ends or not os.path.isfile(str(ends[0])):
        return None
    return os.path.commonpath([os.path.dirname(str(each)) for each in ends])


def _path(value: Any) -> str | None:
    if not isinstance(value, (str, os.PathLike)):
        return None
    try:
        return os.path.abspath(os.fsdecode(value))
    except (TypeError, ValueError):  # a path of the user's own kind
        return None
