"""What is done of a packing so far: a folder beside the archives, which goes away at the end.

For each archive that has its name there is a file with the rows of its samples. Shares that other
processes pack at the same time have a folder each in it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from stoker.data import spill
from stoker.data.block import Block
from stoker.data.index import INDEX_NAME, replacing, sync_folder
from stoker.errors import FileError, StokerError, UsageError

NAME = ".stoker-pack"
PLAN, SHARES, DONE = "plan.json", "shares.json", "done.json"
# Stands for the number of the element in `--share`.
TASK, TASK_VARIABLE = "task", "SLURM_ARRAY_TASK_ID"


class Share(NamedTuple):
    """One part of a packing that several processes do; the first is 1."""

    number: int
    of: int

    @property
    def folder(self) -> str:
        """What it is called in the journal."""
        return f"share-{self.number:04d}"


def parse_share(text: str, env: Mapping[str, str] = os.environ) -> Share:
    """Read `K/N`; as K, `task` is the number of this element of a Slurm array.

    >>> parse_share("2/8"), parse_share("task/8", {"SLURM_ARRAY_TASK_ID": "3"})
    (Share(number=2, of=8), Share(number=3, of=8))
    """
    number, _, of = text.partition("/")
    number = env.get(TASK_VARIABLE, "") if number == TASK else number
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(
            f"`{text}` is no share",
            why=f"a share is K/N, K from 1 to N; `{TASK}/N` is for elements of a Slurm array",
            fix="--share 1/8",
        )
    return Share(int(number), int(of))


def write_blocks(file: IO[bytes], blocks: Iterable[Block]) -> None:
    """Write the samples of an archive."""
    for block in blocks:
        spill.dump(tuple(block), file)


def write_end(file: IO[bytes], end: dict[str, Any]) -> None:
    """Write what stands after the last sample."""
    spill.dump(end, file)


def read_blocks(path: Path, end: dict[str, Any]) -> Iterator[Block]:
    """Yield the samples of an archive, and fill in what stands after the last; nothing if damaged."""
    try:
        with path.open("rb") as file:
            while isinstance(found := spill.load(file), tuple):
                yield Block.load(found)
            end.update(found)
    except (OSError, ValueError, EOFError, TypeError, MemoryError, OverflowError):
        end.clear()


def placed(blocks: Iterable[Block], finish: Callable[[], Iterator[int] | None]) -> Iterator[Block]:
    """Yield the samples of a container that knows some offsets at its end only.

    Until then such an offset is -1, or below by as much as the bytes begin after it.
    """
    with tempfile.TemporaryFile() as file:
        write_blocks(file, blocks)
        spill.dump(None, file)
        offsets = finish()
        file.seek(0)
        while (found := spill.load(file)) is not None:
            block = Block.load(found)
            yield block if offsets is None else _placed(block, offsets)


def _placed(block: Block, offsets: Iterator[int]) -> Block:
    both = zip(block.offsets, offsets, strict=False)
    return block._replace(
        offsets=array("q", [known if known >= 0 else late - 1 - known for known, late in both])
    )


@contextmanager
def open_journal(out: Path, wanted: dict[str, Any], share: Share | None = None) -> Iterator[Path]:
    """Give the journal of this packing to one process, after everything that speaks against it."""
    journal = out / NAME
    refuse_taken(out, journal)
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    own = journal / share.folder if share else journal
    is_begun = own.exists()
    try:
        own.mkdir(exist_ok=True, parents=True)
    except OSError:
        if is_new:
            out.rmdir()
        raise
    descriptor = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _lock(descriptor, out)
    try:
        write_plan(out, journal, wanted)
        for folder in ((own,) if share else (out, own)) if is_begun else ():
            clean(folder)
        yield own
    except StokerError:
        if not share:
            _leave(out, journal)
        raise
    finally:
        os.close(descriptor)


def write_plan(out: Path, journal: Path, wanted: dict[str, Any]) -> None:
    """Note what is being packed, or refuse to go on with something else."""
    plan = journal / PLAN
    if plan.exists():
        _refuse_other(out, json.loads(plan.read_bytes()), wanted)
    else:
        with replacing(plan) as file:
            file.write(json.dumps(wanted).encode())


def refuse_taken(out: Path, journal: Path) -> None:
    """Raise FileError if something else is where the archives would go."""
    if out.exists() and not out.is_dir():
        raise FileError(f"`{out}` is a file", why="samples go to a folder", fix="another name")
    if (out / INDEX_NAME).exists():
        shutil.rmtree(journal, ignore_errors=True)
        raise FileError(
            f"`{out}` is packed already",
            why=f"there is an {INDEX_NAME} in it",
            fix=f"stoker verify {out}, or another name",
        )
    if out.exists() and not journal.exists() and any(out.iterdir()):
        raise FileError(
            f"`{out}` is not empty",
            why="what is in it was not made by stoker pack, and is not touched",
            fix="another name, or an empty folder",
        )


def refuse_interrupted(path: Path) -> None:
    """Raise FileError if a folder holds a packing that was not finished."""
    if (path / NAME).exists() and not (path / INDEX_NAME).exists():
        plan = path / NAME / PLAN
        # A run that was killed at its very beginning has none.
        source = json.loads(plan.read_bytes() if plan.exists() else b"{}").get("source", "SRC")
        raise FileError(
            f"`{path}` is packed in part only",
            why="packing was interrupted, or goes on",
            fix=f"stoker pack {source} {path}, as it was given: it goes on where it was",
        )


def clean(folder: Path) -> None:
    """Remove what a killed run has left half-written."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)
    sync_folder(folder)


def _refuse_other(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    other = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if other:
        raise FileError(
            f"`{out}` holds an unfinished data set of other settings",
            why="; ".join(
                f"{each}: {found.get(each)} then, {wanted.get(each)} now" for each in other
            ),
            fix=f"the same settings, to go on with it; or rm -r {out}, to begin anew",
        )


def _lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return  # Some file systems know no locks.
        os.close(descriptor)
        raise FileError(
            f"`{out}` is being packed by another process",
            why="two would write the same files",
            fix="wait for it, or take another name",
        ) from None


def _leave(out: Path, journal: Path) -> None:
    """Remove the journal again if nothing was done: the folder is as it was."""
    if not any(out.glob("shard-*")) and not any(journal.glob("*.rows")):
        shutil.rmtree(journal, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a note of the journal, if it is there."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else None
