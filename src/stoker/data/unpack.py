"""Unpacking: the files of a data set or an archive, never outside of the folder they go to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.data.checksum import crc32
from stoker.data.formats import format_of_name
from stoker.data.index import replacing
from stoker.data.packing.reading import stream
from stoker.data.sample import File, Sample, join_name
from stoker.data.sources.archive import ArchiveSource, PackedSource
from stoker.data.sources.compressed import CompressedSource
from stoker.data.sources.source import find_packed
from stoker.errors import DataError, FileError, UsageError

NAME_MAX = 255


class Unpacked(NamedTuple):
    """What was written."""

    samples: int
    files: int
    bytes: int


def unpack(path: Path, target: Path, keys: Sequence[str] = (), *, force: bool = False) -> Unpacked:
    """Write every part to a file of its own. Existing files are kept, unless forced."""
    source = find_listed(path)
    if target.exists() and not target.is_dir():
        raise FileError(f"`{target}` is a file", why="files go to a folder", fix="another name")
    samples = files = size = 0
    for sample in _wanted(source, path, keys):
        samples += 1
        for file in sample.files:
            place = _place(target, join_name(sample.key, file.extension), path)
            try:
                _write(sample, file, place, target, force)
            except OSError as error:
                raise FileError(
                    f"cannot write `{place}`",
                    why=error.strerror or str(error),
                    fix="choose another place, or make room",
                ) from None
            files += 1
            size += len(file.head) + file.size
    return Unpacked(samples, files, size)


def find_listed(path: Path) -> PackedSource | ArchiveSource | CompressedSource:
    """Return the samples of anything that can be listed: compressed tars as well."""
    if path.is_file() and format_of_name(path.name) == "compressed":
        return CompressedSource(path)
    return find_packed(path)


def _wanted(
    source: PackedSource | ArchiveSource | CompressedSource, path: Path, keys: Sequence[str]
) -> Iterator[Sample]:
    if not keys:
        yield from source.samples()
        return
    missing = set(keys)
    if isinstance(source, PackedSource):
        for key in dict.fromkeys(keys):
            try:
                found = source.named(key)
            except KeyError:
                continue
            missing.discard(key)
            yield found
    else:
        for sample in source.samples():
            if sample.key in keys:
                missing.discard(sample.key)
                yield sample
    if missing:
        raise UsageError(
            f"there is no sample `{min(missing)}` in `{path}`",
            why="a key is a name up to its first dot",
            fix=f"stoker ls {path}",
        )


def _place(target: Path, name: str, path: Path) -> Path:
    """Return where a file goes; refuse a name that leads elsewhere."""
    steps = name.split("/")
    why = None
    if "\0" in name or any(each in ("", ".", "..") for each in steps):
        why = "it leads out of the folder, or is no name"
    elif any(len(os.fsencode(each)) > NAME_MAX for each in steps):
        why = f"the file system takes {NAME_MAX} bytes between two slashes"
    if why:
        raise DataError(
            f"`{name}` in `{path}` is not written",
            why=why,
            fix=f"stoker unpack {path} DEST KEY …, with the keys that you want",
        )
    return target.joinpath(*steps)


def _write(sample: Sample, file: File, place: Path, target: Path, force: bool) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    inside = place.parent.resolve()
    if not inside.is_relative_to(target.resolve()):
        raise DataError(
            f"`{place}` is not written",
            why=f"a link on the way leads to `{inside}`",
            fix="unpack to an empty folder",
        )
    if not force and (place.exists() or place.is_symlink()):
        raise FileError(
            f"`{place}` exists already",
            why="it would be overwritten",
            fix="--force, or an empty folder",
        )
    crc = 0
    with replacing(place, durable=False) as out:
        out.write(file.head)
        for chunk in stream(file._replace(head=b"")):
            crc = crc32(chunk, crc)
            out.write(chunk)
        if file.crc is not None and crc != file.crc:
            raise DataError(
                f"`{sample.key}` in `{file.path}` is damaged",
                why=f"the checksum of its part `{file.extension}` is wrong",
                fix="copy the archive again from where it came; stoker verify names all that are",
            )
