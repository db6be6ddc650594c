"""What packing costs beside GNU tar on the same files, and the memory it takes for millions of names.

    .venv/bin/python benchmarks/pack.py
    .venv/bin/python benchmarks/pack.py --rounds 3 --huge 3 --large 200 --small 2000 --names 100000

Makes its files in a temporary folder. tar and Stoker take turns, each a fresh process, page cache
warm. Stoker's files are on disk when it ends, tar's are not: tar is timed alone, and with a sync of
its one file. The names are simulated: there are no files, and what would be written is counted only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from figures import render_table, spread_of, write_results
from machine import HERE, SRC, describe_machine, plain_environment, render_machine

sys.path.insert(0, str(SRC))
from stoker.data import spill
from stoker.data.formats import Place
from stoker.data.packing import pack, work
from stoker.data.packing.order import Settings
from stoker.data.packing.reading import Read
from stoker.data.sample import Content, File, Sample

# At most so many times as long as tar, and so much memory for ten million names.
BAR, BAR_MB = 1.3, 300
NAMES = 10_000_000
SIZES = {"huge": 12_000_000, "large": 106_000, "small": 8_000}
TAR, SYNCED, OURS = "tar cf", "tar cf, then sync", "stoker pack"


def make_files(folder: Path, count: int, size: int) -> None:
    """Write files of about one size into class folders."""
    data = random.Random(1).randbytes(2 * size)
    for each in range(count):
        path = folder / f"class-{each % 20:02d}/{each:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = size // 2 + each * 7919 % size
        path.write_bytes(data[each % 512 : each % 512 + wanted])


def commands(source: Path, out: Path) -> dict[str, list[str]]:
    """Return what is compared."""
    tar = ["tar", "cf", str(out / "all.tar"), "-C", str(source), "."]
    return {
        TAR: tar,
        SYNCED: ["sh", "-c", f'"$@" && sync {out}/all.tar', "sh", *tar],
        OURS: [sys.executable, "-m", "stoker", "pack", str(source), str(out / "packed")],
    }


def time_once(words: Sequence[str], out: Path) -> tuple[float, float]:
    """Return the seconds that a command takes, and those of the processor."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    env = {**plain_environment(), "PYTHONPATH": str(SRC)}
    subprocess.run(words, check=True, env=env, capture_output=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def turned(names: list[str], number: int) -> list[str]:
    """Return the names with another one first in every round: who is before whom may matter."""
    at = number % len(names)
    return [*names[at:], *names[:at]]


def measure(folder: Path, name: str, count: int, rounds: int) -> dict[str, Any]:
    """Time all commands in turn on one set of files."""
    source, out = folder / name, folder / "out"
    make_files(source, count, SIZES[name])
    os.sync()  # Nothing of this is left to be written while others are timed.
    asked = commands(source, out)
    found: dict[str, list[tuple[float, float]]] = {each: [] for each in asked}
    for number in range(rounds + 1):
        for each in turned(list(asked), number):
            taken = time_once(asked[each], out)
            if number:  # The first round fills the page cache.
                found[each].append(taken)
    shutil.rmtree(source)
    shutil.rmtree(out)
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(found[OURS], found[TAR], strict=True)]
    synced = [ours[0] / theirs[0] for ours, theirs in zip(found[OURS], found[SYNCED], strict=True)]
    return {
        "files": count,
        "seconds": {each: spread_of([s for s, _ in values]) for each, values in found.items()},
        "cpu_s": {each: spread_of([s for _, s in values]) for each, values in found.items()},
        "ratio": spread_of(ratios),
        "ratio_synced": spread_of(synced),
    }


# -- memory


class Names:
    """Files that are not there, as a folder would list them: in no order."""

    def __init__(self, count: int) -> None:
        self.count, self.may_repeat, self.skipped = count, True, 0
        self.label_names: list[str] = []

    def samples(self) -> Iterator[Sample]:
        """Yield each name, sorted as those of a folder are."""
        names = (f"{each * 7919 % self.count:09d}\0jpg" for each in range(self.count))
        for name in spill.sort(names):
            key, _, extension = name.partition("\0")
            yield Sample(key, (File(extension, f"/nowhere/{key}.{extension}"),), None)


class Counter:
    """Writes nothing, and knows where it would be."""

    def __init__(self) -> None:
        self.position = 0

    def add(self, _key: str, contents: Sequence[Content], _label: int | None) -> list[Place]:
        """Count."""
        self.position += 512 + contents[0].size
        return [Place(self.position, contents[0].size, 0)]

    def finish(self) -> None:
        """Write no end."""

    def close(self) -> None:
        """Hold nothing."""


def measure_memory(names: int) -> dict[str, Any]:
    """Pack names without files, shuffled, with all that packing keeps of them."""

    def reads(samples: Iterator[Sample], _workers: int, **_: Any) -> Generator[Read, None, None]:
        for sample in samples:
            yield Read(sample, (Content("jpg", 8000, b"", crc=0),))

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for module, name, value in (
            (pack, "find_source", lambda *_: Names(names)),
            (work, "read_ahead", reads),
            (pack, "writer", lambda *_: Counter()),
        ):
            stack.enter_context(patch.object(module, name, value))
        done = pack.pack(Path("/nowhere"), Path(folder) / "out", Settings(shuffle=1))
    assert done.samples == names
    return {"names": names, "peak_mb": peak_mb(), "seconds": time.perf_counter() - start}


def peak_mb() -> float:
    """Return the most memory that this program has had; getrusage counts who started it, too."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1]) / 1000


# -- the page


def render_page(results: dict[str, Any]) -> str:
    """Return the page that shows the figures."""
    rows = []
    for name, each in results["sets"].items():
        for command, seconds in each["seconds"].items():
            rows.append((
                f"{each['files']:,} files of {SIZES[name] / 1000:,.0f} kB", command,
                f"{seconds.median:.2f} ({seconds.min:.2f} to {seconds.max:.2f})",
                f"{each['cpu_s'][command].median:.2f}",
            ))  # fmt: skip
    ratios = [
        (name, *(f"{each[kind].median:.2f} ({each[kind].min:.2f} to {each[kind].max:.2f})"
                 for kind in ("ratio", "ratio_synced")))
        for name, each in results["sets"].items()
    ]  # fmt: skip
    memory = results["memory"]
    return "\n".join([
        "# Packing beside GNU tar",
        "",
        render_machine(results["machine"]),
        f"{results['rounds']} rounds in turn, page cache warm; medians (least to most).",
        "",
        render_table(("set", "command", "seconds", "processor, s"), rows),
        render_table(("set", f"Stoker to `{TAR}`", f"Stoker to `{SYNCED}`"), ratios),
        f"The bar is {BAR}. Memory for {memory['names']:,} names, shuffled: "
        f"{memory['peak_mb']:.0f} MB in {memory['seconds']:.0f} s; the bar is {BAR_MB} MB for "
        f"{NAMES:,}.",
        "",
        "Stoker computes a checksum of every part, writes the label of each sample beside it and an",
        "index, and waits until all is on disk; tar does none of these. Where others use the processors",
        "as well, it is the time of the processor that counts: Stoker reads and writes at once.",
        "",
    ])  # fmt: skip


def main() -> None:
    """Measure, and write the results beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--huge", type=int, default=120, help="files of 12 MB")
    parser.add_argument("--large", type=int, default=15_000, help="files of 106 kB")
    parser.add_argument("--small", type=int, default=150_000, help="files of 8 kB")
    parser.add_argument("--names", type=int, default=NAMES, help="names without files")
    parser.add_argument("--memory-only", action="store_true", help="print the memory as JSON")
    parser.add_argument("--folder", type=Path, help="where the files are made (default: TMPDIR)")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "pack.json")
    asked = parser.parse_args()
    if asked.memory_only:
        print(json.dumps(measure_memory(asked.names)))
        return
    sets = {}
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for name, count in (
            ("huge", asked.huge), ("large", asked.large), ("small", asked.small),
        ):  # fmt: skip
            sets[name] = measure(Path(folder), name, count, asked.rounds)
    words = [sys.executable, __file__, "--memory-only", "--names", str(asked.names)]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    machine = describe_machine(sys.executable, (), plain_environment())
    results = {"machine": machine, "rounds": asked.rounds, "sets": sets, "memory": json.loads(told)}
    write_results(asked.output, results, render_page(results))


if __name__ == "__main__":
    main()
