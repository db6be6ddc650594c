"""Write what a command makes: whole or not at all, never over another file by accident."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stoker.errors import FileError


def check_free(path: Path, *, force: bool) -> None:
    """Raise FileError if something would be overwritten that nobody said may be."""
    if path.exists() and not force and not _is_stream(path):
        raise FileError(
            f"`{path}` exists already",
            why="it would be overwritten",
            fix="--force, or another name",
        )


def write_file(path: Path, text: str, *, force: bool = False) -> None:
    """Write `text` to a temporary name and rename it to `path`; into a device or a pipe at once."""
    check_free(path, force=force)
    raw = text.encode("utf-8", "surrogateescape")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if _is_stream(path):
            path.write_bytes(raw)
            return
        part.write_bytes(raw)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FileError(
            f"cannot write `{path}`", why=error.strerror or str(error), fix="choose another place"
        ) from None


def _is_stream(path: Path) -> bool:
    """Say whether what is written goes through, as with /dev/null, /dev/stdout and pipes."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
