"""Write what a command makes: whole or not at all, never over another file by accident."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.errors import FileError


def check_free(path: Path, *, force: bool) -> None:
    """Raise FileError if something would be overwritten that nobody said may be."""
    if path.exists() and not force:
        raise FileError(
            f"`{path}` exists already",
            why="it would be overwritten",
            fix="--force, or another name",
        )


def write_file(path: Path, text: str, *, force: bool = False) -> None:
    """Write `text` to a temporary name and rename it to `path`."""
    check_free(path, force=force)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text.encode("utf-8", "surrogateescape"))
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FileError(
            f"cannot write `{path}`", why=error.strerror or str(error), fix="choose another place"
        ) from None
