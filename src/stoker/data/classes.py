"""Classes of a data set that nothing names but its folders: one folder for each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stoker.data.formats import Member
from stoker.data.sample import LABEL, is_hidden, split_name

# Folders of these names are parts of a data set, not classes of it.
NO_CLASSES = {"train", "training", "val", "valid", "validation", "dev", "test", "images", "labels",
              "masks", "annotations", "data"}  # fmt: skip
# So many entries of a folder are looked at to see whether it is a class.
LOOKED_AT = 100
# Archives that keep files in folders.
FILE_ARCHIVES = ("tar", "zip")


def find_classes(root: Path) -> list[str]:
    """Return the names of the classes, if the folder has nothing but one folder for each."""
    names = []
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir() or entry.name.lower() in NO_CLASSES:
                return []
            names.append(entry.name)
    for name in names:
        with os.scandir(root / name) as entries:
            # Samples that tell their labels themselves need no classes.
            if any(
                entry.is_dir() or split_name(entry.name)[1] == LABEL
                for entry, _ in zip(entries, range(LOOKED_AT), strict=False)
            ):
                return []
    return sorted(names) if len(names) > 1 else []


def classes_of(members: Iterable[Member]) -> list[str]:
    """Return the names of the classes, if all files of an archive are in folders side by side.

    >>> classes_of([Member("all/cat/1", "jpg", 0, 1), Member("all/dog/1", "jpg", 0, 1)])
    ['cat', 'dog']
    >>> classes_of([Member("cat/1", "jpg", 0, 1), Member("cat/more/1", "jpg", 0, 1)])
    []
    """
    found: dict[str, set[str]] = {}
    for member in members:
        if is_hidden(member.key):
            continue
        above, _, name = member.key.rpartition("/")[0].rpartition("/")
        found.setdefault(above, set()).add(name)
        is_labelled = member.extension == LABEL or member.label is not None
        if is_labelled or not name or name.lower() in NO_CLASSES or len(found) > 1:
            return []
    names = sorted(set().union(*found.values()))
    return names if len(names) > 1 else []


def class_of(key: str) -> str:
    """Return the folder that a file is in.

    >>> class_of("all/cat/1")
    'cat'
    """
    return key.rpartition("/")[0].rpartition("/")[2]
