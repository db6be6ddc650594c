"""How fast packed data is read, beside other formats and their readers.

    python benchmarks/data/read.py --folder /scratch/bench --python PEERS/bin/python
    python benchmarks/data/read.py --only large small --rounds 9 --readers stoker FFCV

Makes its data in FOLDER (5 GB with all formats; what is there is used again): 3,000 JPEGs of
106 kB (500 × 375), 400 of 425 kB (1600 × 1200), the 60,000 images of Fashion-MNIST as PNGs of
0.5 kB and as one array. Each reader is a process of its own (readers.py) with `--python`, which
has the peers; those that are missing are named and left out. One after the other each reads for
about a second, round after round, so that whatever else happens on the machine meets all of them;
before that, an epoch of each is compared with the files. What is decoded needs longer windows
(`--only jpeg crop photo png --seconds 1.5`): what was read ahead when one ends is lost. `--path
wids=DIR` puts a folder before the path of one reader: wids needs webdataset 0.2.111, WebDataset a
newer one. "Cold" means that this system has forgotten the files; the disk may remember them.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import mmap
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))
from figures import render_table, spread_of, write_results
from machine import describe_machine, render_machine, stoker_environment
from readers import READERS, Ask

HERE = Path(__file__).parent
FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
LARGE, PHOTOS = 3000, 400
OURS = "stoker"
# No readers, but what a reader can be measured by.
MEASURES = ("one memcpy", "numpy gather", "decoder alone", "our decoder alone")
PACKAGES = (
    "torch", "numpy", "lmdb", "ffcv", "datasets", "webdataset", "litdata", "mosaicml-streaming",
    "h5py", "tfrecord", "simplejpeg", "pillow",
)  # fmt: skip
# A reader that does not answer in this time hangs.
PATIENCE_S, WRITING_S = 90, 900
DECODED, SETTLE_S = ("jpeg", "crop", "photo", "png"), 0.5
INDEXED = 10_000_000
SHARDS = 1000
LOADER_PEERS = (
    "LMDB", "Hugging Face datasets", "files", "h5py", "WebDataset", "wids", "LitData",
    "MosaicML streaming", "tfrecord",
)  # fmt: skip


class Test(NamedTuple):
    """One thing that all readers do in turn."""

    name: str
    ask: Ask
    is_cold: bool = False


class Bar(NamedTuple):
    """Ours against others: at least `times` the best of them."""

    test: str
    what: str
    times: float
    peers: tuple[str, ...] | None = None


def tests_of(workers: int) -> dict[str, list[Test]]:
    """Return the tests of each section."""
    return {
        "large": [
            Test("large, 0", Ask("large")),
            Test(f"large, {workers}", Ask("large", workers)),
            Test("large in order, 0", Ask("large", shuffled=False)),
        ],
        "small": [Test("small, 0", Ask("small")), Test(f"small, {workers}", Ask("small", workers))],
        "arrays": [
            Test("arrays, 0", Ask("arrays")), Test(f"arrays, {workers}", Ask("arrays", workers)),
        ],
        "jpeg": [Test("JPEG to tensor", Ask("jpeg", workers, batch=64))],
        "crop": [Test("JPEG to random crop", Ask("crop", workers, batch=64))],
        "photo": [Test("large JPEG to random crop", Ask("photo", workers, batch=64))],
        "png": [Test("small PNG to tensor", Ask("png", workers))],
        "cold": [
            Test("cold", Ask("large", workers), is_cold=True),
            Test("cold, in order", Ask("large", workers, shuffled=False), is_cold=True),
        ],
    }  # fmt: skip


def bars_of(workers: int) -> list[Bar]:
    """Return what is promised."""
    return [
        Bar("large, 0", "of the best peer", 1.8),
        Bar("large, 0", "of one memcpy of the same bytes", 1 / 1.5, ("one memcpy",)),
        Bar(f"large, {workers}", "of the best peer", 2.5),
        Bar(f"large, {workers}", "of the best in a DataLoader", 6, LOADER_PEERS),
        Bar(f"large, {workers}", "of one memcpy of the same bytes", 1 / 1.5, ("one memcpy",)),
        Bar("small, 0", "of FFCV", 1.5, ("FFCV",)),
        Bar("small, 0", "of LitData", 10, ("LitData",)),
        Bar(f"small, {workers}", "of FFCV", 1.1, ("FFCV",)),
        Bar(f"small, {workers}", "of LitData", 10, ("LitData",)),
        Bar("arrays, 0", "of a DataLoader of files or of PIL", 20, ("files", "PIL of an array")),
        Bar("arrays, 0", "of FFCV", 1.5, ("FFCV",)),
        Bar("arrays, 0", "of a gather by numpy", 1 / 2, ("numpy gather",)),
        Bar(f"arrays, {workers}", "of FFCV", 1.5, ("FFCV",)),
        Bar("JPEG to tensor", "of a decoder alone", 0.95, ("decoder alone", "our decoder alone")),
        Bar("JPEG to tensor", "of the best peer", 1),
        Bar("JPEG to random crop", "of the best peer", 1.3),
        Bar("large JPEG to random crop", "of the best peer", 1.3),
        Bar("small PNG to tensor", "of the best peer", 1),
        Bar("cold", "of the best peer", 1),
        Bar("cold, in order", "of the best peer", 1),
    ]


# -- data --------------------------------------------------------------------------------------


def make_data(folder: Path) -> None:
    """Make the samples as plain files and as an array, once."""
    numpy, image = import_module("numpy"), import_module("PIL.Image")
    images = _fashion(numpy)
    if not (folder / "arrays.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        numpy.save(folder / ".arrays.npy", images)
        (folder / ".arrays.npy").rename(folder / "arrays.npy")
    _make_once(
        folder / "small/files",
        ((f"{at:06}.png", image.fromarray(pixels)) for at, pixels in enumerate(images)),
    )
    draw = numpy.random.default_rng(0)
    for name, count, size in (("large", LARGE, (375, 500)), ("photos", PHOTOS, (1200, 1600))):
        pictures = (image.fromarray(_picture(numpy, draw, *size)) for _ in range(count))
        numbered = ((f"{at:06}.jpg", each) for at, each in enumerate(pictures))
        _make_once(folder / name / "files", numbered)


def _make_once(place: Path, images: Iterable[tuple[str, Any]]) -> None:
    if place.exists():
        return
    part = place.with_name(f".{place.name}")
    part.mkdir(parents=True, exist_ok=True)
    for name, image in images:
        image.save(part / name, **({"quality": 90} if name.endswith("jpg") else {}))
    part.rename(place)


def _fashion(numpy: Any) -> Any:
    if FASHION.exists():
        return numpy.frombuffer(gzip.decompress(FASHION.read_bytes())[16:], "u1").reshape(
            -1, 28, 28
        )
    print(f"note: no {FASHION}: made-up images instead", file=sys.stderr)
    return numpy.random.default_rng(0).integers(0, 64, (60000, 28, 28), "u1")


def _picture(numpy: Any, draw: Any, height: int, width: int) -> Any:
    """Return a gradient with noise: JPEGs of 106 kB of the small ones, of 425 kB of large ones.

    Larger pictures are finer: they have less noise in each pixel.
    """
    down, right = numpy.mgrid[0:height, 0:width]
    slopes = draw.uniform(-0.3, 0.3, (2, 3)) * 375 / height
    base = 128 + down[..., None] * slopes[0] + right[..., None] * slopes[1]
    noise = draw.normal(0, draw.uniform(20, 36) * (375 / height) ** 1.5, (height, width, 1))
    return (base + noise).clip(0, 255).astype("u1")


# -- the readers' processes ----------------------------------------------------------------------


class Failed(Exception):
    """A reader could not do what was asked."""


class Process:
    """A reader that waits for questions."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        env = stoker_environment()
        paths = dict(each.split("=", 1) for each in args.path)
        if name in paths:
            env["PYTHONPATH"] = os.pathsep.join([paths[name], env["PYTHONPATH"]])
        words = [args.python, str(HERE / "readers.py"), name, str(args.folder)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
            start_new_session=True,
        )

    def ask(self, do: str, *given: Any, **more: Any) -> Any:
        """Ask, and wait for the answer."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, "with": given, **more}) + "\n")
            self._process.stdin.flush()
        is_there, _, _ = select.select(
            [self._process.stdout], [], [], WRITING_S if do == "write" else PATIENCE_S
        )
        if not is_there:
            self._process.kill()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"died: {self._last_words()}"}
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["found"]

    def close(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        # Also workers that outlive it.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-200:]


class Bench:
    """The readers, and what they have shown."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.left_out: dict[str, str] = {}
        self.seconds: dict[str, dict[str, list[dict[str, float]]]] = {}
        self._running: dict[str, Process] = {}

    def run(self, tests: Sequence[Test]) -> None:
        """Let all readers that can do a test do it, round after round."""
        for test in tests:
            names = [name for name in self._names(test) if self._is_ready(name, test)]
            if not test.is_cold:
                # Not measured: opens, starts workers, compiles, warms the cache.
                names = [name for name in names if self._read(name, test, 0.2)]
            found = self.seconds.setdefault(test.name, {name: [] for name in names})
            for round_number in range(self.args.rounds):
                order = [each for each in names if each in found]
                random.Random(round_number).shuffle(order)
                for name in order:
                    told = self._read(name, test, self.args.seconds)
                    if told is None:
                        found.pop(name)
                    else:
                        found[name].append(told)
            self._tell(test)
            self._clear()

    def _clear(self) -> None:
        for name in list(self._running):
            if not READERS[name].can_change:
                self._running.pop(name).close()
                continue
            with suppress(Failed):
                self._running[name].ask("close")

    def close(self) -> None:
        """End all processes."""
        for each in self._running.values():
            each.close()

    def _names(self, test: Test) -> list[str]:
        asked = self.args.readers or list(READERS)
        return [
            each for each in asked
            if test.ask.kind in READERS[each].kinds and not (test.is_cold and each in MEASURES)
        ]  # fmt: skip

    def _is_ready(self, name: str, test: Test) -> bool:
        if f"{name}, {test.ask.kind}" in self.left_out or name in self.left_out:
            return False
        try:
            process = self._process(name)
            missing = process.ask("missing")
            if missing:
                self._leave_out(name, missing)
                return False
            process.ask("write", test.ask.kind)
            is_bytes = test.ask.kind in ("large", "small") and name not in MEASURES
            if is_bytes and not test.ask.workers and not process.ask("check", test.ask.kind, 0):
                raise Failed("an epoch did not give each sample once")
        except Failed as error:
            self._leave_out(f"{name}, {test.ask.kind}", str(error))
            return False
        return True

    def _read(self, name: str, test: Test, seconds: float) -> dict[str, float] | None:
        try:
            if test.is_cold:
                return self._read_cold(name, test, seconds)
            more = {"ask": test.ask, "min_s": seconds, "max_s": 2 * seconds}
            found: dict[str, float] = self._process(name).ask("read", **more)
            # What was read ahead and is not wanted is still being decoded.
            time.sleep(SETTLE_S if test.ask.kind in DECODED else 0)
        except Failed as error:
            self._leave_out(f"{name}, {test.name}", str(error))
            if name in self._running:
                self._running.pop(name).close()
            return None
        return found

    def _read_cold(self, name: str, test: Test, seconds: float) -> dict[str, float]:
        """Read what is not in memory, in a process that has none of it mapped."""
        if name in self._running:
            self._running.pop(name).close()
        process = Process(name, self.args)
        try:
            process.ask("missing")
            place = READERS[name](self.args.folder).place(test.ask.kind)
            files = [each for each in (place, *place.rglob("*")) if each.is_file()]
            resident = evict(files)
            more = {"ask": test.ask, "min_s": 0.01, "max_s": 4 * seconds}
            found: dict[str, float] = process.ask("read", **more)
        finally:
            process.close()
        return {**found, "resident": resident}

    def _process(self, name: str) -> Process:
        if name not in self._running:
            self._running[name] = Process(name, self.args)
        return self._running[name]

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        print(f"note: {name} is left out: {why}", file=sys.stderr)

    def _tell(self, test: Test) -> None:
        print(f"{test.name}:", file=sys.stderr)
        for name, rates in sorted(self.rates(test.name).items(), key=lambda each: -_mid(each[1])):
            print(f"  {_mid(rates):>12,.0f} samples/s  {name}", file=sys.stderr)

    def rates(self, test: str) -> dict[str, list[float]]:
        """Return the samples per second of each reader in each round."""
        return {
            name: [each["samples"] / each["seconds"] for each in told]
            for name, told in self.seconds.get(test, {}).items()
            if told
        }


def _mid(values: Sequence[float]) -> float:
    return statistics.median(values)


def evict(files: Sequence[Path]) -> float:
    """Ask the kernel to forget what it has of files; return the part of them that it kept."""
    kept = total = 0
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                continue
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if len(files) < 100:
                kept += _resident(file.fileno(), size)
                total += -(-size // mmap.PAGESIZE)
    return kept / total if total else 0.0


def _resident(file: int, size: int) -> int:
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(each & 1 for each in pages)


# -- opening ---------------------------------------------------------------------------------------

OPEN = """
import json, sys, time
import stoker
from stoker.data.loading import dataset, loader
start = time.perf_counter()
data = stoker.open(sys.argv[1], decode=False)
opened = time.perf_counter() - start
loader = stoker.Loader(data, 256, shuffle=True)
if sys.argv[2] == "batch":
    next(iter(loader))
else:
    data.key(len(data) // 2), data.label(len(data) - 1), len(loader)
took = time.perf_counter() - start
# Not of getrusage: that one begins with what the parent had.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"open_s": opened, "seconds": took, "peak_mb": int(peak.split()[1]) / 1000}))
"""


def measure_opening(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Open an index of 10 million samples, and make the first batch of 1,000 archives."""
    sys.path.insert(0, str(HERE.parent.parent / "src"))
    many, shards = args.folder / "ten-million", args.folder / "thousand-shards"
    if not many.exists():
        _make_index(many)
    if not shards.exists():
        _make_shards(shards)
    found: dict[str, list[dict[str, float]]] = {"index": [], "batch": []}
    for _ in range(args.rounds):
        for place, what in ((many, "index"), (shards, "batch")):
            done = subprocess.run(
                [args.python, "-c", OPEN, str(place), what], env=stoker_environment(),
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found[what].append(json.loads(done.stdout))
    return found


def _make_index(folder: Path) -> None:
    """Write an index of 10 million samples of an archive that is not there."""
    index = import_module("stoker.data.index")
    part = folder.with_name(".ten-million")
    part.mkdir(exist_ok=True)
    writer = index.IndexWriter(part)
    one, size = 1 << 16, 4096
    for start in range(0, INDEXED, one):
        rows = range(start, min(INDEXED, start + one))
        # By columns: one after the other they would take minutes.
        columns = {
            "shard": array("I", bytes(4 * len(rows))), "crc": array("I", bytes(4 * len(rows))),
            "offset": array("Q", [each * size for each in rows]),
            "size": array("Q", [size - 512]) * len(rows), "extension": array("H", bytes(2 * len(rows))),
            "first": array("Q", [each + 1 for each in rows]), "labels": array("i", [1]) * len(rows),
            "name_at": array("Q", [8 * (each + 1) for each in rows]),
            "names": array("B", b"".join(b"%08d" % each for each in rows)),
        }  # fmt: skip
        for name, values in columns.items():
            writer._columns[name].extend(values.tobytes())
    writer._extensions["jpg", False] = 0
    writer.samples = writer.parts = INDEXED
    writer.finish(part / index.INDEX_NAME, [index.Shard("shard-00000.tar", INDEXED * size, 0, 0)])
    part.rename(folder)


def _make_shards(folder: Path) -> None:
    """Pack small samples into 1,000 archives."""
    pack = import_module("stoker.data.packing.pack")
    with tempfile.TemporaryDirectory(dir=folder.parent) as files:
        for number in range(10 * SHARDS):
            (Path(files) / f"{number:06}.bin").write_bytes(os.urandom(2000))
        part = folder.with_name(".thousand-shards")
        pack.pack(Path(files), part, pack.Settings(shard_bytes=10 * 2560))
        part.rename(folder)


# -- the page ----------------------------------------------------------------------------------------


def compare(bench: Bench, bar: Bar) -> dict[str, Any] | None:
    """Return how ours did beside the best of the others, round by round."""
    rates = bench.rates(bar.test)
    ours = rates.get(OURS)
    wanted = bar.peers or [each for each in rates if each not in MEASURES]
    others = {each: rates[each] for each in wanted if each in rates and not each.startswith(OURS)}
    if not ours or not others:
        return None
    best = max(others, key=lambda each: _mid(others[each]))
    ratios = [mine / theirs for mine, theirs in zip(ours, others[best], strict=False)]
    low, high = min(ratios), max(ratios)
    ratio = _mid(ours) / _mid(others[best])
    return {**bar._asdict(), "best": best, "ratio": ratio, "low": low, "high": high}


def render(results: Mapping[str, Any], bench: Bench) -> str:
    """Return the page."""
    parts = [
        "# Reading packed data\n",
        render_machine(results["machine"]),
        "\n`benchmarks/data/read.py`\n",
    ]
    rows = [
        [each["test"], f"{each['times']:.2g} × {each['what']}", each["best"],
         f"{each['ratio']:.2f} ×", f"{each['low']:.2f} to {each['high']:.2f}",
         "kept" if each["ratio"] >= each["times"] else "**missed**"]
        for each in results["bars"]
    ]  # fmt: skip
    rows += [
        [each["what"], each["bar"], "", each["found"], each["spread"], each["word"]]
        for each in results["opening_bars"]
    ]
    head = ["what", "at least", "beside", "found", "single rounds", ""]
    parts += [render_table(head, rows)]
    for name in bench.seconds:
        rates = bench.rates(name)
        lines = []
        for reader in sorted(rates, key=lambda each: -_mid(rates[each])):
            spread, told = spread_of(rates[reader]), bench.seconds[name][reader]
            cpu = _mid([each["cpu_s"] / max(1, each["samples"]) * 1e6 for each in told])
            lines.append(
                [reader, f"{spread.median:,.0f}", f"{spread.low:,.0f} to {spread.high:,.0f}",
                 f"{spread.min:,.0f}", f"{cpu:,.2f}"]
            )  # fmt: skip
        parts += [
            f"\n## {name}\n",
            render_table(
                ["reader", "samples/s", "middle half", "slowest", "CPU, µs a sample"], lines
            ),
        ]
        if any("resident" in each for told in bench.seconds[name].values() for each in told):
            kept = max(each["resident"] for told in bench.seconds[name].values() for each in told)
            parts.append(f"\nAt most {kept:.1%} of a format was in memory before a reading.\n")
    if bench.left_out:
        parts += ["\n## Left out\n", render_table(["reader", "why"], list(bench.left_out.items()))]
    return "\n".join(parts)


def opening_bars(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return what opening took beside what it may."""
    rows = []
    for what, key, column, most, unit in (
        ("open 10 million samples", "index", "seconds", 1.0, "s"),
        ("open 10 million samples", "index", "peak_mb", 200.0, "MB"),
        ("first batch of 1,000 shards", "batch", "seconds", 0.05, "s"),
    ):
        values = [each[column] for each in found.get(key, ())]
        if values:
            rows.append(
                {"what": what, "bar": f"at most {most:g} {unit}", "found": f"{_mid(values):.3g} {unit}",
                 "spread": f"{min(values):.3g} to {max(values):.3g}",
                 "word": "kept" if _mid(values) <= most else "**missed**"}
            )  # fmt: skip
    return rows


def main() -> int:
    """Make the data, run the tests, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "stoker-bench-data"
    )
    parser.add_argument("--python", default=sys.executable, help="with the peers")
    parser.add_argument("--path", action="append", default=[], metavar="READER=DIR")
    parser.add_argument("--readers", nargs="*", choices=list(READERS), metavar="READER")
    parser.add_argument("--only", nargs="*", choices=[*tests_of(2), "opening"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "read.json")
    args = parser.parse_args()
    started = time.monotonic()
    machine = describe_machine(args.python, PACKAGES, stoker_environment())
    make_data(args.folder)
    bench, opening = Bench(args), {}
    try:
        for section, tests in tests_of(args.workers).items():
            if not args.only or section in args.only:
                bench.run(tests)
    finally:
        bench.close()
    if not args.only or "opening" in args.only:
        opening = measure_opening(args)
    results = {
        "machine": machine,
        "took_s": round(time.monotonic() - started),
        "bars": [found for bar in bars_of(args.workers) if (found := compare(bench, bar))],
        "opening_bars": opening_bars(opening),
        "tests": bench.seconds,
        "opening": opening,
        "left_out": bench.left_out,
    }
    write_results(args.output, results, render(results, bench))
    return 0


if __name__ == "__main__":
    sys.exit(main())
