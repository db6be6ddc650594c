"""Checkpoints that are whole or not there: written by the main rank, read by all."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from stoker.errors import FileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.engine.context import Context

# Reading a large folder over the network takes its time.
LATEST_S = 300.0
# A file that is being written grows: nobody writes to one that is so old.
LEFT_S = 3600.0


class Checkpoint:
    """Saves and loads what a training needs to go on."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def save(self, obj: object, path: str | os.PathLike[str], keep: int | None = None) -> None:
        """Write `obj` from the main rank; the others return at once.

        The file appears under its name when it is whole and on the disk. With `keep`, only that
        many of its family up to it stay: files whose names differ in their last number.
        """
        if not self._context.is_main:
            return
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Before: they may be what fills the quota.
            _remove_left(target)
            with temporary.open("wb") as file:
                _write(obj, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            raise FileError(
                f"the checkpoint `{target}` was not written",
                why=error.strerror or str(error),
                fix="free space or quota there, or save to another folder; "
                "the checkpoint before it is untouched",
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        _sync_folder(target.parent)
        if keep is not None:
            files = family(target)
            # Those with higher numbers are of another training: beside them, this one is no older.
            known = files[: files.index(target) + 1] if target in files else []
            for old in known[: -max(1, keep)]:
                with suppress(OSError):
                    old.unlink()

    def load(self, path: str | os.PathLike[str], **options: Any) -> Any:
        """Return what was saved; `options` are torch.load's, tensors come to the CPU by default."""
        try:
            with Path(path).open("rb") as file:
                is_torch = file.read(2) == b"PK"
                file.seek(0)
                if is_torch:
                    return import_module("torch").load(file, **{"map_location": "cpu", **options})
                import pickle

                return pickle.load(file)
        except FileNotFoundError:
            raise FileError(
                f"there is no checkpoint `{os.fspath(path)}`",
                why="it was never saved, or another folder is meant",
                fix="ask checkpoint.latest(path) first: it is None where there is none",
            ) from None

    def latest(self, path: str | os.PathLike[str]) -> str | None:
        """Return the newest of a checkpoint's family, or None; all ranks get the same answer."""
        files = family(Path(path)) if self._context.is_main else []
        return self._context.told_by_main(str(files[-1]) if files else "", LATEST_S) or None


def family(path: Path) -> list[Path]:
    """Return the files whose names differ from this one in their last number, in its order."""
    pattern = _names(path)
    if pattern.groups == 0:
        return [path] if path.exists() else []
    files = _files(path.parent)
    numbered = [(int(match[1]), file) for file in files if (match := pattern.fullmatch(file.name))]
    return [file for _, file in sorted(numbered)]


def _names(path: Path) -> re.Pattern[str]:
    """Return what matches the names of a family, with the number as its group if there is one."""
    found = re.fullmatch(r"(.*?)(\d+)(\D*)", path.stem, re.DOTALL)
    if found is None:
        return re.compile(re.escape(path.name))
    return re.compile(re.escape(found[1]) + r"(\d+)" + re.escape(found[3] + path.suffix))


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remove_left(target: Path) -> None:
    """Remove what processes that were killed have left of the same family, half written."""
    pattern = _names(target)
    for file in _files(target.parent):
        part = re.fullmatch(r"\.(.+)\.\d+\.part", file.name, re.DOTALL)
        if part and pattern.fullmatch(part[1]):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > LEFT_S:
                    file.unlink()


def _write(obj: object, file: IO[bytes]) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            torch.save(obj, file)
        except RuntimeError as error:
            # Of a full disk it says only that positions differ; what the disk said stands behind.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        return
    import pickle

    pickle.dump(obj, file, pickle.HIGHEST_PROTOCOL)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself last; some network file systems cannot, and need not."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
