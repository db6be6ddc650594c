"""How long `stoker --help` and `stoker plan` take, beside bare Python and a peer, in one run.

    make bench                                  prints the table and writes benchmarks/startup.json
    .venv/bin/python benchmarks/startup.py --peer 'torchx --help=/path/to/torchx --help'

Each command is run in turn, many rounds, so that a busy moment of the machine hits all of
them alike; the median of the rounds counts, the spread is the middle half of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = 40
BARS = {"stoker --help": 5.0, "stoker plan": 10.0}


def time_once(command: list[str], folder: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def measure(commands: dict[str, list[str]], folder: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            times[name].append(time_once(command, folder))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another command to time",
    )
    parser.add_argument("-o", "--output", type=Path, default=HERE / "startup.json")
    args = parser.parse_args()
    stoker = str(Path(sys.executable).parent / "stoker")
    plan = "plan --cluster puhti --gpus 8 --time 1h train.py --epochs 3"
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "stoker --help": [stoker, "--help"],
        "stoker plan": [stoker, *plan.split()],
        "stoker check": [stoker, "check", "job.sh", "--cluster", "none"],
        **{
            name: shlex.split(peer) for name, _, peer in (each.partition("=") for each in args.peer)
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text("import torch\n")
        (Path(folder) / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00:00\nsrun x\n")
        measure(commands, folder)  # once unmeasured: compiles modules, warms the disk cache
        times = measure(commands, folder)
    base = statistics.median(times["python -c pass"])
    rows = {}
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        median = statistics.median(values)
        rows[name] = {
            "median_ms": round(median * 1e3, 1),
            "middle_half_ms": [round(low * 1e3, 1), round(high * 1e3, 1)],
            "ratio": round(median / base, 2),
        }
        bar = f"  (bar {BARS[name]:g})" if name in BARS else ""
        print(
            f"{name:24}{median * 1e3:8.1f} ms  {low * 1e3:7.1f} to {high * 1e3:.1f}"
            f"  x{median / base:.2f}{bar}"
        )
    machine = {"python": platform.python_version(), "system": platform.platform(), "rounds": ROUNDS}
    args.output.write_text(json.dumps({"machine": machine, "times": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
