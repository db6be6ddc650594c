"""Archives as sources: those of others, and data sets that are packed already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from stoker.data.classes import class_of
from stoker.data.formats import Member, damaged, scan
from stoker.data.index import Index, Part
from stoker.data.npy import npy_head
from stoker.data.sample import File, Sample, is_hidden


@dataclass
class ArchiveSource:
    """The files of an archive, in its order."""

    path: Path
    label_names: list[str] = field(default_factory=list)
    leaves_hidden: bool = False
    may_repeat: bool = True
    skipped: int = 0

    def samples(self) -> Iterator[Sample]:
        """Yield every sample; neighbours with one key are one sample."""
        self.skipped = 0
        path, labels = str(self.path), {name: at for at, name in enumerate(self.label_names)}
        for key, group in groupby(self._members(), key=lambda each: each.key):
            members = list(group)
            files = tuple(
                File(each.extension, path, each.offset, each.size, each.packed, each.crc)
                for each in members
            )
            yield Sample(key, files, labels.get(class_of(key), members[0].label))

    def _members(self) -> Iterator[Member]:
        for member in scan(self.path):
            if self.leaves_hidden and is_hidden(member.key):
                self.skipped += 1
            else:
                yield member


class PackedSource:
    """A data set that is packed already."""

    def __init__(self, path: Path) -> None:
        folder, self.may_repeat, self.skipped = path.parent, False, 0
        self.index = Index.open(path)
        self.index.check_shards(folder)
        self.paths = [str(folder / each.name) for each in self.index.shards]
        self.label_names = list(self.index.label_names)
        self.arrays: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (each["dtype"], tuple(each["shape"]))
            for name, each in self.index.header.get("arrays", {}).items()
        }
        # An array has its head once in the archive; each sample's file has its own.
        self._heads = {name: npy_head(*each) for name, each in self.arrays.items()}

    def samples(self) -> Iterator[Sample]:
        """Yield every sample, without what packing had added."""
        for i in range(len(self.index)):
            yield self._sample(i)

    def named(self, key: str) -> Sample:
        """Return one sample. Raises KeyError."""
        return self._sample(self.index.find(key))

    def path_of(self, part: Part, i: int) -> str:
        """Return the archive that a part is in."""
        if part.shard >= len(self.paths):
            raise damaged(self.index.path, f"`{self.index.key(i)}` is in no archive")
        return self.paths[part.shard]

    def _sample(self, i: int) -> Sample:
        files = []
        for part in self.index.parts(i):
            place = self.path_of(part, i)
            if not part.made:
                head = self._heads.get(part.extension, b"")
                files.append(
                    File(part.extension, place, part.offset, part.size, None, part.crc, head)
                )
        return Sample(self.index.key(i), tuple(files), self.index.label(i))
