"""Files as samples: all below a folder, or those that a list names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from stoker.data import spill
from stoker.data.sample import File, Sample, split_name
from stoker.errors import DataError

# So many missing files are named, the others counted.
MAX_NAMED = 5


@dataclass
class FolderSource:
    """All files below a folder, sorted; hidden ones are left out."""

    root: Path
    label_names: list[str]
    may_repeat: bool = False
    skipped: int = 0
    # Each part is a file of its own.
    is_files: bool = True

    def samples(self) -> Iterator[Sample]:
        """Yield every sample, folder by folder."""
        self.skipped = 0
        labels = {name: label for label, name in enumerate(self.label_names)}
        yield from self._below(str(self.root), "", labels, ())

    def _below(
        self, folder: str, prefix: str, labels: dict[str, int], above: tuple[object, ...]
    ) -> Iterator[Sample]:
        stat = os.stat(folder)  # noqa: PTH116
        here = (stat.st_dev, stat.st_ino)
        if here in above:  # A link that leads back up.
            return
        label = labels.get(prefix.partition("/")[0]) if prefix else None
        folders: list[str] = []
        for key, names in _groups(spill.sort(self._names(folder, folders))):
            files = tuple([File(name[len(key) + 1 :], f"{folder}/{name}") for name in names])
            yield Sample(prefix + key, files, label)
        for name in sorted(folders):
            yield from self._below(f"{folder}/{name}", f"{prefix}{name}/", labels, (*above, here))

    def _names(self, folder: str, folders: list[str]) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    self.skipped += 1
                elif entry.is_file():
                    yield _marked(name)
                elif entry.is_dir():
                    folders.append(name)
                elif os.path.exists(entry.path):  # noqa: PTH110
                    self.skipped += 1  # A device or a pipe has no bytes to keep.
                else:  # A link to nothing: the reader says so.
                    yield _marked(name)


def _marked(name: str) -> str:
    """Return a name with a zero for the dot that ends the key: such names sort by their keys.

    >>> sorted(map(_marked, ["a.txt", "a-b", "a", "a."]))
    ['a', 'a\\x00txt', 'a-b', 'a.']
    """
    if name[-1] == "." and name.index(".") == len(name) - 1:
        return name
    return name.replace(".", "\0", 1)


def _groups(marked: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield keys, and the names of their files, of names that are in order."""
    last = ""
    names: list[str] = []
    for each in marked:
        key = each.partition("\0")[0]
        if key != last:
            if names:
                yield last, names
            last, names = key, []
        names.append(each.replace("\0", ".", 1))
    if names:
        yield last, names


@dataclass
class ListSource:
    """The files that a list names, one a line, in its order."""

    path: Path
    # The folder that the names begin at: that of the list, unless it came from a pipe.
    place: Path
    # Held open while the list is in use, as it has no name.
    file: object = None
    label_names: list[str] = field(default_factory=list)
    may_repeat: bool = True
    skipped: int = 0
    is_files: bool = True

    def __post_init__(self) -> None:
        refuse_missing(
            str(self.path) if self.file is None else "-",
            ((line, path) for line, _, path in self._names()),
        )

    def samples(self) -> Iterator[Sample]:
        """Yield every sample; neighbours with one key are one sample."""
        yield from grouped((name, path, None) for _, name, path in self._names())

    def _names(self) -> Iterator[tuple[int, str, str]]:
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if name := line.rstrip("\r\n"):
                    yield number, name, f"{self.place}/{name}" if name[0] != "/" else name


def refuse_missing(table: str, files: Iterable[tuple[int, str]]) -> None:
    """Raise DataError if a file that a list names is not there, with the lines."""
    missing: list[str] = []
    count = total = 0
    fix = "names begin at the folder that the list is in: mend them, or leave the lines out"
    for line, path in files:
        total += 1
        if not os.path.exists(path):  # noqa: PTH110  millions of paths
            count += 1
            if len(missing) < MAX_NAMED:
                missing.append(f"line {line}: {path}")
                if "\\" in path and os.path.exists(path.replace("\\", "/")):  # noqa: PTH110
                    fix = "the names have backslashes, as on Windows: write / in their place"
    if count:
        more = f"; and {count - len(missing):,} more" if count > len(missing) else ""
        raise DataError(
            f"{count:,} of the {total:,} files that `{table}` names cannot be found",
            why="; ".join(missing) + more,
            fix=fix,
        )


def grouped(rows: Iterable[tuple[str, str, int | None]]) -> Iterator[Sample]:
    """Yield samples of names, paths and labels; neighbours with one key are one sample."""

    def key(row: tuple[str, str, int | None]) -> str:
        return split_name(_inside(row[0]))[0]

    for name, group in groupby(rows, key=key):
        members = list(group)
        files = tuple(File(split_name(each)[1], path) for each, path, _ in members)
        labelled = [(each, label) for each, _, label in members if label is not None]
        _refuse_two_labels(name, labelled)
        yield Sample(name, files, labelled[0][1] if labelled else None)


def _refuse_two_labels(key: str, labelled: list[tuple[str, int]]) -> None:
    for name, label in labelled:
        if label != labelled[0][1]:
            raise DataError(
                f"`{labelled[0][0]}` and `{name}` have different labels",
                why=f"they are parts of one sample, `{key}`: a key is a name up to its first dot",
                fix="names that differ before their first dot, or the same label for both",
            )


def _inside(name: str) -> str:
    """Return a path without what leads out of a folder."""
    return "/".join(each for each in name.split("/") if each not in ("", ".", ".."))
