"""Is the split right? Delays of known length are planted in a step; where does Stoker find them?

    .venv/bin/python benchmarks/split.py --python .venv-torch/bin/python
    .venv/bin/python benchmarks/split.py --python .venv-torch/bin/python --only plain,ddp --workers 0
    .venv/bin/python benchmarks/split.py --python .venv-tf/bin/python -o benchmarks/split-tf.json --turns 3
    PYTHONPATH=src python3 benchmarks/split.py --device cuda --budget-s 570 -o $OUT/split-cuda.json

Each loop of `programs/loops.py` and `programs/tf_loops.py` whose framework the interpreter has is
run under `stoker run` without delays, with each delay alone, and with several together. What a
phase grew by is compared with what was planted there, which the program counts itself; a phase in
which nothing was planted must not grow. Waits for data that loader workers hide are no cost: there
the truth is computed (`expected_data`). A row is right within 5 % of the step or 0.2 ms, whichever
is more. With `--turns` all runs of a loop are made several times, and the middle of each figure counts.

On a GPU the delays of forward, backward and optimizer are kernels that spin, and the transfer is
a copy of pageable memory; what data may cost there is what the step grew by, by the program's own
clock, less what was planted on the GPU, against the middle of the runs without a delay in loading;
where that is not what the program's own events say of the wait, these count. Loops of two ranks
(gloo) and those of TensorFlow run on the CPU only.
`--ahead 1` imports for the next run while one trains, which takes a core more and half the time.
`--busy` makes the delays compute instead of sleep; that needs a core for each worker.
`--merge` joins files of several commands.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from figures import render_table, write_results
from machine import (
    HERE,
    PROGRAMS,
    Budget,
    describe_machine,
    plain_environment,
    render_machine,
    stoker_environment,
    stoker_run,
)

from stoker.watch.series import merged, read_series

PACKAGES = ("torch", "lightning", "pytorch-lightning", "transformers", "accelerate", "deepspeed",
            "tensorflow", "tensorflow-cpu", "keras")  # fmt: skip
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "comm", "graph", "other")
# Within this, a found figure is right.
SHARE_OF_STEP = 0.05
FLOOR_MS = 0.2
LIMIT_S = 120.0

NOTHING = "nothing"
# Different lengths, so that a delay in the wrong place cannot pass for another.
CASES: dict[str, dict[str, float]] = {
    NOTHING: {},
    "item": {"item": 24},
    "collate": {"collate": 20},
    "transfer": {"transfer": 5},
    "forward": {"forward": 6},
    "backward": {"backward": 8},
    "optimizer": {"optimizer": 4},
    "all": {"item": 20, "collate": 10, "transfer": 5, "forward": 6, "backward": 8, "optimizer": 4},
    "starved": {"item": 48, "forward": 6},
}
# In `hidden` only the first bucket is late, and the backward pass outlasts it.
RANKS_CASES: dict[str, dict[str, dict[str, float]]] = {
    "ddp": {
        NOTHING: {},
        "comm": {"comm": 10},
        "comm+backward": {"comm": 10, "backward": 12},
        "hidden": {"late": 6, "backward": 12},
    },
    "allreduce": {NOTHING: {}, "late": {"late": 10}, "late+backward": {"late": 10, "backward": 8}},
}
# Longer ones: what TensorFlow itself takes for a step, 1 to 3 ms, is half a millisecond more where the
# machine was idle before. And one between two steps, as in a user's callback, but none in a transfer.
TF_CASES: dict[str, dict[str, float]] = {
    NOTHING: {},
    "item": {"item": 72},
    "collate": {"collate": 60},
    "forward": {"forward": 18},
    "backward": {"backward": 24},
    "optimizer": {"optimizer": 12},
    "between": {"between": 21},
    "all": {
        "item": 60,
        "collate": 30,
        "forward": 18,
        "backward": 24,
        "optimizer": 12,
        "between": 15,
    },
    "starved": {"item": 144, "forward": 18},
}
# TensorFlow's, and whether a step is one piece there.
TF_LOOPS = {"keras_fit": True, "keras_validation": True, "keras_eager": False,
            "tf_graph": True, "tf_inside": True, "tf_eager": False}  # fmt: skip
LOOPS = ("plain", "accumulate", "zipped", "gan", "validation", "amp", "compiled", "graphs",
         "lightning", "hf", "accelerate", "deepspeed", *RANKS_CASES, *TF_LOOPS)  # fmt: skip
# What a loop needs besides its framework: one of these modules.
NEEDS = {
    "lightning": ("lightning.pytorch", "pytorch_lightning"),
    "hf": ("transformers.trainer",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
}
ONLY_ON = {"graphs": "cuda", "ddp": "cpu", "allreduce": "cpu", **dict.fromkeys(TF_LOOPS, "cpu")}
WITH_VALIDATION = ("validation", "keras_validation")
BATCHES_A_STEP = {"accumulate": 2, "zipped": 2}
# Loaders that fetch beside each other.
LOADERS = {"zipped": 2}


@dataclass(frozen=True)
class Found:
    """One run of one rank: what Stoker measured, what was planted, all in ms a step."""

    phases: dict[str, float]
    planted: dict[str, float]
    load_ms: float
    step_ms: float
    own_step_ms: float
    own_wait_ms: float
    # Of a call that is a whole step, less its wait for data.
    own_call_ms: float | None


@dataclass(frozen=True)
class Run:
    """One command: a loop with its delays."""

    loop: str
    workers: int
    case: str
    plants: Mapping[str, float] = field(compare=False)


# -- running ---------------------------------------------------------------------------


def run_once(run: Run, args: argparse.Namespace, folder: Path) -> list[Found]:
    """Run one program under watch; return what was found, one for each rank.

    Programs whose folders lie side by side train in turn. Raises RuntimeError, with the last thing
    it said, where the program fails.
    """
    script = PROGRAMS / ("tf_loops.py" if run.loop in TF_LOOPS else "loops.py")
    words = [str(script), "--loop", run.loop, "--device", args.device,
             "--workers", str(run.workers), "--steps", str(args.steps)]  # fmt: skip
    words += ["--turn", str(folder.parent / "turn"), "--ready", ",".join(NEEDS.get(run.loop, ()))]
    words += ["--plant", ",".join(f"{place}={ms:g}" for place, ms in run.plants.items())]
    words += ["--busy"] if args.busy else []
    if run.loop in RANKS_CASES:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = [*launch, *words]
    command = stoker_run(args.python, folder / "run", *words)
    process = subprocess.Popen(
        command, cwd=folder, env=stoker_environment(), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise RuntimeError(f"no end after {LIMIT_S:g} s") from None
    lines = (
        line[line.index('{"planted"') :] for line in output.splitlines() if '{"planted"' in line
    )
    told = sorted((json.loads(line) for line in lines), key=lambda each: int(each["rank"]))
    if process.returncode or not told:
        last = [line for line in errors.splitlines() if line.strip()][-1:]
        raise RuntimeError(f"exit {process.returncode}: {(last or ['nothing said'])[0][:200]}")
    if run.loop == "allreduce":
        # Rank 0 waits for what rank 1 was late by.
        told[0]["planted"]["late"] = told[1]["planted"]["late"]
    files = step_files(folder / "run", len(told))
    is_on_gpu = args.device == "cuda"
    return [found_in(file, each, is_on_gpu) for file, each in zip(files, told, strict=True)]


def step_files(folder: Path, ranks: int) -> list[Path]:
    """Return the step records, one a rank. The one place that knows where they are."""
    files = sorted((folder / "steps").glob("*.jsonl"))
    if len(files) != ranks:
        raise RuntimeError(f"{len(files)} step records for {ranks} ranks")
    return files


def found_in(file: Path, told: Mapping[str, Any], is_on_gpu: bool) -> Found:
    """Read one rank. The one place that knows Stoker's column names."""
    _, rows = read_series(file)
    whole = merged(rows)
    stats = whole.stats if whole is not None else {}
    if "steady.step" not in stats:
        raise RuntimeError(f"no steady steps in {file.name}: {', '.join(stats) or 'nothing'}")
    # On a GPU only some of the steps are measured.
    measured = stats.get("steady.device_step" if is_on_gpu else "steady.step")
    if measured is None:
        raise RuntimeError(f"no steady step was measured on the device in {file.name}")
    steps = measured.count
    evaluation = stats.get("eval.device_step" if is_on_gpu else "eval.step")
    evaluated = evaluation.count if evaluation else 0

    def ms(name: str, count: int) -> float:
        stat = stats.get(name)
        return 1000 * stat.mean * stat.count / count if stat and count else 0.0

    phases = {phase: ms(f"steady.{phase}", steps) for phase in PHASES}
    phases |= {f"eval.{phase}": ms(f"eval.{phase}", evaluated) for phase in ("forward", "h2d")}
    if "steady.ddp_comm" in stats:
        # What DDP itself measured; what did not overlap is inside the backward pass.
        exposed = 1000 * (stats["steady.ddp_comm"].mean - stats["steady.ddp_overlapped"].mean)
        phases["comm"] += exposed
        phases["backward"] -= exposed
    planted = {
        place: 1000 * seconds / (count if place.startswith("eval.") else told["steps"]) if count else 0.0
        for place, (seconds, count) in told["planted"].items()
    }  # fmt: skip
    batches = told["planted"]["collate"][1]
    load_s = told["planted"]["item"][0] + told["planted"]["collate"][0]
    # The program's clock knows nothing of steps that are traced, and so kept apart.
    steps_told = [stats[each] for each in ("steady.step", "traced.step") if each in stats]
    step_s = sum(each.mean * each.count for each in steps_told) / sum(e.count for e in steps_told)
    return Found(
        phases,
        planted,
        load_ms=1000 * load_s / batches if batches else 0.0,
        step_ms=1000 * step_s,
        own_step_ms=told["step_ms"],
        own_wait_ms=told["wait_ms"],
        own_call_ms=told["call_ms"],
    )


# -- the truth -------------------------------------------------------------------------

# Which delays are found in which phase.
PLANTED_IN = {
    "data": ("item", "collate"),
    "h2d": ("transfer",),
    "forward": ("forward",),
    "backward": ("backward",),
    "optimizer": ("optimizer",),
    "comm": ("comm",),
    "other": ("between",),
}
GRAPH_PLANTED_IN = {"data": ("item", "collate"), "h2d": ("transfer",), "other": ("between",),
                    "graph": ("forward", "backward", "optimizer")}  # fmt: skip
EVAL_PLANTED_IN = {"eval.h2d": ("eval.transfer",), "eval.forward": ("eval.forward",)}
# Rank 0 waits for rank 1, which comes late out of its forward pass.
LATE_IN = ("comm", "forward")


@dataclass(frozen=True)
class Group:
    """All runs of one loop with so many workers, as one rank saw them."""

    device: str
    rank: int
    runs: dict[Run, Found]

    def any_run(self) -> Run:
        """Return one of the runs; they are alike but for what is planted."""
        return next(iter(self.runs))

    def places(self, phase: str) -> tuple[str, ...]:
        """Return the delays that are found in a phase."""
        loop = self.any_run().loop
        if phase.startswith("eval."):
            return EVAL_PLANTED_IN[phase]
        is_graph = loop == "graphs" or TF_LOOPS.get(loop, False)
        places = (GRAPH_PLANTED_IN if is_graph else PLANTED_IN).get(phase, ())
        if loop == "ddp" and phase == "comm":
            return (*places, "late")
        return (*places, "late") if loop == "allreduce" and phase == LATE_IN[self.rank] else places

    def phases(self) -> tuple[str, ...]:
        """Return the phases that are compared."""
        is_evaluated = self.any_run().loop in WITH_VALIDATION
        return (*PHASES, *EVAL_PLANTED_IN) if is_evaluated else PHASES

    def base(self, phase: str) -> float:
        """Return what a phase takes where nothing is planted in it: the middle of such runs."""
        if phase == "data" and self.any_run().workers > 0:
            # Workers hide what they can; what is left everywhere is the handing over of a batch.
            return min(found.phases[phase] for found in self.runs.values())
        if phase == "comm" and self.any_run().loop in RANKS_CASES:
            # Ranks that wait give each other the machine: what they need beside a delay shrinks.
            beside = (
                found.phases[phase] - planted_growth(self, run)[phase]
                for run, found in self.runs.items()
            )
            return max(0.0, min(beside))
        clean = [
            found.phases[phase]
            for run, found in self.runs.items()
            if not any(has_planted(run, place) for place in self.places(phase))
        ]
        return statistics.median(clean)

    def growth(self, run: Run, place: str) -> float:
        """Return what was planted in one place, beyond what all runs have there."""
        if not has_planted(run, place):
            return 0.0
        others = [
            found.planted[place]
            for other, found in self.runs.items()
            if not has_planted(other, place)
        ]
        return self.runs[run].planted[place] - statistics.median(others)


def has_planted(run: Run, place: str) -> bool:
    """Say whether a run has a delay there; evaluation has those of training."""
    return place.removeprefix("eval.") in run.plants


def planted_growth(group: Group, run: Run) -> dict[str, float]:
    """Return what was planted in each phase, in ms a step, as if nothing hid loading."""
    planted = {
        phase: sum(group.growth(run, place) for place in group.places(phase))
        for phase in group.phases()
    }
    if run.loop == "ddp":
        hidden = min(group.growth(run, "late"), group.growth(run, "backward"))
        planted["comm"] -= max(0.0, hidden)
    return planted


def expected_growth(group: Group, run: Run) -> dict[str, float]:
    """Return by how much each phase must have grown, in ms a step."""
    expected = planted_growth(group, run)
    if group.device == "cuda":
        expected["data"] = max(0.0, beside_plants(group, run) - undelayed_step(group))
    else:
        rest = sum(expected[phase] for phase in PHASES if phase != "data")
        expected["data"] = expected_data(group, run, rest)
    return expected


def beside_plants(group: Group, run: Run) -> float:
    """Return how long a step took by the program's own clock, less what was planted in the GPU's."""
    planted = planted_growth(group, run)
    return group.runs[run].own_step_ms - sum(planted[phase] for phase in PHASES if phase != "data")


def undelayed_step(group: Group) -> float:
    """Return the same where nothing delays loading: the middle of such runs."""
    places = group.places("data")
    return statistics.median(
        beside_plants(group, run)
        for run in group.runs
        if not any(has_planted(run, place) for place in places)
    )


def expected_data(group: Group, run: Run, rest: float) -> float:
    """Return by how much the exposed wait for data must have grown on the CPU.

    Without workers all loading is exposed. With workers that keep up a batch still takes a
    moment to be handed over; with others a step lasts as long as they need for its batches.
    """
    batches, load_ms = BATCHES_A_STEP.get(run.loop, 1), group.runs[run].load_ms
    if run.workers == 0:
        return batches * load_ms
    arrival = batches * load_ms / (run.workers * LOADERS.get(run.loop, 1))
    others = rest + sum(group.base(phase) for phase in PHASES if phase != "data")
    return max(0.0, arrival - others - group.base("data"))


def compare(group: Group) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase of each run that had delays, and for the step of all."""
    for run, found in group.runs.items():
        if run.case != NOTHING:
            for phase, planted in expected_growth(group, run).items():
                grew = found.phases[phase] - group.base(phase)
                truth, kind = judge(group, run, phase, planted)
                yield {**make_row(group, run, phase, truth, grew), "truth": kind}
        yield {**make_row(group, run, "step", found.own_step_ms, found.step_ms), "truth": "clock"}


def judge(group: Group, run: Run, phase: str, planted: float) -> tuple[float, str]:
    """Return the truth and where it comes from.

    On a busy machine workers do not keep up as computed, and a graph takes longer beside them or
    after them; the loop's own clock then says how long it was, or events of its own how long the
    GPU stood still.
    """
    own = own_clock(group, run, phase)
    if own is None:
        return planted, "planted"
    grew = own - group.base(phase)
    is_near = abs(grew - planted) <= tolerance(group.runs[run])
    return (planted, "planted") if is_near else (grew, "clock")


def own_clock(group: Group, run: Run, phase: str) -> float | None:
    """Return what the program's own clock says of a phase, in ms a step; None if it says nothing."""
    found = group.runs[run]
    if phase == "data":
        return found.own_wait_ms
    if not TF_LOOPS.get(run.loop) or found.own_call_ms is None:
        return None
    beside = found.own_step_ms - found.own_wait_ms - found.own_call_ms
    return {"graph": found.own_call_ms, "other": beside}.get(phase)


def tolerance(found: Found) -> float:
    """Return within how many ms a figure is right."""
    return max(SHARE_OF_STEP * found.own_step_ms, FLOOR_MS)


def make_row(group: Group, run: Run, phase: str, planted: float, found: float) -> dict[str, Any]:
    error = found - planted
    return {
        "loop": run.loop,
        "workers": run.workers,
        "case": run.case,
        "rank": group.rank,
        "phase": phase,
        "planted_ms": round(planted, 3),
        "found_ms": round(found, 3),
        "error_ms": round(error, 3),
        "error_pct_of_step": round(100 * error / group.runs[run].own_step_ms, 2),
        "ok": abs(error) <= tolerance(group.runs[run]),
    }


# -- all of them -----------------------------------------------------------------------


def wanted_runs(args: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs, those without delays first in each group."""
    loops = args.only.split(",") if args.only else LOOPS
    for loop in loops:
        if ONLY_ON.get(loop, args.device) != args.device or not has_needed(loop, args.python):
            continue
        is_ranks = loop in RANKS_CASES
        cases = TF_CASES if loop in TF_LOOPS else RANKS_CASES.get(loop, CASES)
        kept = {NOTHING, *(args.cases.split(",") if args.cases else cases)}
        for workers in [0] if is_ranks else [int(each) for each in args.workers.split(",")]:
            for case, plants in cases.items():
                if case in kept:
                    yield Run(loop, workers, case, plants)


def has_needed(loop: str, python: str) -> bool:
    names = NEEDS.get(loop, ("tensorflow" if loop in TF_LOOPS else "torch",))
    ask = f"import importlib.util as u, sys; sys.exit(not any(u.find_spec(n.split('.')[0]) for n in {names}))"
    done = subprocess.run([python, "-c", ask], env=plain_environment(), check=False)
    if done.returncode:
        print(f"{loop}: left out, none of {', '.join(names)} is there", file=sys.stderr)
    return done.returncode == 0


def measure(args: argparse.Namespace, budget: Budget) -> tuple[list[dict[str, Any]], list[str], int]:  # fmt: skip
    """Return the rows, the failures, and how many runs the budget did not allow."""
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    not_run, longest = 0, 15.0

    def try_once(run: Run) -> list[Found] | None:
        """Return what was found, or None where there is no time left."""
        nonlocal longest
        if not budget.has(1.3 * longest):
            return None
        began = perf_counter()
        try:
            return run_once(run, args, Path(tempfile.mkdtemp(dir=folder)))
        finally:
            longest = max(perf_counter() - began, 0.8 * longest)

    with (
        tempfile.TemporaryDirectory(prefix="split-") as folder,
        ThreadPoolExecutor(1 + args.ahead) as pool,
    ):
        groups = itertools.groupby(wanted_runs(args), key=lambda run: (run.loop, run.workers))
        tries = [
            [(run, pool.submit(try_once, run)) for _ in range(args.turns) for run in runs]
            for runs in [list(group) for _, group in groups]
        ]
        for group in tries:
            turns: dict[Run, list[list[Found]]] = {}
            for run, tried in group:
                try:
                    ranks = tried.result()
                except RuntimeError as error:
                    failures.append(f"{run.loop}, {run.workers} workers, {run.case}: {error}")
                    print(failures[-1], file=sys.stderr, flush=True)
                    continue
                if ranks is None:
                    not_run += 1
                else:
                    turns.setdefault(run, []).append(ranks)
            found = {
                run: [middle(each) for each in zip(*of, strict=True)] for run, of in turns.items()
            }
            rows += compare_ranks(args.device, found)
    return rows, failures, not_run


def middle(turns: Sequence[Found]) -> Found:
    """Return the middle of each figure of one rank over several turns."""
    of = statistics.median
    calls = [each.own_call_ms for each in turns if each.own_call_ms is not None]
    return Found(
        phases={phase: of(each.phases[phase] for each in turns) for phase in turns[0].phases},
        planted={place: of(each.planted[place] for each in turns) for place in turns[0].planted},
        load_ms=of(each.load_ms for each in turns),
        step_ms=of(each.step_ms for each in turns),
        own_step_ms=of(each.own_step_ms for each in turns),
        own_wait_ms=of(each.own_wait_ms for each in turns),
        own_call_ms=of(calls) if calls else None,
    )


def compare_ranks(device: str, found: Mapping[Run, Sequence[Found]]) -> list[dict[str, Any]]:
    """Return the rows of one group of runs; none without the run that has no delays."""
    rows: list[dict[str, Any]] = []
    if not any(run.case == NOTHING for run in found):
        return rows
    for rank in range(len(next(iter(found.values())))):
        rows += compare(Group(device, rank, {run: each[rank] for run, each in found.items()}))
    for row in rows:
        if row["planted_ms"] or not row["ok"]:
            print(render_line(row), file=sys.stderr, flush=True)
    return rows


def render_line(row: Mapping[str, Any]) -> str:
    name = f"{row['loop']} w{row['workers']} {row['case']} r{row['rank']} {row['phase']}"
    return (
        f"{name:48} planted {row['planted_ms']:8.2f}  found {row['found_ms']:8.2f}  "
        f"error {row['error_ms']:+7.2f} ms ({row['error_pct_of_step']:+.1f} %)"
        f"  {'ok' if row['ok'] else 'WRONG'}"
    )


def render_page(results: Mapping[str, Any]) -> str:
    rows = results["rows"]
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["loop"], row["workers"]), []).append(row)
    summary = []
    for (loop, workers), group in groups.items():
        worst = max(group, key=lambda row: abs(row["error_pct_of_step"]))
        right = sum(row["ok"] for row in group)
        summary.append(
            [loop, workers, f"{right} of {len(group)}",
             f"{worst['error_ms']:+.2f} ms, {worst['error_pct_of_step']:+.1f} % of the step",
             f"{worst['phase']} ({worst['case']})"]
        )  # fmt: skip
    wrong = [row for row in rows if not row["ok"]]
    by_clock = sum(row["truth"] == "clock" and row["phase"] != "step" for row in rows)
    telling = [row for row in rows if row["planted_ms"] and row["phase"] != "step"]
    right = sum(row["ok"] for row in rows)
    parts = [
        f"## Is the split right, device {results['device']}\n",
        *(
            f"{render_machine(part['machine'])} {part['steps']} steps a run, "
            f"{render_turns(part.get('turns', 1))}delays "
            f"{'compute' if part['busy'] else 'sleep'}.\n\n`{part['command']}`\n"
            for part in results.get("parts", [results])
        ),
        f"{right} of {len(rows)} figures are within 5 % of the step or 0.2 ms. For {by_clock} of them "
        "the machine was too busy for the computed truth; the program's own clock stands in.\n",
        render_table(["loop", "workers", "right", "worst error", "where"], summary),
        "**What was worse.** "
        + ("Every figure was right." if not wrong else f"{len(wrong)} figures were wrong:")
        + "\n",
    ]
    if wrong:
        parts.append(render_rows(wrong))
    if results["failures"]:
        parts.append("Programs that failed:\n\n- " + "\n- ".join(results["failures"]) + "\n")
    if results["not_run"]:
        parts.append(f"The budget did not allow {results['not_run']} more runs.\n")
    parts.append("Every planted delay:\n")
    parts.append(render_rows(telling))
    return "\n".join(parts)


def render_turns(turns: int) -> str:
    return f"the middle of {turns} runs, " if turns > 1 else ""


def render_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["loop", "workers", "case", "rank", "phase", "planted, ms", "found, ms", "error, ms",
            "% of the step", "ok"]  # fmt: skip
    return render_table(
        head,
        [
            [row["loop"], row["workers"], row["case"], row["rank"], row["phase"],
             f"{row['planted_ms']:.2f}", f"{row['found_ms']:.2f}", f"{row['error_ms']:+.2f}",
             f"{row['error_pct_of_step']:+.1f}", "yes" if row["ok"] else "**no**"]
            for row in rows
        ],
    )  # fmt: skip


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the results of several files as one; of equal runs the last counts."""
    parts = [json.loads(path.read_text()) for path in paths]
    rows = {
        tuple(row[key] for key in ("loop", "workers", "case", "rank", "phase")): row
        for part in parts
        for row in part["rows"]
    }
    return {
        "device": parts[-1]["device"],
        "parts": [
            {
                key: each[key]
                for key in ("machine", "command", "steps", "busy", "turns")
                if key in each
            }
            for part in parts
            for each in part.get("parts", [part])
        ],
        "rows": list(rows.values()),
        "failures": [each for part in parts for each in part["failures"]],
        "not_run": 0,
    }


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", metavar="LOOP,…", help=f"of {', '.join(LOOPS)}")
    parser.add_argument("--workers", default="0,2,8", metavar="LIST")
    parser.add_argument("--cases", metavar="CASE,…", help=f"of {', '.join(CASES)}, …")
    # 3 of warm-up; the batches of 2 or 8 workers come in rounds, and 120 steps are whole rounds.
    parser.add_argument("--steps", type=int, default=123)
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="runs of each kind")
    parser.add_argument("--busy", action="store_true", help="delays compute instead of sleeping")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    parser.add_argument("--budget-s", type=float, help="stop cleanly within so many seconds")
    parser.add_argument("--ahead", type=int, default=0, metavar="N",
                        help="get so many programs ready beside the one that trains; wants free cores")  # fmt: skip
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="only join results")
    parser.add_argument("-o", "--output", type=Path)
    return parser


def main() -> None:
    args = make_parser().parse_args()
    output = args.output or HERE / f"split-{args.device}.json"
    if args.merge:
        results = merge(args.merge)
        write_results(output, results, render_page(results))
        return
    budget = Budget(args.budget_s)
    # Not resolved: a virtual environment's interpreter is a link.
    args.python = str(Path(args.python).absolute()) if "/" in args.python else args.python
    machine = describe_machine(args.python, PACKAGES, plain_environment())
    rows, failures, not_run = measure(args, budget)
    results = {
        "device": args.device,
        "command": shlex.join(["benchmarks/split.py", *sys.argv[1:]]),
        "machine": machine,
        "steps": args.steps,
        "busy": args.busy,
        "turns": args.turns,
        "rows": rows,
        "failures": failures,
        "not_run": not_run,
    }
    write_results(output, results, render_page(results))


if __name__ == "__main__":
    main()
