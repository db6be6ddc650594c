"""Write what a command makes: whole or not at all, never over another file by accident."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from stoker.errors import FileError

OURS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


def check_free(path: Path, *, force: bool) -> None:
    """Raise FileError if something would be overwritten that nobody said may be."""
    # Path.exists raises where a name is too long.
    if not force and os.path.exists(path) and not _is_stream(path):  # noqa: PTH110
        raise FileError(
            f"`{path}` exists already",
            why="it would be overwritten",
            fix="--force, or another name",
        )


def write_file(path: Path, text: str, *, force: bool = False) -> None:
    """Write `text` to a temporary name and rename it to `path`; into a device or a pipe at once."""
    check_free(path, force=force)
    raw = text.encode("utf-8", "surrogateescape")
    part = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        if _is_stream(path):
            _write_through(path, raw)
            return
        part.write_bytes(raw)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise FileError(
            f"cannot write `{path}`", why=error.strerror or str(error), fix="choose another place"
        ) from None


def _is_stream(path: Path) -> bool:
    """Say whether what is written goes through, as with /dev/null, /dev/stdout and pipes."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _write_through(path: Path, raw: bytes) -> None:
    number = _descriptor(path)
    print(end="", flush=True)  # what was printed before comes before it
    # Opened by its name, a file behind it would be written from its beginning.
    with path.open("wb") if number is None else os.fdopen(os.dup(number), "wb") as file:
        file.write(raw)


def _descriptor(path: Path) -> int | None:
    """Return the number of the file that we have open under this name; None of other names."""
    name = OURS.get(str(path), str(path))
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", name)
    return int(found[1]) if found else None
