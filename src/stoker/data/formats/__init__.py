"""The containers: each has a writer that tells where bytes lie, and a scanner of any such archive."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from stoker.data.sample import Content
from stoker.errors import DataError, FileError, UsageError, nearest


class Member(NamedTuple):
    """One part in an archive: its name, and where its bytes are.

    `packed` is the size in the archive if the bytes are compressed there. `label` is known of
    a TFRecord only.
    """

    key: str
    extension: str
    offset: int
    size: int
    crc: int | None = None
    packed: int | None = None
    label: int | None = None


class Place(NamedTuple):
    """Where a writer has put a part."""

    offset: int
    size: int
    crc: int


class Writer(Protocol):
    """Writes one archive."""

    def add(self, key: str, contents: Sequence[Content], label: int | None) -> list[Place]:
        """Write one sample."""

    def finish(self) -> Iterator[int] | None:
        """Write what belongs to the end.

        Where `add` could not know the offsets (they are -1), return those of all parts, in the
        order in which the parts were added.
        """

    def close(self) -> None:
        """Give back what it holds, whole or not."""


# The format of each extension.
SUFFIXES = {
    ".tar": "tar", ".zip": "zip", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord",
    ".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb", ".mdb": "lmdb",
}  # fmt: skip
FORMATS = ("tar", "zip", "tfrecord", "hdf5", "lmdb")
# The extension of what `pack` writes.
SUFFIX_OF = {each: "." + each for each in FORMATS} | {"hdf5": ".h5"}
# Tars that can only be read from their start: the compression of each extension.
COMPRESSED = {
    ".tar.gz": "gz", ".tgz": "gz", ".tar.bz2": "bz2", ".tbz2": "bz2", ".tar.xz": "xz",
    ".txz": "xz", ".tar.zst": "zst", ".tzst": "zst",
}  # fmt: skip
# These keep the label in their own way: it needs no part.
OWN_LABELS = ("tfrecord", "hdf5")


def writer(container: str, file: IO[bytes]) -> Writer:
    """Return a writer of this format."""
    if container == "tar":
        from stoker.data.formats.tar import TarWriter

        return TarWriter(file)
    if container == "zip":
        from stoker.data.formats.zip import ZipWriter

        return ZipWriter(file)
    if container == "hdf5":
        from stoker.data.formats.hdf5 import HDF5Writer

        return HDF5Writer(file)
    if container == "lmdb":
        from stoker.data.formats.lmdb import LMDBWriter

        return LMDBWriter(file)
    from stoker.data.formats.tfrecord import TFRecordWriter

    return TFRecordWriter(file)


def parse_format(text: str) -> str:
    """Read the name of a format."""
    if text not in FORMATS:
        match = nearest(text, FORMATS)
        raise UsageError(
            f"unknown format `{text}`",
            why="known are: " + ", ".join(FORMATS),
            fix=f"--format {match or 'tar'}",
        )
    return text


def format_of_name(name: str) -> str | None:
    """Return the format that a name tells.

    >>> format_of_name("a.TAR"), format_of_name("train.tfrecord-00001-of-00010")
    ('tar', 'tfrecord')
    """
    if re.search(r"\.tfrecords?-\d+-of-\d+$", name):
        return "tfrecord"
    if name == "lock.mdb":  # Stands beside LMDB's data.mdb, and holds nothing.
        return None
    if name.lower().endswith(tuple(COMPRESSED)):
        return "compressed"
    return SUFFIXES.get(Path(name).suffix.lower())


def format_of(path: Path) -> str | None:
    """Return the format of an archive from its name, or from how it begins."""
    known = format_of_name(path.name)
    if known:
        return known
    with path.open("rb") as file:
        head = file.read(512)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return "hdf5"
    return "tar" if head[257:262] == b"ustar" else None


def scan(path: Path) -> Iterator[Member]:
    """Yield the parts of an archive in its order. Raises DataError where it is damaged."""
    try:
        yield from _scanner(format_of(path), path)(path)
    except OSError as error:
        raise FileError(
            f"cannot read `{path}`", why=error.strerror or str(error), fix="check the permissions"
        ) from None


def arrays_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of the parts that are arrays of one shape, if the archive knows them."""
    if format_of(path) != "hdf5":
        return {}
    from stoker.data.formats.hdf5_scan import arrays_of_hdf5

    return arrays_of_hdf5(path)


def _scanner(kind: str | None, path: Path) -> Callable[[Path], Iterator[Member]]:
    if kind == "tar":
        from stoker.data.formats.tar import scan_tar

        return scan_tar
    if kind == "zip":
        from stoker.data.formats.zip import scan_zip

        return scan_zip
    if kind == "tfrecord":
        from stoker.data.formats.tfrecord import scan_tfrecord

        return scan_tfrecord
    if kind == "hdf5":
        from stoker.data.formats.hdf5_scan import scan_hdf5

        return scan_hdf5
    if kind == "lmdb":
        from stoker.data.formats.lmdb_scan import scan_lmdb

        return scan_lmdb
    if kind == "compressed":
        raise DataError(
            f"`{path}` is compressed",
            why="its samples have no place of their own to jump to",
            fix=f"stoker pack {path} OUT",
        )
    raise DataError(
        f"`{path}` is no archive that can be read",
        why=f"none of {', '.join((*SUFFIXES, *COMPRESSED))}, and it does not begin as one",
        fix=f"stoker pack {path} OUT, if it is a list, a table or an array",
    )


def damaged(path: Path, why: str) -> DataError:
    """Return the error of an archive that is not whole."""
    return DataError(
        f"`{path}` is damaged",
        why=why,
        fix="copy it again from where it came, or make it anew",
    )
