"""Packing: samples of a source into archives, with an index.

An archive gets its name when it is on disk; then the rows of its samples are put into the journal.
A later run with the same settings keeps every archive whose rows are there and whose files have
not changed, and makes the others. The index comes last, and with it the journal goes away.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from stoker.data.block import Block
from stoker.data.formats import SUFFIX_OF, writer
from stoker.data.index import INDEX_NAME, IndexWriter, Shard, replacing
from stoker.data.packing import journal
from stoker.data.packing.fill import Filler
from stoker.data.packing.journal import Share, open_journal, read_blocks
from stoker.data.packing.order import Order, Progress, Settings, Tell
from stoker.data.packing.stripe import stripe
from stoker.data.packing.work import Work
from stoker.data.packing.writeback import written_early
from stoker.data.sources.arrays import Rows
from stoker.data.sources.source import NO_HINTS, Source, find_source
from stoker.errors import DataError, FileError

AGAIN = "then give the same command again: it goes on where it was"
# These know where the parts lie when they are finished.
LATE = ("lmdb",)


class Packed(NamedTuple):
    """What packing has made."""

    samples: int
    bytes: int
    shards: int
    kept_shards: int
    skipped: int


def pack(
    source_path: Path,
    out: Path,
    settings: Settings,
    workers: int = 1,
    tell: Tell = lambda _: None,
) -> Packed:
    """Pack a source into a folder, or go on with it."""
    return pack_order(Order(source_path, out, settings, NO_HINTS, workers, tell))


def pack_order(order: Order) -> Packed:
    """Pack a source as a whole."""
    source = find_source(order.source, order.hints)
    _refuse_inside(order.source, order.out)
    with refusing(order.out), open_journal(order.out, order.facts()) as folder:
        stripe(order.out)
        with ExitStack() as stack:
            work = Work(source, order, folder, stack)
            work.refuse_repeated()
            filler = stack.enter_context(closing(work.filler()))
            packer = Packer(order, folder)
            shards, kept = packer.run(filler)
        _refuse_none(order.source, shards)
        rows = [rows_path(folder, number) for number, _ in enumerate(shards)]
        facts = index_facts(order.settings, source)
        samples = write_index(order.out, rows, shards, source.label_names, facts)
    shutil.rmtree(order.out / journal.NAME, ignore_errors=True)
    return Packed(samples, sum(each.size for each in shards), len(shards), kept, source.skipped)


def pack_share(order: Order, share: Share) -> Packed:
    """Pack one share of a source; `join` makes a data set of all of them."""
    source = find_source(order.source, order.hints)
    _refuse_inside(order.source, order.out)
    facts = order.facts(share.of)
    with refusing(order.out), open_journal(order.out, facts, share) as folder, ExitStack() as stack:
        stripe(order.out)
        work = Work(source, order, folder, stack)
        start, end = work.bounds(folder.parent, share.of)[share.number - 1 : share.number + 1]
        # The last one takes whatever there is: also what has come since they were planned.
        stop = end if share.number < share.of else None
        filler = stack.enter_context(closing(work.filler(start, stop)))
        packer = Packer(order, folder, share)
        shards, kept = packer.run(filler)
        done = {"shards": shards, "samples": packer.samples, "skipped": source.skipped,
                "label_names": source.label_names, "facts": index_facts(order.settings, source),
                "first": work.first, "following": work.following}  # fmt: skip
        with replacing(folder / journal.DONE) as file:
            file.write(json.dumps(done).encode())
    return Packed(
        packer.samples, sum(each.size for each in shards), len(shards), kept, source.skipped
    )


def plan_shares(order: Order, count: int) -> None:
    """Note what the shares are, so that not each of them has to find out."""
    source = find_source(order.source, order.hints)
    _refuse_inside(order.source, order.out)
    facts = order.facts(count)
    with refusing(order.out), open_journal(order.out, facts) as folder, ExitStack() as stack:
        stripe(order.out)
        Work(source, order, folder, stack).bounds(folder, count)


def join(out: Path) -> Packed:
    """Make a data set of the shares that are packed, if they all are."""
    folder = out / journal.NAME
    plan = journal.read_json(folder / journal.PLAN)
    if plan is None or not plan.get("shares"):
        raise FileError(
            f"`{out}` has no shares to join",
            why="it was not packed with --slurm or --share, or it is joined already",
            fix=f"stoker verify {out}",
        )
    shares = [Share(number, plan["shares"]) for number in range(1, plan["shares"] + 1)]
    done = {each: journal.read_json(folder / each.folder / journal.DONE) for each in shares}
    missing = [each.number for each, found in done.items() if found is None]
    if missing:
        raise FileError(
            f"{len(missing)} of the {len(shares)} shares of `{out}` are not packed yet",
            why="missing: " + ", ".join(map(str, missing[:20])),
            fix=f"stoker pack {plan['source']} {out} --share {missing[0]}/{len(shares)}, "
            "with the settings of the first time",
        )
    found = [each for each in done.values() if each is not None]
    _refuse_changed(plan["source"], out, found)
    shards = [Shard(*each) for share in found for each in share["shards"]]
    with refusing(out):
        rows = [
            rows_path(folder / share.folder, number)
            for share, each in zip(shares, found, strict=True)
            for number, _ in enumerate(each["shards"])
        ]
        journal.clean(out)
        samples = write_index(out, rows, shards, found[0]["label_names"], found[0]["facts"])
    shutil.rmtree(folder, ignore_errors=True)
    size, skipped = sum(each.size for each in shards), found[0]["skipped"]
    return Packed(samples, size, len(shards), len(shards), skipped)


def _refuse_changed(source: str, out: Path, found: list[dict[str, Any]]) -> None:
    """Raise DataError if shares do not begin where others end: each has looked for itself."""
    for one, other in pairwise(found):
        if one["following"] != other["first"] or one["label_names"] != other["label_names"]:
            raise DataError(
                f"`{source}` changed while its shares were packed",
                why="its samples or classes are not the same in all shares: some would be there "
                "twice or not at all",
                fix=f"stoker pack {source} {out} --share K/{len(found)}, once more for each of them:"
                " what is as it was is kept",
            )


class Packer:
    """Writes archive after archive."""

    def __init__(self, order: Order, folder: Path, share: Share | None = None) -> None:
        self._out, self._settings, self._tell = order.out, order.settings, order.tell
        self._folder = folder
        self._prefix = f"{share.number:04d}-" if share else ""
        self.samples = self._bytes = 0

    def run(self, filler: Filler) -> tuple[list[Shard], int]:
        """Return all archives, and how many of them were there already."""
        shards: list[Shard] = []
        while (shard := self._kept(len(shards), filler)) is not None:
            shards.append(shard)
        kept = len(shards)
        filler.begin(self.samples)
        while filler.has_more():
            shards.append(self._write(len(shards), filler))
        return shards, kept

    def _kept(self, number: int, filler: Filler) -> Shard | None:
        """Return an archive that an earlier run has made from files that are still the same."""
        path = rows_path(self._folder, number)
        if not path.exists():
            return None
        end: dict[str, Any] = {}
        is_same = filler.is_same(read_blocks(path, end))
        if not is_same or not end or end["stamp"] != filler.stamp():
            return None
        shard = Shard(*end["shard"])
        place = self._out / shard.name
        if not place.exists() or Shard.of(place) != shard:
            return None
        self.samples += end["samples"]
        self._bytes += shard.size
        return shard

    def _write(self, number: int, filler: Filler) -> Shard:
        name = f"{self._prefix}{number:05d}"
        path = self._out / f"shard-{name}{SUFFIX_OF[self._settings.container]}"
        before = self.samples
        with replacing(rows_path(self._folder, number)) as rows:
            with (
                replacing(path) as file,
                written_early(file),
                closing(writer(self._settings.container, file)) as out,
            ):
                found = self._counted(number, filler.fill(out, name))
                if self._settings.container in LATE:
                    journal.write_blocks(rows, journal.placed(found, out.finish))
                else:
                    journal.write_blocks(rows, found)
                    out.finish()
            shard = Shard.of(path)
            end = {"samples": self.samples - before, "shard": tuple(shard),
                   "stamp": filler.stamp()}  # fmt: skip
            journal.write_end(rows, end)
        self._tell(Progress(self.samples, self._bytes, number + 1))
        return shard

    def _counted(self, number: int, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            yield block
            self.samples += len(block.labels)
            self._bytes += sum(block.sizes)
            self._tell(Progress(self.samples, self._bytes, number))


def rows_path(folder: Path, number: int) -> Path:
    """Return where the rows of an archive are kept until the index is written."""
    return folder / f"{number:05d}.rows"


def write_index(
    out: Path,
    rows: Iterable[Path],
    shards: list[Shard],
    label_names: list[str],
    facts: dict[str, Any],
) -> int:
    """Write the index of all archives; return how many samples there are."""
    names = {each.name for each in shards}
    for path in out.glob("shard-*"):  # Of an earlier run, when the source had more.
        if path.name not in names:
            path.unlink()
    with closing(IndexWriter(out)) as index:
        for number, path in enumerate(rows):
            end: dict[str, Any] = {}
            for block in read_blocks(path, end):
                index.add_block(number, block)
            if not end:
                raise DataError(
                    f"`{path}` is damaged", why="it cannot be read", fix=f"rm {path}, {AGAIN}"
                )
        index.finish(out / INDEX_NAME, shards, label_names, **facts)
    return index.samples


def index_facts(settings: Settings, source: Source | Rows | None) -> dict[str, Any]:
    """Return what the index tells of the data set as a whole."""
    facts: dict[str, Any] = {"container": settings.container, "shuffle": settings.shuffle}
    arrays = getattr(source, "arrays", None)
    if arrays:
        facts["arrays"] = {
            name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in arrays.items()
        }
    return facts


def _refuse_none(source: Path, shards: list[Shard]) -> None:
    """Raise FileError if nothing was packed."""
    if not shards:
        raise FileError(
            f"`{source}` has no samples",
            why="there is no file in it; names that begin with a dot do not count",
            fix="stoker pack FOLDER OUT, with a folder that has files",
        )


def _refuse_inside(source: Path, out: Path) -> None:
    if source.is_dir() and source.resolve() in out.resolve().parents:
        raise FileError(
            f"`{out}` is inside of `{source}`",
            why="what is packed would be packed again",
            fix="a folder elsewhere",
        )


@contextmanager
def refusing(out: Path, again: str = AGAIN) -> Iterator[None]:
    """Say what a refusal of the file system means for packing."""
    try:
        yield
    except OSError as error:
        raise _refused(out, error, again) from None


def _refused(out: Path, error: OSError, again: str) -> FileError:
    fixes = {
        errno.ENOSPC: f"make room, {again}",
        errno.EDQUOT: f"make room or ask for more quota, {again}",
        errno.EFBIG: f"a smaller --shard-size, or raise `ulimit -f`, {again}",
    }
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if name and not Path(name).is_relative_to(out):
        return FileError(
            f"cannot read `{name}`", why=error.strerror or str(error), fix=f"put it right, {again}"
        )
    return FileError(
        f"cannot write to `{out}`",
        why=error.strerror or str(error),
        fix=fixes.get(error.errno or 0, "choose another place"),
    )
