"""Loops of many kinds, unchanged, under `stoker run`: each millisecond is found where it was planted.

The programs sleep in known places and say themselves how long each pause really took: this
machine may be busy. What a phase may be off by here is a tenth of the step, or a millisecond;
benchmarks/split.py measures it closely, on a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from extensions import torch_extensions
from patience import Done, patiently, run_ranks
from stoker.engine.rank_variables import free_ports
from stoker.watch.inside.phases import NAMES
from stoker.watch.series import Stat, merged, read_series

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# PyTorch and what is built on it live apart from Stoker, as they do for users.
TORCH = HERE.parent / ".venv-torch"
PYTHON = TORCH / "bin/python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no PyTorch in .venv-torch")

KINDS = ("warmup", "first", "steady")
SHARE, LEAST_MS = 0.10, 1.0

# A phase, the places whose pauses it holds, and how many of them a step has.
Phases = Mapping[str, Mapping[str, float]]
PLAIN: Phases = {
    "data": {"row": 2},
    "forward": {"forward": 1, "loss": 1},
    "backward": {"backward": 1},
    "optimizer": {"step": 1},
    "other": {"prepare": 1, "after": 1},
}
SHORT = "--data 6 --prepare 2 --forward 5 --loss 2 --backward 4 --step 4 --after 3"
# Frameworks and ranks have work of their own in each phase: the pauses must stand out.
LONG = "--data 20 --prepare 10 --forward 25 --loss 10 --backward 20 --step 15 --after 10"
BETWEEN = "--between 300"
RANKS = (str(TORCH / "bin/torchrun"), "--standalone", "--nproc_per_node", "2")
MODEL = {"name": "Net", "parameters": 212, "optimizer": "SlowSGD"}
ANY: dict[str, float] = {}
# Where the first batches had been fetched ahead, steps that wait for theirs seem slow after them, and
# warm-up may last up to the twentieth: that is to lie in the first epoch.
LONG_EPOCHS = "--batches 24"
STARVED = f"{SHORT} --data 120 --workers 2 {LONG_EPOCHS}"
# With workers, a loop waits for what is left of its step.
WAITING: Phases = {**PLAIN, "data": ANY}


class Loop(NamedTuple):
    """One program, and what is true of it."""

    program: str
    words: str = SHORT
    phases: Phases = PLAIN
    steps: int = 32
    epochs: int = 2
    evaluated: int = 0
    launcher: tuple[str, ...] = ()
    ranks: int = 1
    model: Mapping[str, object] = MODEL
    # Batches of each loader, and how often it was read.
    loaders: Mapping[int, int] = {16: 2}


LOOPS = {
    "plain": Loop("plain"),
    "workers": Loop("plain", STARVED, WAITING, steps=48, loaders={24: 2}),
    "persistent workers": Loop(
        "plain", f"{STARVED} --persistent 1", WAITING, steps=48, loaders={24: 2}
    ),
    "spawned workers": Loop(
        "plain", f"{STARVED} --context spawn", WAITING, steps=48, loaders={24: 2}
    ),
    "accumulated gradients": Loop(
        "accumulate",
        "--data 2 --forward 2 --loss 1 --backward 2 --after 1 --step 4 --batches 40",
        {
            "data": {"row": 8},
            "forward": {"forward": 4, "loss": 4},
            "backward": {"backward": 4},
            "optimizer": {"step": 1},
            "other": {"after": 4},
        },
        steps=20,
        loaders={40: 2},
    ),
    "two loaders": Loop(
        "zipped",
        phases={
            **PLAIN,
            "data": {"row": 4},
            "forward": {"forward": 2, "loss": 1},
            "backward": {"backward": 2},
            "other": {"after": 1},
        },
        loaders={16: 2, 19: 2},
    ),
    "validation": Loop(
        "validate",
        f"{SHORT} --check 20 {BETWEEN}",
        {**PLAIN, "forward": {"forward": 1}, "other": {"after": 1}},
        evaluated=30,
        loaders={16: 2, 5: 6},
    ),
    "validation with workers": Loop(
        "validate",
        f"{SHORT} --check 20 --workers 2",
        {**PLAIN, "forward": {"forward": 1}, "other": {"after": 1}},
        evaluated=30,
        loaders={16: 2, 5: 6},
    ),
    "validation of what is within": Loop(
        "validate",
        f"{SHORT} --check 20 --how inner {BETWEEN}",
        {**PLAIN, "forward": {"forward": 1}, "other": {"after": 1}},
        evaluated=30,
        model={**MODEL, "name": "Whole"},
        loaders={16: 2, 5: 6},
    ),
    "two optimizers": Loop(
        "gan",
        phases={
            **PLAIN,
            "forward": {"forward": 4},
            "backward": {"backward": 4},
            "optimizer": {"step": 2},
        },
        model={**MODEL, "parameters": 161},
    ),
    "scaler": Loop("scaler", phases={**PLAIN, "forward": {"forward": 1}, "other": {"after": 1}}),
    "compiled": Loop(
        "compiled",
        phases={**PLAIN, "other": {"after": 1}},
        model={**MODEL, "name": "Plain", "parameters": 232},
    ),
    "compiled in place": Loop(
        "compiled",
        f"{SHORT} --how method",
        phases={**PLAIN, "other": {"after": 1}},
        model={**MODEL, "name": "Plain", "parameters": 232},
    ),
    "scripted": Loop(
        "scripted",
        phases={**PLAIN, "forward": {"loss": 1}, "backward": {}},
        model={**MODEL, "name": "Plain"},
    ),
    "closure": Loop(
        "closure",
        phases={
            **PLAIN,
            "forward": {"forward": 2, "loss": 2},
            "backward": {"backward": 2},
            "other": {"after": 1},
        },
        model={**MODEL, "optimizer": "SlowLBFGS"},
    ),
    "no loader": Loop(
        "no_loader",
        phases={**PLAIN, "data": {}, "other": {"data": 1, "after": 1}},
        epochs=0,
        loaders={},
    ),
    "no loader, evaluated": Loop(
        "no_loader",
        f"{SHORT} --checks 5 {BETWEEN}",
        phases={**PLAIN, "data": {}, "other": {"data": 1, "after": 1}},
        epochs=0,
        evaluated=10,
        loaders={},
    ),
    "a class called DataLoader": Loop(
        "no_loader",
        f"{SHORT} --how class",
        {**PLAIN, "data": {}, "other": {"data": 1, "after": 1}},
        epochs=0,
        loaders={},
    ),
    # The loop waits for a queue: what the loader takes, less what the step takes without it.
    "loader in a thread": Loop(
        "thread",
        f"{SHORT} --data 40 {LONG_EPOCHS}",
        {
            **PLAIN,
            "data": {},
            "other": {"row": 2, "forward": -1, "loss": -1, "backward": -1, "step": -1},
        },
        steps=48,
        epochs=0,
        loaders={24: 2},
    ),
    "training in a thread": Loop(
        "thread", f"{SHORT} --how all", phases={**PLAIN, "other": {"after": 1}}
    ),
    "forward called by name": Loop(
        "called",
        phases={**PLAIN, "other": {"after": 1}},
        model={**MODEL, "name": "Whole", "parameters": 232},
    ),
    "a method called": Loop(
        "called",
        f"{SHORT} --how method",
        phases={**PLAIN, "other": {"after": 1}},
        model={**MODEL, "name": "Whole", "parameters": 232},
    ),
    "a new model": Loop(
        "rebuilt",
        f"{SHORT} --check 20 --batches 24",
        {**PLAIN, "forward": {"forward": 1}},
        steps=48,
        evaluated=6,
        loaders={24: 2, 3: 2},
    ),
    "a new model of another class": Loop(
        "rebuilt",
        f"{SHORT} --check 20 --batches 24 --how other --epochs 3",
        {**PLAIN, "forward": {"forward": 1}},
        steps=72,
        epochs=3,
        evaluated=9,
        loaders={24: 3, 3: 3},
    ),
    "a batch of its own class": Loop(
        "batch",
        phases={
            **PLAIN,
            "h2d": {"prepare": 1},
            "forward": {"forward": 1},
            "other": {"after": 1},
        },
    ),
    "Lightning": Loop(
        "lightning",
        f"{LONG} --check 40 {BETWEEN}",
        {**PLAIN, "other": {"after": 1}},
        evaluated=10,
        model={**MODEL, "name": "Lit"},
        loaders={16: 2, 4: 3},
    ),
    "Lightning, not validated": Loop(
        "lightning",
        f"{LONG} --checks 0 {BETWEEN}",
        {**PLAIN, "other": {"after": 1}},
        model={**MODEL, "name": "Lit"},
        loaders={16: 2},
    ),
    "Lightning, accumulated": Loop(
        "lightning",
        f"{LONG} --check 40 --every 2 --batches 24",
        {
            **PLAIN,
            "data": {"row": 4},
            "forward": {"forward": 2, "loss": 2},
            "backward": {"backward": 2},
            "other": {"after": 2},
        },
        steps=24,
        evaluated=10,
        model={**MODEL, "name": "Lit"},
        loaders={24: 2, 4: 3},
    ),
    "Lightning, by hand": Loop(
        "lightning",
        f"{LONG} --check 40 --how manual {BETWEEN}",
        {**PLAIN, "other": {"after": 1}},
        evaluated=10,
        model={**MODEL, "name": "Lit"},
        loaders={16: 2, 4: 3},
    ),
    "Hugging Face": Loop(
        "trainer",
        f"--data 40 --forward 60 --backward 40 --step 30 --check 60 {BETWEEN}",
        {**PLAIN, "forward": {"forward": 1}, "other": {}},
        evaluated=8,
        model={**MODEL, "name": "Small", "parameters": 714},
        loaders={16: 2, 4: 2},
    ),
    "Accelerate": Loop("accelerate", f"{LONG} {BETWEEN}", loaders={16: 2}),
    "Accelerate, accumulated": Loop(
        "accelerate",
        f"{LONG} --every 2 --batches 24",
        {
            "data": {"row": 4},
            "forward": {"forward": 2, "loss": 2},
            "backward": {"backward": 2},
            "optimizer": {"step": 1},
            "other": {"prepare": 2, "after": 2},
        },
        steps=24,
        loaders={24: 2},
    ),
    "DeepSpeed": Loop(
        "deepspeed",
        f"{LONG} --every 2 --batches 24",
        {
            "data": {"row": 4},
            "forward": {"forward": 2, "loss": 2},
            "backward": {"backward": 2},
            "optimizer": {"step": 1},
            "comm": ANY,
            "other": {"prepare": 2, "after": 2},
        },
        steps=24,
        launcher=(*RANKS[:-1], "1"),
        loaders={24: 2},
    ),
    "DeepSpeed, ZeRO 2": Loop(
        "deepspeed", f"{LONG} --stage 2", {**PLAIN, "comm": ANY}, launcher=RANKS, ranks=2
    ),
    "DeepSpeed, ZeRO 3": Loop(
        "deepspeed", f"{LONG} --stage 3", {**PLAIN, "comm": ANY}, launcher=RANKS, ranks=2
    ),
    "DDP": Loop(
        "ddp",
        f"{LONG} --network 25 --late 25",
        {
            **PLAIN,
            "forward": {"forward": 1},
            # The network's delay begins when the last gradients are there.
            "backward": {"backward": 1, "network": 1},
            "comm": ANY,
            "other": {"late": 1},
        },
        launcher=RANKS,
        ranks=2,
    ),
    "DDP by mp.spawn": Loop(
        "ddp",
        f"{LONG} --late 25 --how spawn",
        {
            **PLAIN,
            "forward": {"forward": 1},
            "comm": ANY,
            "other": {"late": 1},
        },
        ranks=2,
    ),
    "DDP by mpirun": Loop(
        "ddp",
        f"{LONG} --late 25",
        {
            **PLAIN,
            "forward": {"forward": 1},
            "comm": ANY,
            "other": {"late": 1},
        },
        launcher=("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", str(PYTHON)),
        ranks=2,
    ),
    "FSDP": Loop(
        "fsdp",
        f"{LONG} --late 25",
        {**PLAIN, "forward": {"forward": 1}, "comm": ANY, "other": {"late": 1, "after": 1}},
        launcher=RANKS,
        ranks=2,
    ),
}


class Rank(NamedTuple):
    """What was recorded of one rank, and what it says itself."""

    label: str
    facts: Mapping[str, Any]
    stats: Mapping[str, Stat]
    spent: Mapping[str, list[float]]

    def count(self, column: str) -> int:
        return self.stats[column].count if column in self.stats else 0

    def total(self, column: str) -> float:
        stat = self.stats.get(column)
        return stat.count * stat.mean if stat else 0.0

    def found(self, column: str) -> float:
        """Milliseconds a step; a phase that a step lacks is no value of its column."""
        kind = column.partition(".")[0]
        return 1000 * self.total(column) / max(1, self.count(f"{kind}.step"))

    def planted(self, places: Mapping[str, float]) -> float:
        """Milliseconds a step, as the program saw them after its warm-up."""
        means = {}
        for place, times in places.items():
            pauses = self.spent.get(place, [0.0])
            pauses = pauses[int(3 * abs(times)) :] or pauses
            means[place] = 1000 * sum(pauses) / len(pauses)
        return sum(times * means[place] for place, times in places.items())


class Ranks(list[Rank]):
    """The ranks that took steps, and the names of all files about processes."""

    labels: list[str]


Record = Callable[[str], Ranks]
# What is wrong, by what it is about; empty if nothing is.
Wrong = dict[str, str]
Settle = Callable[[str, Callable[[Ranks], Wrong]], None]


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Run a loop, once for all tests of it, and return what was recorded of its ranks."""
    records: dict[str, Ranks] = {}

    def run(name: str) -> Ranks:
        if name not in records:
            records[name] = run_loop(LOOPS[name], tmp_path_factory.mktemp("loop"))
        return records[name]

    return run


def run_loop(loop: Loop, folder: Path) -> Ranks:
    built = {"TORCH_EXTENSIONS_DIR": str(torch_extensions())} if loop.program == "deepspeed" else {}

    def run(place: Path) -> Done:
        spent = place / "spent"
        spent.mkdir()
        return subprocess.run(
            [sys.executable, "-m", "stoker", "run", "--quiet", "--python", str(PYTHON), "-o", "run",
             *command],
            cwd=place,
            env={
                "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
                "HOME": str(place),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                "LOOP_SPENT": str(spent),
                "HF_HUB_OFFLINE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_ports(1)[0]),
                "DS_ACCELERATOR": "cpu",
                **built,
            },
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )  # fmt: skip

    program = [str(PROGRAMS / f"loop_{loop.program}.py"), *loop.words.split()]
    command = ["--", *loop.launcher, *program] if loop.launcher else program
    place, done = run_ranks(run, folder)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return read_ranks(place / "run", place / "spent")


def read_ranks(run: Path, spent: Path) -> Ranks:
    ranks = Ranks()
    ranks.labels = sorted(path.stem for path in (run / "steps").glob("*.json"))
    for path in sorted((run / "steps").glob("*.jsonl")):
        row = merged(read_series(path)[1])
        facts = json.loads(path.with_suffix(".json").read_text())
        said = spent / f"{facts['pid']}.json"
        ranks.append(
            Rank(
                path.stem,
                facts,
                row.stats if row else {},
                json.loads(said.read_text()) if said.exists() else {},
            )
        )
    return ranks


def every(*, evaluated: bool = False) -> pytest.MarkDecorator:
    """Try every loop: slow, as each is a training."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.slow)
            for name, loop in LOOPS.items()
            if loop.evaluated or not evaluated
        ],
    )


def is_near(planted_ms: float, found_ms: float, step_ms: float) -> bool:
    return abs(planted_ms - found_ms) <= max(SHARE * step_ms, LEAST_MS)


def compared(what: str, planted_ms: float, found_ms: float, step_ms: float) -> Wrong:
    if is_near(planted_ms, found_ms, step_ms):
        return {}
    return {what: f"planted {planted_ms:.1f}, found {found_ms:.1f}"}


@pytest.fixture
def settle(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Settle:
    """Check a loop's times: what else a busy machine does falls into some phase, too."""

    def check(name: str, wrong_in: Callable[[Ranks], Wrong]) -> None:
        def trial(number: int) -> None:
            again = tmp_path_factory.mktemp("again")
            assert wrong_in(run_loop(LOOPS[name], again) if number else record(name)) == {}

        patiently(trial)

    return check


# -- every loop --------------------------------------------------------------------------


@every()
def test_each_rank_has_one_record_and_nothing_else_has(name: str, record: Record) -> None:
    ranks, number = record(name), LOOPS[name].ranks
    assert [each.facts["rank"] for each in ranks] == list(range(number))
    assert {each.facts["world"] for each in ranks} == {number}
    host = ranks[0].facts["host"]
    assert ranks.labels == [f"{rank}-{host}" for rank in range(number)]


@every()
def test_each_step_of_the_optimizer_is_one_step_of_the_loop(name: str, record: Record) -> None:
    ranks = record(name)
    assert ranks
    for rank in ranks:
        counted = sum(rank.count(f"{kind}.step") for kind in KINDS)
        assert (counted, rank.facts["steps"]) == (LOOPS[name].steps, LOOPS[name].steps)


@every()
def test_each_phase_has_what_was_planted_in_it(name: str, settle: Settle) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        wrong: Wrong = {}
        for rank in ranks:
            step_ms = rank.found("steady.step")
            for phase in NAMES:
                places = LOOPS[name].phases.get(phase, {})
                planted, found = rank.planted(places), rank.found(f"steady.{phase}")
                if places is not ANY:
                    wrong |= compared(f"{phase} of {rank.label}", planted, found, step_ms)
        return wrong

    settle(name, misplaced)


@every()
def test_the_phases_of_a_step_add_up_to_it(name: str, record: Record) -> None:
    for rank in record(name):
        for kind in (*KINDS, "eval"):
            parts = sum(rank.total(f"{kind}.{phase}") for phase in NAMES)
            # A record keeps four digits of each.
            assert parts == pytest.approx(rank.total(f"{kind}.step"), rel=2e-3, abs=1e-4)


@every()
def test_epochs_are_counted_and_their_first_steps_are_apart(name: str, record: Record) -> None:
    loop = LOOPS[name]
    for rank in record(name):
        assert rank.facts["epochs"] == loop.epochs
        # The first step of the first epoch is warm-up.
        assert rank.count("first.step") == max(0, loop.epochs - 1)
        assert rank.count("warmup.step") >= 3
        assert rank.count("steady.step") >= loop.steps // 2


@every()
def test_evaluation_is_no_training(name: str, record: Record) -> None:
    for rank in record(name):
        assert rank.count("eval.step") == LOOPS[name].evaluated


@every()
def test_nothing_is_given_up_and_nothing_lost(name: str, record: Record) -> None:
    for rank in record(name):
        assert rank.facts["notes"] == []
        assert rank.facts["lost"] == 0


@every()
def test_the_model_and_the_loaders_are_known(name: str, record: Record) -> None:
    loop = LOOPS[name]
    workers = 2 if "--workers 2" in loop.words else 0
    for rank in record(name):
        model = rank.facts["facts"]["model"]
        assert {key: model[key] for key in loop.model} == dict(loop.model)
        assert (model["dtype"], model["device"]) == ("float32", "cpu")
        loaders = rank.facts["facts"].get("loaders", {}).values()
        assert {each["batches"]: each["epochs"] for each in loaders} == dict(loop.loaders)
        assert {each["batch_size"] for each in loaders} <= {2}
        assert max((each["num_workers"] for each in loaders), default=0) == workers


# -- evaluation --------------------------------------------------------------------------


@every(evaluated=True)
def test_what_evaluation_takes_is_known_by_phase(name: str, settle: Settle) -> None:
    # In the plain loop with a loader, the loss of a batch takes time too.
    places = {"forward": {"forward": 1, "loss": 1} if "validation" in name else {"forward": 1}}
    if "workers" not in name:
        places["data"] = {"check": 2}

    def misplaced(ranks: Ranks) -> Wrong:
        wrong: Wrong = {}
        for rank in ranks:
            assert rank.total("eval.backward") == rank.total("eval.optimizer") == 0
            for phase, planted_in in places.items():
                planted, found = rank.planted(planted_in), rank.found(f"eval.{phase}")
                step_ms = rank.found("eval.step")
                wrong |= compared(f"{phase} of {rank.label}", planted, found, step_ms)
        return wrong

    settle(name, misplaced)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("validation", "validation with workers")
    ],
)
def test_steps_after_an_evaluation_are_as_the_others(name: str, settle: Settle) -> None:
    def longer(ranks: Ranks) -> Wrong:
        # Nothing of an evaluation, such as its workers' start and end, is left in the next step.
        times = {
            each.label: (each.found("first.other"), each.found("steady.step")) for each in ranks
        }
        return {
            label: f"{first} of {step}"
            for label, (first, step) in times.items()
            if first >= step / 2
        }

    settle(name, longer)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        for name, loop in LOOPS.items()
        if BETWEEN in loop.words
    ],
)
def test_what_stands_between_two_epochs_is_in_no_step(name: str, settle: Settle) -> None:
    def with_pause(ranks: Ranks) -> Wrong:
        wrong: Wrong = {}
        for rank in ranks:
            longest = {
                kind: 1000 * rank.stats[f"{kind}.step"].max
                for kind in ("first", "steady", "eval")
                if f"{kind}.step" in rank.stats
            }
            # 300 ms after each epoch, and a step with them would take longer than that.
            wrong |= {kind: f"{ms:.0f} ms" for kind, ms in longest.items() if ms > 300}
            gap_ms = 1000 * rank.total("gap.step")
            if not 300 < gap_ms < 900:
                wrong["gap"] = f"{gap_ms:.0f} ms"
        return wrong

    settle(name, with_pause)


# -- loaders -----------------------------------------------------------------------------

WORKERS = ["workers", "persistent workers", "spawned workers"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_a_loop_with_workers_waits_for_what_is_left_of_its_step(name: str, settle: Settle) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        [rank] = ranks
        step_ms, whole_ms = rank.found("steady.step"), rank.planted({"whole": 1})
        wrong = {} if is_near(whole_ms, step_ms, step_ms) else {"step": f"{step_ms} of {whole_ms}"}
        # Two workers take 60 ms for a batch, and the rest of the step takes 20.
        data_ms = rank.found("steady.data")
        return wrong if 20 < data_ms < 60 else {**wrong, "data": f"{data_ms} ms"}

    settle(name, misplaced)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_the_slow_line_of_a_worker_is_named(name: str, settle: Settle) -> None:
    file = PROGRAMS / "loop_parts.py"
    lines = file.read_text().splitlines()
    slow = next(number for number, line in enumerate(lines, 1) if "# the slow line" in line)

    def misjudged(ranks: Ranks) -> Wrong:
        [rank] = ranks
        own = {
            (name, function, line): s for name, function, line, s, _ in rank.facts["worker_lines"]
        }
        own_s = own[str(file), "__getitem__", slow]
        # Batches of 120 ms, one a step, seen by looking every 10 ms.
        planted_s = LOOPS[name].steps * 0.120
        return {} if own_s == pytest.approx(planted_s, rel=0.15) else {"line": f"{own_s} s"}

    settle(name, misjudged)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["workers", "persistent workers"])
def test_lines_of_the_loop_itself_are_no_lines_of_a_forked_worker(
    name: str, record: Record
) -> None:
    [rank] = record(name)
    files = {Path(file).name for file, *_ in rank.facts["worker_lines"]}
    assert files == {"loop_parts.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_starting_workers_is_loading_in_the_first_step_of_an_epoch(
    name: str, settle: Settle
) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        [rank] = ranks
        data_ms = rank.found("first.data")
        planted, found = rank.planted({"prepare": 1, "after": 1}), rank.found("first.other")
        return {
            **({} if data_ms > 120 else {"data": f"{data_ms:.1f} ms"}),
            **compared("other", planted, found, rank.found("first.step")),
        }

    settle(name, misplaced)


@pytest.mark.slow
def test_a_loader_read_in_a_thread_is_time_beside_the_step(settle: Settle) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        [rank] = ranks
        planted, found = rank.planted({"row": 2}), rank.found("steady.beside.data")
        return compared("data", planted, found, rank.found("steady.step"))

    settle("loader in a thread", misplaced)


# -- ranks -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DDP", "DDP by mp.spawn", "DDP by mpirun", "FSDP"])
def test_a_rank_that_is_late_makes_the_other_one_wait(name: str, settle: Settle) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        punctual, late = sorted(ranks, key=lambda rank: rank.planted({"late": 1}))
        waited = punctual.found("steady.comm") - late.found("steady.comm")
        return compared("comm", late.planted({"late": 1}), waited, late.found("steady.step"))

    settle(name, misplaced)


@pytest.mark.slow
def test_a_slow_network_shows_in_what_ddp_measured_itself(settle: Settle) -> None:
    def misplaced(ranks: Ranks) -> Wrong:
        wrong: Wrong = {}
        for rank in ranks:
            comm = 1000 * rank.stats["steady.ddp_comm"].mean
            overlapped = 1000 * rank.stats["steady.ddp_overlapped"].mean
            step_ms = rank.found("steady.step")
            wrong |= compared("comm", rank.planted({"network": 1}), comm - overlapped, step_ms)
            # The first gradients travel while the others are still computed.
            wrong |= compared("overlap", rank.planted({"backward": 1}), overlapped, step_ms)
        return wrong

    settle("DDP", misplaced)
