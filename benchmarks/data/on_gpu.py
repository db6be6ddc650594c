"""How fast samples arrive on a GPU: decoded there, copied from pinned memory, or kept there.

    PYTHONPATH=src python3 benchmarks/data/on_gpu.py -o $OUT/on_gpu.json
    PYTHONPATH=src python3 benchmarks/data/on_gpu.py --only arrays --rounds 9

Pictures: JPEGs of about 106 kB (500 × 375) become batches of 64 random crops of 224 × 224 on the
device. Arrays: 60,000 of 28 × 28 bytes become batches of 256. Each contestant runs for a window of
time, one after the other, round after round, and waits for the device at both ends of it. Beside
the readers stands what they can be measured by: the decoder with nothing around it, and rows
selected by torch on the device itself. Without a GPU the arrays are read to the processor, which
shows that the program works and no more.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from figures import render_table, spread_of, write_results
from machine import SRC, describe_machine, plain_environment, render_machine

sys.path.insert(0, str(SRC))
import stoker

HERE = Path(__file__).parent
torch: Any = import_module("torch")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEIGHT, WIDTH, CROP = 375, 500, 224
PICTURES, DIFFERENT, PICTURE_BATCH = 2048, 128, 64
ROWS, SIDE, ROW_BATCH = 60_000, 28, 256
OURS = ("stoker, decoded on the GPU", "stoker, pinned", "stoker, kept on the device")
MEASURES = ("nvJPEG alone", "torch, rows on the device")

Epoch = Callable[[], Iterable[Any]]


# -- data ------------------------------------------------------------------------------------


def make_pictures(folder: Path) -> Path:
    """Write JPEGs that are as large as photographs: a smooth picture with noise in its light."""
    write_jpeg = import_module("torchvision.io").write_jpeg
    files = folder / "files"
    files.mkdir(parents=True)
    draw = torch.Generator().manual_seed(1)
    rows = torch.linspace(0, 3, HEIGHT)[:, None]
    columns = torch.linspace(0, 4, WIDTH)[None]
    for each in range(DIFFERENT):
        shift = torch.rand(3, generator=draw) * 6
        smooth = torch.stack([torch.sin(rows + at) * torch.cos(columns - at) for at in shift])
        noise = torch.randn(1, HEIGHT, WIDTH, generator=draw)
        picture = (128 + 80 * smooth + 24 * noise).clamp(0, 255).to(torch.uint8)
        write_jpeg(picture, str(files / f"{each:05d}.jpg"), quality=92)
    for each in range(DIFFERENT, PICTURES):
        shutil.copy(files / f"{each % DIFFERENT:05d}.jpg", files / f"{each:05d}.jpg")
    stoker.pack(str(files), str(folder / "packed"))
    return files


def make_rows(folder: Path) -> Any:
    """Write an array of small pictures, and pack it."""
    numpy = import_module("numpy")
    rows = torch.randint(0, 256, (ROWS, SIDE, SIDE), dtype=torch.uint8)
    folder.mkdir(parents=True)
    numpy.save(folder / "rows.npy", rows.numpy())
    stoker.pack(str(folder / "rows.npy"), str(folder / "packed"))
    return rows


# -- pictures --------------------------------------------------------------------------------


class Files:
    """Files as people read them: decoded and cropped by torchvision, or as bytes."""

    def __init__(self, folder: Path, crop: Any) -> None:
        self.paths = sorted(str(each) for each in folder.iterdir())
        self.crop = crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> Any:
        io = import_module("torchvision.io")
        data = io.read_file(self.paths[at])
        return data if self.crop is None else self.crop(io.decode_jpeg(data, io.ImageReadMode.RGB))


def joined(batch: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return files one after the other, and how long each is."""
    return torch.cat(list(batch)), [len(each) for each in batch]


def picture_epochs(folder: Path, workers: int) -> dict[str, Epoch]:
    """Return who gives batches of crops on the device."""
    io, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2")
    files = make_pictures(folder)
    crop = v2.Compose([v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()])
    packed, ours = str(folder / "packed"), stoker.RandomResizedCrop(CROP)
    on_gpu = stoker.Loader(
        stoker.open(packed, parts="jpg", decode="cuda", crop=ours), PICTURE_BATCH, shuffle=True,
        drop_last=True,
    )  # fmt: skip
    on_host = stoker.Loader(
        stoker.open(packed, parts="jpg", crop=ours), PICTURE_BATCH, shuffle=True, drop_last=True,
        pin_memory=True,
    )  # fmt: skip
    words: dict[str, Any] = {
        "batch_size": PICTURE_BATCH, "shuffle": True, "drop_last": True, "num_workers": workers,
        "persistent_workers": True,
    }  # fmt: skip
    cropped = torch.utils.data.DataLoader(Files(files, crop), pin_memory=True, **words)
    # One tensor for all of a batch: each costs a file descriptor on its way out of a worker.
    as_bytes = torch.utils.data.DataLoader(Files(files, None), collate_fn=joined, **words)
    held = [[Files(files, None)[at] for at in range(PICTURE_BATCH)] for _ in range(4)]

    def decode(batch: Any) -> Any:
        return io.decode_jpeg(batch, io.ImageReadMode.RGB, device="cuda")

    def decoded_by_hand() -> Iterator[Any]:
        for data, sizes in as_bytes:
            yield torch.stack([crop(each) for each in decode(list(data.split(sizes)))])

    def decoder() -> Iterator[Any]:
        for batch in held:
            yield decode(batch)

    return {
        "stoker, decoded on the GPU": on_gpu.__iter__,
        "stoker, pinned": lambda: moved(on_host),
        "DataLoader, torchvision": lambda: moved(cropped),
        "DataLoader, nvJPEG by hand": decoded_by_hand,
        "nvJPEG alone": decoder,
    }


# -- arrays ----------------------------------------------------------------------------------


def row_epochs(folder: Path, workers: int) -> dict[str, Epoch]:
    """Return who gives batches of rows on the device."""
    rows = make_rows(folder)
    data = stoker.open(str(folder / "packed"), parts="npy")
    kept = stoker.Loader(data.resident(DEVICE.type if DEVICE.type == "cuda" else "host"),
                         ROW_BATCH, shuffle=True)  # fmt: skip
    pinned = stoker.Loader(data, ROW_BATCH, shuffle=True, pin_memory=DEVICE.type == "cuda")
    on_device, table = rows.to(DEVICE), torch.utils.data.TensorDataset(rows)
    words: dict[str, Any] = {"pin_memory": DEVICE.type == "cuda", "shuffle": True}
    alone = torch.utils.data.DataLoader(table, ROW_BATCH, **words)
    shared = torch.utils.data.DataLoader(
        table, ROW_BATCH, num_workers=workers, persistent_workers=True, **words
    )

    def selected() -> Iterator[Any]:
        for chosen in torch.randperm(ROWS, device=DEVICE).split(ROW_BATCH):
            yield on_device[chosen]

    return {
        "stoker, kept on the device": kept.__iter__,
        "stoker, pinned": lambda: moved(pinned),
        "DataLoader": lambda: moved(alone),
        f"DataLoader, {workers} workers": lambda: moved(shared),
        "torch, rows on the device": selected,
    }


def moved(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches on the device, as a training loop brings them there."""
    for batch in batches:
        tensor = batch[0] if isinstance(batch, (list, tuple)) else batch
        yield torch.as_tensor(tensor).to(DEVICE, non_blocking=True)


# -- measuring -------------------------------------------------------------------------------


def wait() -> None:
    """Wait for the device: only here, at the two ends of a window."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def forever(epoch: Epoch) -> Iterator[Any]:
    """Yield batches of one epoch after the other."""
    while True:
        yield from epoch()


def time_window(batches: Iterator[Any], seconds: float) -> float:
    """Return samples a second."""
    next(batches)
    wait()
    start, samples = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        samples += len(next(batches))
    wait()
    return samples / (time.perf_counter() - start)


def measure(epochs: Mapping[str, Epoch], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Let all run in turn; the first round warms up."""
    running = {name: forever(epoch) for name, epoch in epochs.items()}
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(rounds + 1):
        for name, batches in running.items():
            rate = time_window(batches, seconds)
            print(f"round {number}: {name} {rate:,.0f}/s", file=sys.stderr, flush=True)
            if number:
                rates[name].append(rate)
    return rates


def render_page(results: Mapping[str, Any]) -> str:
    """Return the page that shows the figures."""
    parts = ["# Samples on the GPU\n", render_machine(results["machine"]) + "\n",
             f"`{results['command']}`: {results['rounds']} rounds in turn, windows of "
             f"{results['seconds']:g} s.\n"]  # fmt: skip
    for title, rates in results["rates"].items():
        peers = [name for name in rates if name not in (*OURS, *MEASURES)]
        best = max(peers, key=lambda name: spread_of(rates[name]).median)
        rows = []
        for name, values in rates.items():
            spread = spread_of(values)
            ratio = spread_of(
                [ours / theirs for ours, theirs in zip(values, rates[best], strict=True)]
            )
            rows.append((
                name, f"{spread.median:,.0f} ({spread.min:,.0f} to {spread.max:,.0f})",
                f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
            ))  # fmt: skip
        head = ("contestant", "samples a second (least to most)", f"to `{best}`")
        parts += [f"## {title}\n", render_table(head, rows)]
    return "\n".join(parts)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("pictures", "arrays"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("-o", "--output", type=Path, default=HERE / "on_gpu.json")
    return parser.parse_args(words)


def main() -> None:
    """Measure, and write the results beside this file."""
    asked = parse()
    if DEVICE.type == "cpu" and asked.only != "arrays":
        sys.exit("pictures are decoded on a GPU, and there is none: --only arrays")
    machine = describe_machine(
        sys.executable, ("torch", "torchvision", "numpy"), plain_environment()
    )
    rates = {}
    with tempfile.TemporaryDirectory(prefix="on-gpu-") as folder:
        for title, make in (("pictures", picture_epochs), ("arrays", row_epochs)):
            if asked.only in (None, title):
                # Kept by nobody: workers that are there when Python ends are waited for.
                rates[title] = measure(
                    make(Path(folder) / title, asked.workers), asked.rounds, asked.seconds
                )
    results = {
        "machine": machine,
        "command": shlex.join(["benchmarks/data/on_gpu.py", *sys.argv[1:]]),
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "rates": rates,
    }
    write_results(asked.output, results, render_page(results))


if __name__ == "__main__":
    main()
