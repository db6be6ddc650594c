"""What watching costs: the same training loop plain, under Stoker, and under two peers.

    .venv/bin/python benchmarks/overhead.py --python .venv-torch/bin/python --peers /tmp/peers
    PYTHONPATH=src python3 benchmarks/overhead.py --device cuda --peers peers --budget-s 570 \\
        --steps-ms 1,3 -o $OUT/overhead-cuda-1.json
    python3 benchmarks/overhead.py --merge overhead-cuda-*.json -o benchmarks/overhead-cuda.json

The script is `programs/mnist.py`, a guide's convolutional network; the narrowest has no
convolutions. How wide it is, and so how long a step, is chosen once, before anything is compared.
All contestants run at the same time and take turns: one trains a block of steps, a third of a second
or 20 steps long, while the others wait, so that a busy moment of the machine hits all of them alike.
Where there are cores enough, all train on the same two of them, and load on others. Blocks of one
turn are compared with each other. A launch starts everybody anew; there are several. Two equal
processes may differ by more than watching costs: with `--copies` there are several pairs of plain
and watched ones in a launch, and intervals are of pairs where there are enough; the peers, who cost
more, are there once. Each is run as its own documentation says, with the edits that it asks for
(EDITS). What waits for its turn goes on watching, and pays for it in the next block: figures err
against those who watch. Step lengths come in the order given, in one process: the last ones find
it minutes old, when what costs more at the beginning of a run is over.

The peers go into a folder of their own, for the Python that runs the script:

    pip install --target peers --no-deps traceml-ai==0.5.0 line_profiler==5.1.0 msgspec \\
        nvidia-ml-py rich psutil pyyaml pygments markdown-it-py mdurl
    (for another Python, add: --python-version 3.12 --only-binary=:all:)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import median_of, render_table, spread_of, write_results
from machine import (
    HERE,
    PROGRAMS,
    Budget,
    describe_machine,
    peer_environment,
    plain_environment,
    quiet_cores,
    render_machine,
    stoker_environment,
    stoker_run,
)

from stoker.units import plural

SCRIPT = PROGRAMS / "mnist.py"
PACKAGES = ("torch", "traceml-ai", "line_profiler", "numpy")
BLOCK_S = 0.3
MIN_STEPS, MIN_BLOCKS = 20, 5
# A turn takes a second or two; one that hangs must not take the machine's time with it.
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
# (with the copy inside, where it can be timed).
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
}  # fmt: skip

NAMES = {
    "plain": "plain python",
    "stoker": "stoker run",
    "traceml": "TraceML, edited script",
    "kernprof": "kernprof -l -p, lines of the script",
}
PEERS = ("traceml", "kernprof")
# From so many on, intervals are of pairs of processes; below, of their turns.
MIN_PAIRS = 4


@dataclass(frozen=True)
class Setting:
    """One step length: what was wanted, and the network that comes near it."""

    wanted_ms: float
    batch: int
    width: int
    workers: int
    ms: float
    turns: int

    def warm(self) -> int:
        """Return after how many steps timing begins; longer steps warm up in fewer."""
        return max(12, min(100, round(1500 / self.ms)))

    def block(self) -> int:
        """Return how many steps are one turn."""
        return max(MIN_STEPS, round(1000 * BLOCK_S / self.ms))

    def blocks(self) -> int:
        """Return how many turns there are: fewer, but some, where one takes longer."""
        return max(MIN_BLOCKS, round(self.turns * 1000 * BLOCK_S / (self.ms * self.block())))


@dataclass(frozen=True)
class Arena:
    """Where and with what the contestants run."""

    python: str
    device: str
    workers: int
    threads: int
    peers: Path | None
    copies: int
    together: bool

    def core_words(self) -> list[str]:
        """Return where the loop is to run, and where its workers; on a CPU it takes all it gets."""
        loop, others = quiet_cores() if self.device == "cuda" else ([], [])
        return ["--cores", _numbers(loop), "--worker-cores", _numbers(others)] if others else []

    def words(self, settings: Sequence[Setting], turns: Path) -> list[str]:
        """Return the script's arguments, the same for all: every step length in one process."""
        words = ["--device", self.device, "--threads", str(self.threads), "--turns", str(turns)]
        words += self.core_words()
        for each in settings:
            shape = (each.batch, each.width, each.workers)
            words.append(_numbers((*shape, each.warm(), each.block(), each.blocks())))
        return words


def _numbers(values: Iterable[int]) -> str:
    return ",".join(str(each) for each in values)


def calibrate(arena: Arena, wanted: Sequence[float], turns: Sequence[int]) -> list[Setting]:
    command = [
        arena.python, str(PROGRAMS / "calibrate.py"), "--device", arena.device,
        "--workers", str(arena.workers), "--threads", str(arena.threads), *arena.core_words(),
        *(f"{each:g}" for each in wanted),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=plain_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    found = [each for each in done.stdout.splitlines() if each.startswith('{"wanted_ms"')]
    return [
        Setting(**json.loads(line), turns=number) for line, number in zip(found, turns, strict=True)
    ]


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
    words = arena.words(settings, room)
    peers = peer_environment(arena.peers)
    if name == "plain":
        return [python, str(SCRIPT), *words], plain_environment()
    if name == "stoker":
        return stoker_run(python, room / "run", str(SCRIPT), *words), stoker_environment()
    if name == "kernprof":
        options = ["-l", "-p", str(SCRIPT), "-o", str(room / "mnist.lprof")]
        return [python, "-m", "kernprof", *options, str(SCRIPT), *words], peers
    edited = write_edited(name, room)
    options = ["run", str(edited), "--logs-dir", str(room / "logs"), "--args"]
    return [python, "-m", "traceml_ai.launcher.cli", *options, *words], peers


class Contestant:
    """One command while it runs: it trains a block of steps whenever it is given a turn."""

    def __init__(
        self, name: str, copy: int, arena: Arena, settings: Sequence[Setting], room: Path
    ) -> None:
        self.name = name
        self.copy = copy
        self.room = room
        self.error = ""
        room.mkdir()
        for pipe in ("go", "done"):
            os.mkfifo(room / pipe)
        # Both for reading and writing: neither end waits for the other to be opened.
        self._go = os.open(room / "go", os.O_RDWR)
        self._done = os.open(room / "done", os.O_RDWR)
        self._heard = b""
        command, env = contestant(name, arena, settings, room)
        self._log = (room / "log").open("w+")
        self.process = subprocess.Popen(
            command, env=env, cwd=room, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def take_turn(self) -> float | None:
        """Let it go on, and return the seconds that it took, once it is done."""
        os.write(self._go, b".")
        return self.wait()

    def wait(self) -> float | None:
        """Return the seconds that it tells next; None, and why in `error`, if it fails."""
        if self.error:
            return None
        end = time.monotonic() + LIMIT_S
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._done], [], [], 0.5)
            if ready:
                self._heard += os.read(self._done, 4096)
            elif self.process.poll() is not None or time.monotonic() > end:
                self.fail()
                return None
        line, _, self._heard = self._heard.partition(b"\n")
        return float(line)

    def fail(self) -> None:
        """Note why it does not go on, and end it."""
        code = self.process.poll()
        if code is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        self._log.seek(0)
        last = [line for line in self._log.read().splitlines() if line.strip()][-1:]
        self.error = f"exit {code}: {(last or ['nothing said'])[0][:200]}"

    def end(self) -> None:
        """Wait for its end; something that recorded nothing has no figures."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.fail()
            return
        for descriptor in (self._go, self._done):
            os.close(descriptor)
        if code and not self.error:
            self.fail()
        if not self.error and not has_watched(self.name, self.room):
            self.error = "ended well but recorded nothing"


def has_watched(name: str, room: Path) -> bool:
    """Say whether there is a record: something that did not watch costs nothing."""
    records = {"stoker": "run/steps/*.jsonl", "traceml": "logs/*/final_summary.json",
               "kernprof": "mnist.lprof"}  # fmt: skip
    return name == "plain" or any(room.glob(records[name]))


# The milliseconds a step of one launch: of each contestant, for each step length and copy of it,
# block by block.
Launch = dict[str, list[list[list[float]]]]


def launch(
    number: int, arena: Arena, settings: Sequence[Setting], names: Sequence[str]
) -> tuple[Launch, dict[str, str]]:
    """Start everybody, let them take turns to the end, and return the figures and the errors."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        everybody = []
        for copy, name in itertools.product(range(arena.copies), names):
            if copy and name in PEERS:
                continue
            room = Path(folder) / f"{name}-{copy}"
            everybody.append(Contestant(name, copy, arena, settings, room))
            if not arena.together:
                everybody[-1].wait()
        if arena.together:
            for each in everybody:
                each.wait()
        figures: Launch = {name: [] for name in names}
        for setting in settings:
            for name in names:
                figures[name].append([[] for each in everybody if each.name == name])
            for each in everybody:
                each.take_turn()  # to warm up
            for turn in range(setting.blocks()):
                first = (number + turn) % len(everybody)
                in_turn = everybody[first:] + everybody[:first]
                # Who comes after whom changes: one may leave the GPU warmer than another.
                for each in in_turn if turn % 2 == 0 else reversed(in_turn):
                    seconds = each.take_turn()
                    if seconds is not None:
                        ms = 1000 * seconds / setting.block()
                        figures[each.name][-1][each.copy].append(ms)
            told = ", ".join(
                " ".join(
                    [name, *(f"{statistics.median(ms):.3f}" for ms in figures[name][-1] if ms)]
                )
                for name in names
            )
            print(
                f"launch {number + 1}, {setting.wanted_ms:g} ms: {told}",
                file=sys.stderr,
                flush=True,
            )
        for each in everybody:
            each.end()
    errors = {each.name: each.error for each in everybody if each.error}
    # What failed on its way has no figures that can be compared.
    return {name: blocks for name, blocks in figures.items() if name not in errors}, errors


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
    arena: Arena, settings: Sequence[Setting], names: Sequence[str], launches: int, budget: Budget
) -> tuple[list[Launch], dict[str, str]]:
    """Launch everybody again and again, as long as the budget lasts."""
    done: list[Launch] = []
    errors: dict[str, str] = {}
    longest = 0.0
    for number in range(launches):
        if not budget.has(1.2 * longest):
            print(f"budget spent after {number} launches", file=sys.stderr)
            break
        began = time.monotonic()
        figures, failed = launch(number, arena, settings, names)
        longest = max(longest, time.monotonic() - began)
        errors |= failed
        done.append(figures)
    return done, errors


def summarize(
    setting: Setting, index: int, launches: Sequence[Launch], errors: Mapping[str, str]
) -> dict[str, Any]:
    """Return one step length with its figures, turn by turn beside the plain run."""
    summary: dict[str, Any] = {"setting": setting.__dict__, "contestants": {}}
    for name in [*launches[0], *errors]:
        pairs = [
            list(zip(ours, base, strict=True))
            for each in launches
            if name in each and "plain" in each
            for ours, base in zip(each[name][index], each["plain"][index], strict=name not in PEERS)
        ]
        figures: dict[str, Any] = {"pairs": len(pairs), "error": errors.get(name, "")}
        if pairs:
            # Each turn beside the plain one of the same second: the machine's speed wanders.
            turns = [turn for pair in pairs for turn in pair]
            ratios = [statistics.median(ours / base for ours, base in pair) for pair in pairs]
            # A few pairs have no spread to speak of: there it is that of their turns.
            units = pairs if len(pairs) >= MIN_PAIRS else [[turn] for turn in turns]
            figures |= {
                "ms": [[ours for ours, _ in pair] for pair in pairs],
                "spread": spread_of([ours for ours, _ in turns])._asdict(),
                "ratio": median_of(
                    [statistics.median(ours / base for ours, base in unit) for unit in units]
                )._asdict(),
                "ratios": ratios,
                "added_us": median_of(
                    [1000 * statistics.median(ours - base for ours, base in unit) for unit in units]
                )._asdict(),
            }
        summary["contestants"][name] = figures
    return summary


def render_page(results: Mapping[str, Any]) -> str:
    rows = []
    for summary in results["settings"].values():
        for name, figures in summary["contestants"].items():
            rows.append(render_row(summary["setting"], name, figures))
    workers = ", ".join(
        f"{each['setting'].get('workers', results['workers'])} at {key} ms"
        for key, each in results["settings"].items()
    )
    head = ["step, ms", "how", "turns", "median, ms", "middle half", "times plain (95 %)",
            "by pair", "added, µs a step (95 %)"]  # fmt: skip
    return "\n".join(
        [
            f"## What watching costs, device {results['device']}\n",
            f"{render_machine(results['machine'])} Launches: {results['launches']}, each of "
            f"{plural(results.get('copies', 1), 'pair')}; turns of {BLOCK_S:g} s or {MIN_STEPS} steps. "
            f"Loader workers {workers}; threads {results['threads']}.\n",
            f"`{results['command']}`\n",
            render_table(head, rows),
            "**What was worse.** " + " ".join(worse(results)) + "\n",
        ]
    )


def render_row(setting: Mapping[str, Any], name: str, figures: Mapping[str, Any]) -> list[str]:
    lead = [f"{setting['wanted_ms']:g}", NAMES[name]]
    if "spread" not in figures:
        return [*lead, "", figures["error"] or "not run", *[""] * 4]
    spread, ratio, added = figures["spread"], figures["ratio"], figures["added_us"]
    lead += [
        str(spread["repeats"]),
        f"{spread['median']:.3f}",
        f"{spread['low']:.3f} to {spread['high']:.3f}",
    ]
    if name == "plain":
        return [*lead, "1", "", ""]
    return [
        *lead,
        f"{ratio['value']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})",
        f"{min(figures['ratios']):.3f} to {max(figures['ratios']):.3f}",
        f"{added['value']:+.0f} ({added['low']:+.0f} to {added['high']:+.0f})",
    ]


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
            is_peer = name in PEERS and "ratio" in figures
            if is_peer and figures["ratio"]["value"] < ratio["value"]:
                said.append(f"At {key} ms {NAMES[name]} costs less than Stoker.")
    return said or ["Nothing that shows."]


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
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument(
        "--blocks", default="10", metavar="LIST", help="turns of 0.3 s, of all step lengths or each"
    )
    parser.add_argument(
        "--copies", type=int, default=1, help="pairs of plain and watched processes"
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=max(1, min(4, cores // 3)))
    parser.add_argument("--threads", type=int, default=max(1, min(4, cores // 3)))
    for name in list(NAMES)[1:]:
        parser.add_argument(f"--{name}", action="store_true", help=f"compare {NAMES[name]}")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where the peers are installed")
    parser.add_argument("--together", action="store_true", help="start all at once: needs cores")
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
    # Not resolved: a virtual environment's interpreter is a link.
    python = str(Path(args.python).absolute()) if "/" in args.python else args.python
    arena = Arena(
        python, args.device, args.workers, args.threads, args.peers, args.copies, args.together,
    )  # fmt: skip
    machine = describe_machine(python, PACKAGES, peer_environment(args.peers))
    names = ["plain", *(name for name in chosen if is_there(name, arena))]
    wanted = [float(each) for each in args.steps_ms.split(",")]
    turns = [int(each) for each in args.blocks.split(",")]
    if len(turns) == 1:
        turns *= len(wanted)
    settings = calibrate(arena, wanted, turns)
    launches, errors = measure(arena, settings, names, args.launches, budget)
    summaries = {
        f"{each.wanted_ms:g}": summarize(each, index, launches, errors)
        for index, each in enumerate(settings)
    }
    results = {
        "device": args.device,
        "command": shlex.join(["benchmarks/overhead.py", *sys.argv[1:]]),
        "machine": machine,
        "workers": args.workers,
        "threads": args.threads,
        "launches": len(launches),
        "copies": args.copies,
        "absent": [name for name in chosen if name not in names],
        "settings": summaries,
    }
    write_results(output, results, render_page(results))


if __name__ == "__main__":
    main()
