"""Lines of the user's source files, as long as they are what they were when the run began."""

from __future__ import annotations

from pathlib import Path

from stoker.units import printable

# A source file larger than this was not written by hand.
MAX_SOURCE_BYTES = 2 << 20


class Source:
    """The text behind the lines of a run that began at `start`."""

    def __init__(self, start: float | None) -> None:
        self._start = start
        self._files: dict[str, list[str] | None] = {}

    def line(self, file: str, number: int) -> str | None:
        """Return one line without its indent, empty where it cannot be read; None if it has changed."""
        if file not in self._files:
            self._files[file] = self._read(file)
        lines = self._files[file]
        if lines is None:
            return None
        return printable(lines[number - 1].strip()) if 0 < number <= len(lines) else ""

    def _read(self, file: str) -> list[str] | None:
        try:
            path = Path(file)
            told = path.stat()
            if not path.is_file() or told.st_size > MAX_SOURCE_BYTES:
                return []
            if self._start is not None and told.st_mtime > self._start:
                return None
            return path.read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            return []
