"""How large a run folder gets, and how long reading it takes: 8 GPUs for an hour, a day, a week.

    .venv/bin/python benchmarks/size.py
    .venv/bin/python benchmarks/size.py --hours 1,24,168 --all-ranks

What the scribe writes on one node is written with a clock that runs ahead: a row of readings and
a row of steps for each rank every second, and the facts of each rank at full size. Ranks are
alike, so one is written and counted eight times, unless `--all-ranks`. Nothing is timed but the
writing itself and the reading back. A week takes a quarter of an hour on a quiet machine.
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import render_table, write_results
from machine import HERE, describe_machine, plain_environment, render_machine

from stoker.watch.folder import RunFolder
from stoker.watch.inside.lines import MAX_TOLD
from stoker.watch.scribe import MAX_LINES
from stoker.watch.series import (
    FINE_STEP_ROWS,
    MAX_COARSE_STEP_ROWS,
    Row,
    SeriesWriter,
    Stat,
    merged,
    read_series,
)

GPUS = 8
HOST = "g0001"
# How often the size is looked at while the file grows; it is rewritten every 300 rows.
LOOK_ROWS = 50

# Rows are made once and come again: no shorter than an epoch, and in step with nothing.
CYCLE_S = 1201

Stats = Mapping[str, Stat]

# Name, usual value, spread.
GPU_METRICS = (
    ("duty_pct", 93.0, 6.0), ("sm_pct", 71.0, 9.0), ("tensor_pct", 34.0, 5.0), ("dram_pct", 48.0, 6.0),
    ("occupancy_pct", 41.0, 4.0), ("mem_gib", 61.3, 0.4), ("mine_gib", 60.8, 0.4), ("power_w", 548.0, 45.0),
    ("fp32_pct", 12.0, 3.0), ("clock_mhz", 1755.0, 90.0), ("hot", 0.0, 0.0),
    ("temp_c", 61.0, 2.0), ("pcie_rx_mb_s", 812.0, 240.0), ("pcie_tx_mb_s", 96.0, 40.0), ("throttled", 0.0, 0.3),
)  # fmt: skip
NODE_METRICS = (
    ("cpu.processes", 73.0, 0.0), ("cpu.cores", 41.0, 8.0), ("cpu.machine_pct", 33.0, 6.0),
    ("cpu.max_process_cores", 1.0, 0.05), ("cpu.waiting_io", 0.04, 0.03), ("cpu.pressure_pct", 2.1, 1.2),
    ("mem.rss_gib", 118.0, 3.0), ("mem.machine_gib", 203.0, 4.0), ("mem.cgroup_gib", 171.0, 4.0),
    ("mem.swap_gib", 0.0, 0.0), ("mem.shm_gib", 9.4, 0.6), ("mem.pressure_pct", 0.1, 0.1),
    ("io.read_mb_s", 1450.0, 320.0), ("io.write_mb_s", 3.1, 9.0), ("io.reads_s", 21000.0, 5200.0),
    ("io.disk_read_mb_s", 240.0, 160.0), ("io.disk_write_mb_s", 1.2, 4.0), ("io.pressure_pct", 6.0, 4.0),
    ("net.rx_mb_s", 1310.0, 290.0), ("net.tx_mb_s", 21.0, 9.0), ("ib.rx_mb_s", 4200.0, 900.0),
    ("ib.tx_mb_s", 4200.0, 900.0), ("files.opens_s", 96.0, 30.0), ("cost.sampler_pct", 0.4, 0.1),
)  # fmt: skip
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "comm", "other")
STEP_METRICS = (
    "steady.step", "steady.device_step", "steady.data_hidden", "steady.ddp_comm", "steady.ddp_overlapped",
    "steady.beside.data", "steady.beside.comm",
    *(f"steady.{phase}" for phase in PHASES), *(f"steady.host.{phase}" for phase in PHASES),
)  # fmt: skip
# An epoch every ten minutes begins with one unlike step and ends with an evaluation.
EPOCH_S = 600
EPOCH_METRICS = ("first.step", "first.data", "first.forward", "first.backward", "eval.step", "eval.data",
                 "eval.forward")  # fmt: skip


def make_samples(draw: random.Random, second: int) -> Stats:
    values = {name: max(0.0, draw.gauss(middle, spread)) for name, middle, spread in NODE_METRICS}
    for gpu in range(GPUS):
        for name, middle, spread in GPU_METRICS:
            values[f"gpu.{gpu}.{name}"] = max(0.0, draw.gauss(middle, spread))
    return {name: Stat(1, value, 0.0, value) for name, value in values.items()}


def make_steps(draw: random.Random, second: int) -> Stats:
    count = draw.randint(7, 9)
    stats = {}
    for name in STEP_METRICS:
        mean = abs(draw.gauss(0.012, 0.003))
        stats[name] = Stat(
            count, mean, abs(draw.gauss(0.001, 0.0004)), mean * draw.uniform(1.1, 1.9)
        )
    if second % EPOCH_S < 5:
        for name in EPOCH_METRICS:
            mean = abs(draw.gauss(0.4, 0.1))
            stats[name] = Stat(1 + second % 3, mean, mean / 10, mean * 1.2)
    return stats


def make_facts(draw: random.Random, rank: int) -> dict[str, Any]:
    """Return the facts of one rank with as many lines as are ever told."""

    def lines(count: int) -> list[list[object]]:
        return [
            [f"/scratch/project_2001234/someone/experiment/source/part{draw.randint(0, 40)}.py",
             f"function_{draw.randint(0, 300)}", draw.randint(1, 2000), round(draw.expovariate(0.01), 3),
             round(draw.expovariate(0.001), 3), "forward"]
            for _ in range(count)
        ]  # fmt: skip

    return {
        "label": f"{rank}-{HOST}", "host": HOST, "pid": 123456 + rank, "ppid": 123000, "argv": ["train.py"] * 20,
        "python": "3.12.3", "executable": "/scratch/project_2001234/env/bin/python", "rank": rank, "world": GPUS,
        "steps": 690000, "epochs": 144, "opens": 8300000, "cost_s": 512.1234, "lost": 0, "notes": [],
        "facts": {
            "torch": "2.11.0+cu130",
            "model": {"name": "ResNet", "parameters": 25557032, "dtype": "float32", "device": "cuda:0",
                      "optimizer": "SGD"},
            "device": {"name": "NVIDIA H200", "uuid": f"GPU-{draw.getrandbits(128):032x}"},
            "loaders": {str(number): {"batch_size": 256, "num_workers": 8, "pin_memory": True,
                                      "prefetch_factor": 2, "persistent_workers": False,
                                      "dataset": "ImageFolder", "batches": 625, "epochs": 144}
                        for number in range(8)},
        },
        "lines": lines(MAX_TOLD), "workers": 8, "worker_lines": [each[:5] for each in lines(MAX_LINES)],
    }  # fmt: skip


class Series:
    """One file as it grows: how large it was at most, and what writing it took."""

    def __init__(self, path: Path, kind: str, make: Callable[[random.Random, int], Stats]) -> None:
        self._path = path
        bounds = (MAX_COARSE_STEP_ROWS, FINE_STEP_ROWS) if kind == "steps" else ()
        self._writer = SeriesWriter(path, {"kind": kind, "host": HOST, "start": 1.8e9}, *bounds)
        draw = random.Random(1)
        self._made = [make(draw, second) for second in range(CYCLE_S)]
        self.write_s = self.longest_append_s = 0.0
        self._largest = 0

    def append(self, second: int) -> None:
        """Add the row of one second."""
        row = Row(second, second + 1, self._made[second % CYCLE_S])
        began = time.perf_counter()
        self._writer.append(row)
        spent = time.perf_counter() - began
        self.write_s += spent
        self.longest_append_s = max(self.longest_append_s, spent)
        if second % LOOK_ROWS == 0:
            self._largest = max(self._largest, self.size())

    def size(self) -> int:
        """Return the bytes that the file has now."""
        return self._path.stat().st_size

    def largest(self) -> int:
        """Return the bytes that it had at its largest."""
        return max(self._largest, self.size())


def write_run(path: Path, hours: Sequence[float], ranks: int) -> Iterator[dict[str, Any]]:
    """Write one node's part of a run folder; yield what it comes to after so many hours."""
    folder = RunFolder(path)
    folder.make()
    samples = Series(folder.samples(HOST), "samples", make_samples)
    steps = [Series(folder.steps(f"{rank}-{HOST}"), "steps", make_steps) for rank in range(ranks)]
    for rank in range(GPUS):
        folder.write(folder.facts(f"{rank}-{HOST}"), make_facts(random.Random(rank), rank))
    second = 0
    for end in sorted(hours):
        while second < round(end * 3600):
            for series in (samples, *steps):
                series.append(second)
            second += 1
        yield {"hours": end, **summarize(folder, samples, steps)}


def summarize(folder: RunFolder, samples: Series, steps: Sequence[Series]) -> dict[str, Any]:
    scale = GPUS / len(steps)
    facts = sum(each.stat().st_size for each in folder.all_facts())
    step_bytes = round(scale * sum(each.size() for each in steps))
    step_largest = round(scale * sum(each.largest() for each in steps))
    return {
        "samples_bytes": samples.size(),
        "steps_bytes": step_bytes,
        "facts_bytes": facts,
        "node_bytes": samples.size() + step_bytes + facts,
        "largest_node_bytes": samples.largest() + step_largest + facts,
        "write_s": samples.write_s + scale * sum(each.write_s for each in steps),
        "longest_append_s": max(each.longest_append_s for each in (samples, *steps)),
        **read_back(folder, scale),
    }


def read_back(folder: RunFolder, scale: float) -> dict[str, float]:
    """Return how long reading everything takes, the middle of three times."""
    times = []
    rows = 0
    for _ in range(3):
        began = time.perf_counter()
        sample_rows = [read_series(path)[1] for path in folder.all_samples()]
        middle = time.perf_counter()
        step_rows = [
            read_series(path)[1] for path in sorted((folder.path / "steps").glob("*.jsonl"))
        ]
        after = time.perf_counter()
        for path in folder.all_facts():
            folder.read(path)
        times.append(middle - began + scale * (after - middle) + time.perf_counter() - after)
        rows = sum(len(each) for each in sample_rows) + round(scale * sum(map(len, step_rows)))
        assert all(merged(each) is not None for each in (*sample_rows, *step_rows))
    return {"read_s": sorted(times)[1], "rows": rows}


def render_page(results: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{each['hours']:g}", f"{each['samples_bytes'] / 1e6:.2f}", f"{each['steps_bytes'] / 1e6:.2f}",
            f"{each['facts_bytes'] / 1e6:.2f}", f"{each['node_bytes'] / 1e6:.2f}",
            f"{each['largest_node_bytes'] / 1e6:.2f}", f"{each['rows']}", f"{each['read_s']:.2f}",
            f"{100 * each['write_s'] / 3600 / each['hours']:.2f}", f"{1000 * each['longest_append_s']:.0f}",
        ]
        for each in results["runs"]
    ]  # fmt: skip
    head = ["hours", "readings, MB", "steps of 8 ranks, MB", "facts, MB", "a node, MB", "at its largest, MB",
            "rows", "read back, s", "writing, % of a core", "longest append, ms"]  # fmt: skip
    columns = len(NODE_METRICS) + GPUS * len(GPU_METRICS)
    return "\n".join(
        [
            "# The size of a run folder\n",
            f"{render_machine(results['machine'])} A node of {GPUS} GPUs, one row a second: {columns} "
            f"columns of readings, {len(STEP_METRICS)} of steps for each of {GPUS} ranks. MB is 10^6 bytes. "
            f"Ranks really written: {results['ranks_written']}.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            "**What was worse.** The longest append rewrites the file; the scribe does it beside the "
            "training, and hears nothing meanwhile.\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", default="1,24,168", metavar="LIST")
    parser.add_argument("--all-ranks", action="store_true", help="write all eight, not one of them")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "size.json")
    args = parser.parse_args()
    ranks = GPUS if args.all_ranks else 1
    hours = [float(each) for each in args.hours.split(",")]
    runs = []
    with tempfile.TemporaryDirectory(prefix="size-") as folder:
        for each in write_run(Path(folder) / "run", hours, ranks):
            runs.append(each)
            print(f"{each['hours']:g} h: {each['node_bytes'] / 1e6:.2f} MB", file=sys.stderr)
    results = {
        "command": shlex.join(["benchmarks/size.py", *sys.argv[1:]]),
        "machine": describe_machine(sys.executable, (), plain_environment()),
        "ranks_written": ranks,
        "runs": runs,
    }
    write_results(args.output, results, render_page(results))


if __name__ == "__main__":
    main()
