"""A survey of a folder: how many files, how large, on which file system; what packing would make.

Names are counted, sizes are asked of a random part of them only: on a shared file system each size
is a question to a server. The walk ends after a while, however many files there are.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.data.formats import format_of_name
from stoker.data.index import INDEX_NAME
from stoker.data.mounts import file_system
from stoker.data.packing import journal
from stoker.data.packing.order import DEFAULT_SHARD_BYTES
from stoker.data.sources.source import find_source
from stoker.data.survey.quota import Quota, read_quota
from stoker.errors import FileError, StokerError

# So many files, drawn evenly from all that were seen, are asked for their size.
ASKED = 2_000
# The upper ends of the histogram.
BINS = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 30)
# Below this mean size, and from this number of files on, packing is worth it.
SMALL_FILE, MANY_FILES = 10 << 20, 1_000
# A tar file has a head of this many bytes for each file, and fills the last block.
BLOCK = 512
# More folders are not remembered, only counted.
MAX_FOLDERS = 500_000
# A reader is quick to open this many archives.
MAX_SHARDS = 500


@dataclass(frozen=True)
class Survey:
    """What is in a folder."""

    path: Path
    file_system: str
    # Seen, and expected in all: more if the walk ended early.
    files: int
    expected_files: int
    folders: int
    is_whole: bool
    # Of the files that were asked.
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    # Left out by `stoker pack`, or in its way.
    hidden: int
    broken_links: int
    unreadable: tuple[str, ...]
    classes: int
    is_packed: bool
    is_unfinished: bool
    free_bytes: int
    quota: Quota | None

    @property
    def is_exact(self) -> bool:
        """Whether every file was seen and asked for its size."""
        return self.is_whole and len(self.sizes) == self.files

    @property
    def mean_size(self) -> float:
        """Of a file."""
        return sum(self.sizes) / max(1, len(self.sizes))

    @property
    def bytes(self) -> int:
        """Of all files."""
        return round(self.mean_size * self.expected_files)

    @property
    def packed_bytes(self) -> int:
        """Of all archives: heads, full blocks and a part for the label where there are classes."""
        extra = 2 * BLOCK if self.classes else 0
        each = [BLOCK - (-size // BLOCK) * BLOCK + extra for size in self.sizes]
        return round(sum(each) / max(1, len(each)) * self.expected_files)

    @property
    def shard_bytes(self) -> int:
        """How large an archive should be: 1 GiB, or more if there would be very many."""
        size = DEFAULT_SHARD_BYTES
        while self.packed_bytes > size * MAX_SHARDS:
            size *= 4
        return size

    @property
    def shards(self) -> int:
        """How many archives there would be."""
        return max(1, -(-self.packed_bytes // self.shard_bytes))

    @property
    def has_archives(self) -> bool:
        """Whether all that is here are archives, which somebody else has packed."""
        return all(format_of_name(name) for name in self.names)

    @property
    def is_worth(self) -> bool:
        """Whether these are many small files."""
        is_many = self.expected_files >= MANY_FILES and self.mean_size < SMALL_FILE
        return is_many and self.is_plain

    @property
    def is_plain(self) -> bool:
        """Whether nobody has packed these files yet."""
        return not (self.is_packed or self.is_unfinished or self.has_archives)

    def histogram(self) -> list[tuple[int | None, float]]:
        """Return the share of files below each size, and of those above all."""
        ends: list[int | None] = [*BINS, None]
        counts = [0] * len(ends)
        for size in self.sizes:
            counts[sum(size >= end for end in BINS)] += 1
        return [(end, count / len(self.sizes)) for end, count in zip(ends, counts, strict=True)]


def survey(path: Path, limit_s: float = 10.0, seed: int = 0) -> Survey:
    """Look at a folder for at most about so long. Raises FileError if there are no files."""
    _refuse(path)
    walk = _Walk(path, limit_s, random.Random(seed))
    try:
        walk.run()
        free = os.statvfs(path)
    except OSError as error:
        raise FileError(
            f"cannot read `{path}`", why=error.strerror or str(error), fix="check the permissions"
        ) from None
    asked = list(_sizes(walk.drawn, time.monotonic() + limit_s))
    if not asked:
        raise _empty(path, walk)
    return Survey(
        path=path,
        file_system=file_system(path),
        files=walk.files,
        expected_files=walk.expected_files,
        folders=walk.folders,
        is_whole=walk.is_whole,
        sizes=tuple(size for _, size in asked),
        names=tuple(name for name, _ in asked),
        hidden=walk.hidden,
        broken_links=walk.broken_links,
        unreadable=tuple(walk.unreadable),
        classes=_count_classes(path),
        is_packed=(path / INDEX_NAME).exists(),
        is_unfinished=(path / journal.NAME).exists(),
        free_bytes=free.f_bavail * free.f_frsize,
        quota=read_quota(path, file_system(path)),
    )


def _refuse(path: Path) -> None:
    if path.is_dir():
        return
    is_there = os.path.lexists(path)
    raise FileError(
        f"`{path}` is no folder" if is_there else f"`{path}` does not exist",
        why="a folder with files is looked at" if is_there else "there is no such folder",
        fix=f"stoker ls {path}, if it is an archive" if is_there else "check the name",
    )


def _empty(path: Path, walk: _Walk) -> FileError:
    found = [
        f"{count:,} {what}"
        for count, what in (
            (walk.hidden, "hidden entries"),
            (walk.broken_links, "links that lead nowhere"),
            (len(walk.unreadable), "folders that cannot be read"),
        )
        if count
    ]
    if not walk.is_whole:
        return FileError(
            f"no file of `{path}` was met",
            why=f"the time was over after {walk.folders:,} folders",
            fix=f"stoker doctor --limit 10m {path}",
        )
    return FileError(
        f"`{path}` has no files that can be read",
        why="there are " + ", ".join(found) if found else "it is empty",
        fix="name the folder that holds the samples",
    )


class _Walk:
    """Counts files folder by folder, in an order drawn by chance, and draws some of them evenly.

    Folders that are left when the time is over hold what the others do, as far as one can know.
    """

    def __init__(self, root: Path, limit_s: float, chance: random.Random) -> None:
        self.files = self.folders = self.hidden = self.broken_links = 0
        self.unreadable: list[str] = []
        self.drawn: list[str] = []
        # Why not all was seen: the time was over, or there were folders that nobody remembers.
        self._is_over, self._forgotten = False, 0
        self._waiting = [str(root)]
        self._seen: set[tuple[int, int]] = set()
        self._device: int | None = None
        self._end, self._chance = time.monotonic() + limit_s, chance

    @property
    def expected_files(self) -> int:
        """How many files there are, if the folders that are left are as the others."""
        whole = self.folders + len(self._waiting) + self._forgotten
        return round(self.files * whole / max(1, self.folders))

    @property
    def is_whole(self) -> bool:
        """Whether everything was seen."""
        return not self._is_over and not self._forgotten

    def run(self) -> None:
        """Look at folders until there are no more, or no more time."""
        while self._waiting and not self._is_over:
            at = self._chance.randrange(len(self._waiting))
            self._waiting[at], self._waiting[-1] = self._waiting[-1], self._waiting[at]
            folder = self._waiting.pop()
            try:
                self._look(folder)
            except FileNotFoundError:
                continue  # Somebody removes it just now.
            except OSError:
                if not self.folders:  # The folder that was asked for.
                    raise
                self.unreadable.append(folder)
            self._is_over = self._is_over or bool(self._waiting and time.monotonic() > self._end)
        # Any beginning of what was drawn is to be drawn evenly, too.
        self._chance.shuffle(self.drawn)

    def _look(self, folder: str) -> None:
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in self._seen:  # A link to a folder that was seen.
            return
        if found.st_dev != self._device:
            self._device = found.st_dev
            if not os.statvfs(folder).f_blocks:
                return  # The kernel's own, as /proc: nothing there is data, and some of it blocks.
        with os.scandir(folder) as entries:
            self._seen.add((found.st_dev, found.st_ino))
            self.folders += 1
            for number, entry in enumerate(entries):
                self._count(entry)
                # The first folder is looked at a little, however slow it is.
                if number % 64 == 63 and time.monotonic() > self._end:
                    self._is_over = True
                    return

    def _count(self, entry: os.DirEntry[str]) -> None:
        if entry.name.startswith("."):
            self.hidden += 1
        elif _is(entry.is_dir):
            if self.folders + len(self._waiting) < MAX_FOLDERS:
                self._waiting.append(entry.path)
            else:
                self._forgotten += 1
        elif _is(entry.is_file):
            self.files += 1
            if len(self.drawn) < ASKED:
                self.drawn.append(entry.path)
            elif (at := self._chance.randrange(self.files)) < ASKED:
                self.drawn[at] = entry.path
        elif entry.is_symlink():
            self.broken_links += 1
        else:
            self.hidden += 1  # A device or a pipe.


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # Links in a circle.
        return False


def _sizes(names: list[str], end: float) -> Iterator[tuple[str, int]]:
    for number, name in enumerate(names):
        if number >= 100 and time.monotonic() > end:
            return
        try:
            found = Path(name).stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield name, found.st_size


def _count_classes(path: Path) -> int:
    try:
        return len(find_source(path).label_names)
    except StokerError:  # What cannot be read is told of anyway.
        return 0
