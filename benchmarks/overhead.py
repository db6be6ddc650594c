"""What watching costs: the same training loop plain, under Stoker, and under three peers.

    .venv/bin/python benchmarks/overhead.py --python .venv-torch/bin/python --peers /tmp/peers
    PYTHONPATH=src python3 benchmarks/overhead.py --device cuda --peers peers --budget-s 570 \\
        --steps-ms 1,3 -o $OUT/overhead-cuda-1.json
    python3 benchmarks/overhead.py --merge overhead-cuda-*.json -o benchmarks/overhead-cuda.json

The script is `programs/mnist.py`, a guide's convolutional network. It times its own loop, from
the 50th step on (fewer where steps are long), with the device synchronised at the two ends only.
How wide the network is, and so how long a step, is chosen once, before anything is compared.
All step lengths are trained in one process, one after the other, because starting takes longer
than training. All contestants are run in turn, round after round, so that a busy moment of the machine hits all
of them alike. Each is run as its own documentation says, with the edits that it asks for (EDITS).

The peers go into a folder of their own, for the Python that runs the script:

    pip install --target peers --no-deps traceml-ai==0.5.0 line_profiler==5.1.0 msgspec \\
        nvidia-ml-py rich psutil pyyaml pygments markdown-it-py mdurl
    (for another Python, add: --python-version 3.12 --only-binary=:all:)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import difference_of, ratio_of, render_table, spread_of, write_results
from machine import (
    HERE,
    PROGRAMS,
    Budget,
    describe_machine,
    peer_environment,
    plain_environment,
    render_machine,
    stoker_environment,
    stoker_run,
)

SCRIPT = PROGRAMS / "mnist.py"
PACKAGES = ("torch", "traceml-ai", "line_profiler", "numpy")
STEADY_S = 3.0
# torch.profiler keeps every event of the window in memory and sorts them at the end.
MOST_RECORDED = 100
# A run takes seconds; one that hangs must not take the lent machine's time with it.
LIMIT_S = 120.0

BODY = """\
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
"""
# What the peers' users write into their scripts: TraceML as its README shows for a plain loop
# (with the copy inside, where it can be timed), the profiler as in PyTorch's profiler recipe.
EDITS: dict[str, list[tuple[str, str]]] = {
    "traceml": [
        ("import torch\n", "import torch\nimport traceml_ai as traceml\n"),
        ("    torch.manual_seed(1)\n", '    torch.manual_seed(1)\n    traceml.init(mode="auto")\n'),
        (
            BODY,
            "        with traceml.trace_step(model):\n"
            + "".join(f"    {line}\n" for line in BODY.splitlines()),
        ),
    ],
    "profiler": [
        (
            "        seconds = train(model, device, loader, optimizer, first, last)\n",
            "        activities = [torch.profiler.ProfilerActivity.CPU]\n"
            '        if device.type == "cuda":\n'
            "            activities.append(torch.profiler.ProfilerActivity.CUDA)\n"
            "        schedule = torch.profiler.schedule(\n"
            "            wait=1, warmup=first - 1, active=last - first, repeat=1)\n"
            "        with torch.profiler.profile(\n"
            "            activities=activities, schedule=schedule,\n"
            "            on_trace_ready=lambda p: print(p.key_averages().table(row_limit=10)),\n"
            "        ) as profiler:\n"
            "            seconds = train(model, device, loader, optimizer, first, last, profiler)\n",
        ),
        ("optimizer, first, last):\n", "optimizer, first, last, profiler):\n"),
        # Timed up to the last recorded step; what the profiler makes of them comes after.
        ("        if step + 1 == last:\n            break\n", ""),
        ("        optimizer.step()\n", "        optimizer.step()\n        if step + 1 == last:\n"
         "            break\n        profiler.step()\n"),
    ],
}  # fmt: skip

NAMES = {
    "plain": "plain python",
    "stoker": "stoker run",
    "traceml": "TraceML, edited script",
    "kernprof": "kernprof -l -p, lines of the script",
    "profiler": "torch.profiler while it records, edited script",
}


@dataclass(frozen=True)
class Setting:
    """One step length: what was wanted, and the network that comes near it."""

    wanted_ms: float
    batch: int
    width: int
    ms: float

    def first(self) -> int:
        """Return the step at which timing begins; longer steps warm up in fewer."""
        return max(12, min(50, round(1500 / self.ms)))

    def steady_steps(self) -> int:
        """Return how many steps are timed."""
        return max(20, round(1000 * STEADY_S / self.ms))


@dataclass(frozen=True)
class Arena:
    """Where and with what the contestants run."""

    python: str
    device: str
    workers: int
    threads: int
    peers: Path | None
    folder: Path

    def words(self, settings: Sequence[Setting], most: int | None = None) -> list[str]:
        """Return the script's arguments, the same for all: every step length in one process."""
        words = f"--device {self.device} --workers {self.workers} --threads {self.threads}".split()
        for each in settings:
            steps = min(each.steady_steps(), most or each.steady_steps())
            words.append(f"{each.batch},{each.width},{each.first()},{each.first() + steps}")
        return words


@dataclass(frozen=True)
class Outcome:
    """One run: milliseconds a step of each training, and of the whole command, or why none."""

    ms: tuple[float, ...]
    command_s: float
    error: str = ""


def calibrate(arena: Arena, wanted: Sequence[float]) -> list[Setting]:
    command = [
        arena.python, str(PROGRAMS / "calibrate.py"), "--device", arena.device,
        "--workers", str(arena.workers), "--threads", str(arena.threads),
        *(f"{each:g}" for each in wanted),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=plain_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    settings = []
    for line in done.stdout.splitlines():
        if line.startswith('{"wanted_ms"'):
            settings.append(Setting(**json.loads(line)))
    return settings


def write_edited(name: str, folder: Path) -> Path:
    """Write the script with a peer's edits; each must fit in exactly one place."""
    text = SCRIPT.read_text()
    for old, new in EDITS[name]:
        assert text.count(old) == 1, f"{SCRIPT}: {old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    path = folder / f"mnist_{name}.py"
    path.write_text(text)
    return path


def contestant(
    name: str, arena: Arena, settings: Sequence[Setting], room: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the command of one contestant and its environment."""
    python = arena.python
    words = arena.words(settings)
    peers = peer_environment(arena.peers)
    if name == "plain":
        return [python, str(SCRIPT), *words], plain_environment()
    if name == "stoker":
        return stoker_run(python, room / "run", str(SCRIPT), *words), stoker_environment()
    if name == "kernprof":
        options = ["-l", "-p", str(SCRIPT), "-o", str(room / "mnist.lprof")]
        return [python, "-m", "kernprof", *options, str(SCRIPT), *words], peers
    edited = write_edited(name, room)
    if name == "traceml":
        options = ["run", str(edited), "--logs-dir", str(room / "logs"), "--args"]
        return [python, "-m", "traceml_ai.launcher.cli", *options, *words], peers
    words = arena.words(settings, MOST_RECORDED)
    return [python, str(edited), *words], plain_environment()


def run_once(name: str, arena: Arena, settings: Sequence[Setting]) -> Outcome:
    with tempfile.TemporaryDirectory(dir=arena.folder) as room:
        command, env = contestant(name, arena, settings, Path(room))
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env=env, cwd=room, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome((), LIMIT_S, f"no end after {LIMIT_S:g} s")
        seconds = time.perf_counter() - began
        outcome = read_outcome(output, errors, process.returncode, seconds)
        if not outcome.error and not has_watched(name, Path(room), output):
            return Outcome((), seconds, "ended well but recorded nothing")
    return outcome


def has_watched(name: str, room: Path, output: str) -> bool:
    """Say whether there is a record: something that did not watch costs nothing."""
    records = {"stoker": "run/steps/*.jsonl", "traceml": "logs/*/final_summary.json",
               "kernprof": "mnist.lprof"}  # fmt: skip
    if name == "profiler":
        return "Self CPU" in output
    return name == "plain" or any(room.glob(records[name]))


def read_outcome(output: str, errors: str, code: int, seconds: float) -> Outcome:
    found = [float(each) for each in re.findall(r'{"ms_per_step": ([0-9.e+-]+)', output)]
    # Training may be over, and the command fail afterwards: the figures count, so does that.
    if found and not code:
        return Outcome(tuple(found), seconds)
    last = [line for line in errors.splitlines() if line.strip()][-1:]
    return Outcome(tuple(found), seconds, f"exit {code}: {(last or ['nothing said'])[0][:200]}")


def is_there(name: str, arena: Arena) -> bool:
    module = {"traceml": "traceml_ai", "kernprof": "kernprof"}.get(name)
    if module is None:
        return True
    done = subprocess.run(
        [arena.python, "-c", f"import {module}"],
        env=peer_environment(arena.peers), capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def measure(
    arena: Arena, settings: Sequence[Setting], names: Sequence[str], repeats: int, budget: Budget
) -> dict[str, list[Outcome]]:
    """Run everyone in turn, round after round, as long as the budget lasts."""
    runs: dict[str, list[Outcome]] = {name: [] for name in names}
    for number in range(repeats):
        for name in names:
            longest = max((each.command_s for each in runs[name]), default=20.0)
            if not budget.has(1.2 * longest):
                print(f"budget spent in round {number + 1}", file=sys.stderr)
                return runs
            outcome = run_once(name, arena, settings)
            runs[name].append(outcome)
            told = " ".join(f"{each:.3f}" for each in outcome.ms)
            print(
                f"round {number + 1}: {name}: {told} ms {outcome.error} ({outcome.command_s:.1f} s)",
                file=sys.stderr,
                flush=True,
            )
    return runs


def summarize(setting: Setting, index: int, row: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Return one step length with its figures; only rounds that the plain run finished count."""

    def of(outcome: Outcome) -> float | None:
        return outcome.ms[index] if index < len(outcome.ms) else None

    plain = [of(each) for each in row["plain"]]
    summary: dict[str, Any] = {"setting": setting.__dict__, "contestants": {}}
    for name, outcomes in row.items():
        pairs = [
            (mine, base)
            for each, base in zip(outcomes, plain, strict=False)
            if (mine := of(each)) is not None and base is not None
        ]
        errors = sorted({each.error for each in outcomes if each.error})
        figures: dict[str, Any] = {"runs": len(pairs), "errors": errors}
        if pairs:
            ours, base = [each for each, _ in pairs], [each for _, each in pairs]
            figures |= {
                "ms": ours,
                "spread": spread_of(ours)._asdict(),
                "ratio": ratio_of(ours, base)._asdict(),
                "added_us": difference_of([1000 * each for each in ours], [1000 * each for each in base])._asdict(),
                "command_s": spread_of([each.command_s for each in outcomes])._asdict(),
            }  # fmt: skip
        summary["contestants"][name] = figures
    return summary


def render_page(results: Mapping[str, Any]) -> str:
    rows = []
    for summary in results["settings"].values():
        for name, figures in summary["contestants"].items():
            rows.append(render_row(summary["setting"], name, figures))
    head = ["step wanted, ms", "how", "median, ms", "min to max", "middle half", "times plain (95 %)",
            "added, µs a step (95 %)", "whole command, s"]  # fmt: skip
    repeats = sorted(
        {
            each["runs"]
            for summary in results["settings"].values()
            for each in summary["contestants"].values()
        }
    )
    return "\n".join(
        [
            f"## What watching costs, device {results['device']}\n",
            f"{render_machine(results['machine'])} Repeats: {repeats[0]} to {repeats[-1]}, in turn. "
            f"Loader workers {results['workers']}, threads {results['threads']}.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            "**What was worse.** " + " ".join(worse(results)) + "\n",
        ]
    )


def render_row(setting: Mapping[str, Any], name: str, figures: Mapping[str, Any]) -> list[str]:
    lead = [f"{setting['wanted_ms']:g}", NAMES[name]]
    if "spread" not in figures:
        return [*lead, "; ".join(figures["errors"]) or "not run", *[""] * 5]
    spread, ratio, added = figures["spread"], figures["ratio"], figures["added_us"]
    return [
        *lead,
        f"{spread['median']:.3f}",
        f"{spread['min']:.3f} to {spread['max']:.3f}",
        f"{spread['low']:.3f} to {spread['high']:.3f}",
        "1" if name == "plain" else f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
        "" if name == "plain" else f"{added['value']:+.0f} ({added['low']:+.0f} to {added['high']:+.0f})",
        f"{figures['command_s']['median']:.1f}"
        + (f" ({'; '.join(figures['errors'])})" if figures["errors"] else ""),
    ]  # fmt: skip


def worse(results: Mapping[str, Any]) -> list[str]:
    """Say where Stoker costs something that shows, and where a peer costs less."""
    said = []
    for key, summary in results["settings"].items():
        by_name = summary["contestants"]
        stoker = by_name.get("stoker", {})
        if "ratio" not in stoker:
            continue
        ratio = stoker["ratio"]
        if ratio["low"] > 1:
            said.append(f"At {key} ms Stoker costs {100 * (ratio['value'] - 1):.1f} %.")
        for name, figures in by_name.items():
            is_peer = name not in ("plain", "stoker") and "ratio" in figures
            if is_peer and figures["ratio"]["value"] < ratio["value"]:
                said.append(f"At {key} ms {NAMES[name]} costs less than Stoker.")
        plain_s = by_name["plain"]["command_s"]["median"]
        added_s = stoker["command_s"]["median"] - plain_s
        said.append(f"At {key} ms the whole command took {added_s:+.1f} s with Stoker.")
    return said or ["Stoker was not among the contestants."]


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the results of several files as one; of equal step lengths the last counts."""
    parts = [json.loads(path.read_text()) for path in paths]
    settings = {key: value for part in parts for key, value in part["settings"].items()}
    ordered = {key: settings[key] for key in sorted(settings, key=float)}
    return {**parts[-1], "settings": ordered}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps-ms", default="1,3,10,100", metavar="LIST")
    parser.add_argument("--repeats", type=int, default=5)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=max(1, min(4, cores // 3)))
    parser.add_argument("--threads", type=int, default=max(1, min(4, cores // 3)))
    for name in list(NAMES)[1:]:
        parser.add_argument(f"--{name}", action="store_true", help=f"compare {NAMES[name]}")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where the peers are installed")
    parser.add_argument("--budget-s", type=float, help="stop cleanly within so many seconds")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="only join results")
    parser.add_argument("-o", "--output", type=Path)
    return parser


def main() -> None:
    args = make_parser().parse_args()
    output = args.output or HERE / f"overhead-{args.device}.json"
    if args.merge:
        results = merge(args.merge)
        write_results(output, results, render_page(results))
        return
    budget = Budget(args.budget_s)
    chosen = [name for name in list(NAMES)[1:] if getattr(args, name)] or list(NAMES)[1:]
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        # Not resolved: a virtual environment's interpreter is a link.
        python = str(Path(args.python).absolute()) if "/" in args.python else args.python
        arena = Arena(python, args.device, args.workers, args.threads, args.peers, Path(folder))
        machine = describe_machine(python, PACKAGES, peer_environment(args.peers))
        names = ["plain", *(name for name in chosen if is_there(name, arena))]
        settings = calibrate(arena, [float(each) for each in args.steps_ms.split(",")])
        runs = measure(arena, settings, names, args.repeats, budget)
    summaries = {
        f"{each.wanted_ms:g}": summarize(each, index, runs) for index, each in enumerate(settings)
    }
    results = {
        "device": args.device,
        "command": shlex.join(["benchmarks/overhead.py", *sys.argv[1:]]),
        "machine": machine,
        "workers": args.workers,
        "threads": args.threads,
        "absent": [name for name in chosen if name not in names],
        "settings": summaries,
    }
    write_results(output, results, render_page(results))


if __name__ == "__main__":
    main()
