"""How long the report of a large run takes, and how much memory: 1,000 nodes of 8 GPUs for a day.

    .venv/bin/python benchmarks/many_nodes.py
    .venv/bin/python benchmarks/many_nodes.py --nodes 100

A few nodes are written by the true writers, to the true sizes: a day in rows of minutes, then its
end in rows of a second. The others are copies with their own host, ranks and
totals. The run has ended well; then, as if it had been killed, every file loses its last lines up
to the middle between two totals; then a hundredth of it is read without any totals, as it was
before there were any. Each report is a fresh process: warm, and with the files dropped from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import size
from figures import render_table, write_results
from machine import HERE, describe_machine, plain_environment, render_machine, stoker_environment

from stoker.watch.folder import RunFolder
from stoker.watch.series import (
    FINE_STEP_ROWS,
    MAX_COARSE_STEP_ROWS,
    Row,
    SeriesWriter,
    Stat,
    merged,
)

VARIANTS = 2
DAY_S = 86_400
# How long the rows are that stand for the day, and how long its end is, which has one a second:
# about what the writer comes to by itself, for which it takes a quarter of an hour.
PACE = {"samples": (120, 690), "steps": (480, 150)}
# Rows are made once and come again.
CYCLE = 180
START = 1.8e9
BOUNDS = {"samples": (), "steps": (MAX_COARSE_STEP_ROWS, FINE_STEP_ROWS)}
# How often memory is looked at; it grows for seconds.
LOOK_S = 0.02
TOTAL = b'\n{"total":'


# -- one node, by the true writers ---------------------------------------------------


def write_series(path: Path, kind: str, seed: int) -> None:
    """Write the record of a day; the minutes of all but its end are merged before, to save time."""
    make = size.make_samples if kind == "samples" else size.make_steps
    draw, (coarse_s, fine_s) = random.Random(seed), PACE[kind]
    seconds = [make(draw, second) for second in range(CYCLE)]
    head = {"kind": kind, "host": size.HOST, "start": START}
    if kind == "steps":
        head["label"] = path.stem
    writer = SeriesWriter(path, head, *BOUNDS[kind])
    for start in range(0, DAY_S - fine_s, coarse_s):
        whole = merged(Row(0, 1, draw.choice(seconds)) for _ in range(8))
        assert whole is not None
        stats = {name: Stat(stat.count * 8, *stat[1:]) for name, stat in whole.stats.items()}
        writer.append(Row(start, start + coarse_s, stats))
    for second in range(DAY_S - fine_s, DAY_S):
        writer.append(Row(second, second + 1, seconds[second % CYCLE]))
    writer.close()


def write_node(folder: RunFolder, seed: int) -> dict[str, bytes]:
    """Return the files of one node by their names, which have its host and ranks in them."""
    folder.make()
    write_series(folder.samples(size.HOST), "samples", seed)
    gpus = [
        {"index": gpu, "uuid": f"GPU-{gpu:04x}", "name": "NVIDIA H200", "memory_gib": 139.8}
        for gpu in range(size.GPUS)
    ]
    facts = {"host": size.HOST, "cores_allowed": 128, "memory_machine_gib": 1511.0, "gpus": gpus}
    folder.write(folder.machine(size.HOST), facts)
    for rank in range(size.GPUS):
        label = f"{rank}-{size.HOST}"
        write_series(folder.steps(label), "steps", seed * size.GPUS + rank)
        folder.write(folder.facts(label), size.make_facts(random.Random(rank), rank))
    return {str(path.relative_to(folder.path)): path.read_bytes()
            for path in sorted(folder.path.rglob("*.json*"))}  # fmt: skip


# -- many of them ----------------------------------------------------------------------


def write_run(folder: RunFolder, nodes: int) -> int:
    """Write a run of so many nodes; return its bytes."""
    folder.make()
    command = ["/env/bin/python", "train.py"]
    told = {"id": "many", "command": command, "host": "g0000", "start": START, "end": START + DAY_S}
    folder.write(folder.run_json, {**told, "exit": 0, "is_whole": True, "recorder_cpu_s": 900.0})
    variants = []
    for seed in range(VARIANTS):
        with tempfile.TemporaryDirectory() as name:
            variants.append(write_node(RunFolder(Path(name) / "run"), seed))
    draw, written = random.Random(7), 0
    for node in range(nodes):
        written += copy_node(folder, variants[node % VARIANTS], node, nodes, draw)
    return written


def copy_node(
    folder: RunFolder, files: Mapping[str, bytes], node: int, nodes: int, draw: random.Random
) -> int:
    host = f"g{node:04d}"
    written = 0
    for name, data in files.items():
        path = Path(name)
        first, dash, _ = path.name.partition("-")
        changed = data.replace(size.HOST.encode(), host.encode())
        if dash:
            rank = node * size.GPUS + int(first)
            label = f"{rank}-{host}"
            changed = changed.replace(f"{first}-{host}".encode(), label.encode(), 1)
            changed = changed.replace(b'"rank": %d,' % int(first), b'"rank": %d,' % rank, 1)
            world = f'"world": {nodes * size.GPUS},'
            changed = changed.replace(b'"world": 8,', world.encode(), 1)
            target = folder.path / path.parent / (label + path.suffix)
        else:
            target = folder.path / path.parent / (host + path.suffix)
        if path.suffix == ".jsonl":
            changed = scale_total(changed, draw.uniform(0.97, 1.03))
        target.write_bytes(changed)
        written += len(changed)
    return written


def scale_total(data: bytes, factor: float) -> bytes:
    """Return a series whose last total is another one, so that no two nodes are alike."""
    at = data.rindex(TOTAL) + 1
    value = json.loads(data[at:])
    value["total"][2:] = [
        [cell[0], *(round(each * factor, 6) for each in cell[1:])] if isinstance(cell, list) else cell
        for cell in value["total"][2:]
    ]  # fmt: skip
    return data[:at] + json.dumps(value, separators=(",", ":")).encode() + b"\n"


def kill(folder: RunFolder) -> None:
    """Take the end of every series away, as far as half of the rows after the last total but one."""
    for path in series_of(folder):
        data = path.read_bytes()
        last = data.rindex(TOTAL)
        lines = data[data.rindex(TOTAL, 0, last) : last].split(b"\n")
        path.write_bytes(data[: last - sum(len(line) + 1 for line in lines[len(lines) // 2 :])])
    folder.write(folder.run_json, {**folder.read(folder.run_json), "end": None, "exit": -9})


def forget_totals(folder: RunFolder) -> None:
    for path in series_of(folder):
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join(line for line in lines if not line.startswith(TOTAL[1:])))


def series_of(folder: RunFolder) -> list[Path]:
    return sorted(folder.path.rglob("*.jsonl"))


# -- the report ------------------------------------------------------------------------


def drop(folder: RunFolder) -> None:
    """Drop the files of a folder from the page cache, and no others."""
    for path in folder.path.rglob("*.json*"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def report(folder: RunFolder, words: Sequence[str], repeats: int, is_cold: bool) -> dict[str, Any]:
    """Return the seconds and the largest memory of some reports, each in a fresh process."""
    seconds: list[float] = []
    cpu: list[float] = []
    memory: list[float] = []
    for _ in range(repeats):
        if is_cold:
            drop(folder)
        began = time.perf_counter()
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "stoker", "report", str(folder.path), *words],
                env=stoker_environment(), stdout=output, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            largest, ended = 0.0, 0
            while not ended:
                largest = max(largest, memory_mib(child.pid))
                time.sleep(LOOK_S)
                ended, status, used = os.wait4(child.pid, os.WNOHANG)
            child.returncode = os.waitstatus_to_exitcode(status)
            seconds.append(time.perf_counter() - began)
            cpu.append(used.ru_utime + used.ru_stime)
            memory.append(largest)
            assert child.returncode == 0
            assert "--html" in words or output.tell() > 0
    return {
        "words": list(words),
        "is_cold": is_cold,
        "seconds": seconds,
        "cpu_s": cpu,
        "max_memory_mib": max(memory),
    }


def memory_mib(pid: int) -> float:
    """Return what a process and its children hold, pages that they share counted for each."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(memory_mib(int(p)) for p in children)


def measure(folder: RunFolder, nodes: int, repeats: int) -> list[dict[str, Any]]:
    results = []
    page = folder.path.with_suffix(".html")
    for words in ([], ["--json"], ["--html", str(page), "--force"]):
        for is_cold in (False, True) if not words else (False,):
            told = report(folder, words, repeats, is_cold)
            results.append({"run": "ended well", "nodes": nodes, **told})
    results[-1] |= {"words": ["--html"], "page_bytes": page.stat().st_size}
    kill(folder)
    results.append({"run": "killed", "nodes": nodes, **report(folder, [], repeats, False)})
    return results


def measure_before(folder: RunFolder, nodes: int) -> dict[str, Any]:
    """Return what a report takes if every row is to be read."""
    write_run(folder, nodes)
    forget_totals(folder)
    return {"run": "no totals", "nodes": nodes, **report(folder, [], 1, False)}


def render_page(results: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{each['nodes']:,}", each["run"], " ".join(["report", *each["words"]]),
            "cold" if each["is_cold"] else "warm", ", ".join(f"{s:.1f}" for s in each["seconds"]), ", ".join(f"{s:.1f}" for s in each["cpu_s"]),
            f"{each['max_memory_mib']:.0f}",
        ]
        for each in results["reports"]
    ]  # fmt: skip
    page_bytes = next(each["page_bytes"] for each in results["reports"] if "page_bytes" in each)
    head = ["nodes", "run", "command", "files", "seconds", "of CPU", "largest memory, MiB"]
    return "\n".join(
        [
            "# The report of many nodes\n",
            f"{render_machine(results['machine'])} {results['nodes']:,} nodes of {size.GPUS} GPUs for a "
            f"day: {results['bytes'] / 1e9:.2f} GB in {results['files']:,} files. Each time is one fresh "
            "process; memory is of all its processes together, shared pages counted for each. The bar: 15 s and 1,024 MiB.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            f"The page has {page_bytes / 1e6:.2f} MB (bar: 5 MB).\n",
            f"The load of the machine was {results['load'][0]} before and {results['load'][1]} at the end: where it is "
            "above 2, others took a part of the two cores.\n",
            "**What was worse.** Without totals, as Stoker wrote it before, every row has to be read: the last "
            "row of the table, and it grows with the number of nodes. A run that was killed has up to a quarter "
            "of its fine rows after the last total; they are read and added. `--csv` reads the rows of every "
            "machine, and is not in the table. "
            f"{VARIANTS} nodes were really written; the others are copies with their own host, ranks and totals. "
            "Cold means that the files were dropped from the page cache of this machine's own disk; a parallel "
            "file system takes longer to open so many.\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where there is room (default: a temporary one)"
    )
    parser.add_argument("-o", "--output", type=Path, default=HERE / "many_nodes.json")
    args = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="many-", dir=args.folder))
    machine = describe_machine(sys.executable, (), plain_environment())
    try:
        folder = RunFolder(room / "run")
        written = write_run(folder, args.nodes)
        files = sum(1 for _ in folder.path.rglob("*.json*"))
        print(f"wrote {written / 1e9:.2f} GB", file=sys.stderr)
        reports = measure(folder, args.nodes, args.repeats)
        shutil.rmtree(folder.path)
        reports.append(measure_before(RunFolder(room / "before"), max(1, args.nodes // 100)))
    finally:
        shutil.rmtree(room)
    results = {
        "command": shlex.join(["benchmarks/many_nodes.py", *sys.argv[1:]]),
        "machine": machine,
        "nodes": args.nodes,
        "bytes": written,
        "files": files,
        "load": [machine["load_before"], round(os.getloadavg()[0], 2)],
        "reports": reports,
    }
    write_results(args.output, results, render_page(results))


if __name__ == "__main__":
    main()
