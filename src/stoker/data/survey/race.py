"""A race: some files of a folder read one by one, against the same bytes packed.

The archive lies on the same file system, and goes away in the end. Both sides are read by one
thread, in an order drawn by chance, in turns; what the kernel holds of them is dropped before each
turn where that works. What it knows of names stays: a training that begins cold opens files more
slowly than this.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.data.loading.dataset import open as open_data
from stoker.data.mounts import is_networked
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.errors import FileError, StokerError

FILES, BYTES = 500, 256 << 20
ROUNDS = 5
BATCH = 64


@dataclass(frozen=True)
class Race:
    """What was measured: files a second on both sides, in each round."""

    files: int
    bytes: int
    # Whether their bytes came from the disk; unknown where the file system does not tell.
    is_cold: bool | None
    plain: tuple[float, ...]
    packed: tuple[float, ...]
    # Of those that were tried.
    unreadable: tuple[str, ...] = ()

    @property
    def gains(self) -> list[float]:
        """How many times as fast the packed side was, each round by itself."""
        return [fast / slow for slow, fast in zip(self.plain, self.packed, strict=True)]


def race(folder: Path, names: Sequence[str], limit_s: float = 10.0, seed: int = 0) -> Race:
    """Read files and their packed bytes in turns, for about so long. Raises FileError."""
    begun = time.monotonic()
    found, unreadable = _readable(names, begun + limit_s / 3)
    if not found:
        raise FileError(
            f"no file of `{folder}` could be read",
            why=unreadable[0] if unreadable else "none was drawn",
            fix="check the permissions",
        )
    with tempfile.TemporaryDirectory(prefix=".stoker-doctor-", dir=_place(folder)) as place:
        out = _packed(found, Path(place))
        _settle(found)
        plain, packed = _Side(), _Side()
        chance = random.Random(seed)
        for number in range(ROUNDS):
            if number > 1 and time.monotonic() - begun > limit_s:
                break
            _drop([*found, *_archives(out)])
            plain.run(partial(_read_files, chance.sample(list(found), len(found))))
            packed.run(partial(_read_packed, out, chance))
    size = sum(found.values())
    fetched = min(plain.fetched, packed.fetched) / len(plain.times)
    return Race(
        files=len(found),
        bytes=size,
        # Without any answer from a server's file system nothing is known.
        is_cold=None if not fetched and is_networked(folder) else fetched >= max(1, size / 2),
        plain=tuple(len(found) / each for each in plain.times),
        packed=tuple(len(found) / each for each in packed.times),
        unreadable=tuple(unreadable),
    )


class _Side:
    """How long each round of one side took, and what came from the disk."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.fetched = 0

    def run(self, read: Callable[[], float]) -> None:
        before = _fetched()
        self.times.append(read())
        self.fetched += _fetched() - before


def _readable(names: Sequence[str], end: float) -> tuple[dict[Path, int], list[str]]:
    """Return files that can be read, with their sizes: not more than is quick to read."""
    found: dict[Path, int] = {}
    unreadable = []
    left = BYTES
    for name in names:
        if len(found) >= FILES or (found and (time.monotonic() > end or left <= 0)):
            break
        if "\n" in name:  # A list of files has one a line.
            continue
        try:
            with Path(name).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size <= left:
                    found[Path(name).absolute()] = len(file.read(size))
                    left -= size
        except OSError as error:
            unreadable.append(f"`{name}`: {error.strerror or error}")
    return found, unreadable


def _place(folder: Path) -> Path:
    """Return where a temporary archive may be on the same file system: beside the folder, or in it."""
    home = folder.resolve()
    for each in (home.parent, home):
        with suppress(OSError):
            if each.stat().st_dev == home.stat().st_dev and os.access(each, os.W_OK | os.X_OK):
                return each
    raise FileError(
        f"nothing can be measured in `{folder}`",
        why="neither it nor the folder above it can be written to",
        fix="ask for a copy of a part of it, and look at that",
    )


def _packed(names: Iterable[Path], place: Path) -> Path:
    listed, out = place / "files.txt", place / "packed"
    # Parts of one sample are neighbours in the order of names.
    listed.write_bytes(b"\n".join(map(os.fsencode, sorted(names))))
    pack(listed, out, Settings())
    return out


def _archives(out: Path) -> list[Path]:
    return sorted(out.glob("shard-*"))


def _drop(names: Iterable[Path]) -> None:
    """Let the kernel forget the bytes of these files."""
    for name in names:
        with suppress(OSError), name.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _settle(names: Iterable[Path]) -> None:
    """Bring what was written of late to disk: before that, the kernel forgets nothing."""
    for name in names:
        with suppress(OSError), name.open("rb", buffering=0) as file:
            os.fdatasync(file.fileno())


def _fetched() -> int:
    """Return how many bytes this process has had from disks, not from the kernel's memory."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(each for each in lines if each.startswith("read_bytes:")).split()[1])
    return 0


def _read_files(names: Iterable[Path]) -> float:
    begun = time.perf_counter()
    for name in names:
        with suppress(OSError), name.open("rb", buffering=0) as file:
            file.read()
    return time.perf_counter() - begun


def _read_packed(out: Path, chance: random.Random) -> float:
    # Opened anew: of a file that is mapped the kernel forgets nothing.
    data = open_data(out, decode=False)
    order = chance.sample(range(len(data)), len(data))
    begun = time.perf_counter()
    for at in range(0, len(order), BATCH):
        for sample in data.__getitems__(order[at : at + BATCH]):
            for part in sample.values():
                if isinstance(part, memoryview):
                    bytes(part)  # What is mapped is read only now.
    return time.perf_counter() - begun


def try_race(folder: Path, names: Sequence[str], limit_s: float) -> Race | StokerError:
    """Return what was measured, or why nothing could be."""
    try:
        return race(folder, names, limit_s)
    except StokerError as error:
        return error
    except OSError as error:
        return FileError(
            f"nothing could be measured in `{folder}`",
            why=error.strerror or str(error),
            fix="make room, and try again",
        )
