"""Which file system holds a folder, and which of them many machines share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

# A mapped file is read there page by page, each with an answer from a server.
NETWORK_FILE_SYSTEMS = {
    "lustre", "nfs", "nfs4", "gpfs", "beegfs", "beegfs_nodev", "ceph", "panfs", "orangefs", "pvfs2",
    "cifs", "smb3", "9p", "afs", "wekafs", "daos",
}  # fmt: skip
UNKNOWN = "unknown"


class Mount(NamedTuple):
    """A file system and the folder at which it is seen."""

    device: str
    place: str
    kind: str


def read_mounts() -> list[Mount]:
    """Return what is mounted; nothing where the system does not tell."""
    try:
        return parse_mounts(Path("/proc/mounts").read_text(errors="surrogateescape"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    r"""Return the lines of /proc/mounts.

    >>> parse_mounts("t /my\\040disk tmpfs rw 0 0\n")
    [Mount(device='t', place='/my disk', kind='tmpfs')]
    """
    found = []
    for fields in (line.split(" ") for line in text.splitlines()):
        if len(fields) >= 3:
            place = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n")
            found.append(Mount(fields[0], place, fields[2]))
    return found


def mount_of(folder: Path, mounts: list[Mount] | None = None) -> Mount | None:
    """Return the mount that a folder is on."""
    place, best = folder.resolve(), None
    for each in read_mounts() if mounts is None else mounts:
        # The last of several mounts at one place is the one that is seen.
        if (best is None or len(each.place) >= len(best.place)) and place.is_relative_to(
            each.place
        ):
            best = each
    return best


def file_system(folder: Path) -> str:
    """Return the kind of file system that holds a folder."""
    found = mount_of(folder)
    return UNKNOWN if found is None else found.kind


@lru_cache(maxsize=64)
def is_networked(folder: Path) -> bool:
    """Say whether a folder is on a file system that many machines share."""
    return file_system(folder) in NETWORK_FILE_SYSTEMS
