"""TensorFlow and Keras under `stoker run`: the same numbers as without, and the time where it went.

The programs sleep in known places and say how long each pause really took. A pipeline that ends
in a Python generator has work of its own for each batch, so that a wait may be longer than what
was planted, but not shorter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from patience import patiently
from stoker.watch.folder import RunFolder
from stoker.watch.inside.graph_meter import Meter
from stoker.watch.inside.phases import GRAPH, OTHER
from stoker.watch.inside.tensorflow import TensorFlow, Traced
from stoker.watch.inside.timeline import Timeline
from stoker.watch.summary import Rank, Split, read_summary

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(__file__).parent / "programs"
PYTHON = ROOT / ".venv-tf/bin/python"
TORCH = ROOT / ".venv-torch/bin/python"

needs_tensorflow = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"there is no {PYTHON} with TensorFlow"
)
# What a phase may be off by on a busy machine; and what a generator's batch costs beside its pause.
SHARE, LEAST_S, GENERATOR_S = 0.10, 0.001, 0.006


class Watched(NamedTuple):
    """What a program printed, what it says it slept, and what we saw of it."""

    out: str
    slept: dict[str, float]
    rank: Rank


def run(words: list[str], python: Path, **env: str) -> str:
    ended = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def watch(folder: Path, words: list[str], python: Path = PYTHON, **env: str) -> Watched:
    stoker = [sys.executable, "-m", "stoker", "run", "--quiet", "--python", str(python)]
    truth = folder / "truth.json"
    out = run([*stoker, "-o", str(folder / "run"), *words], python, TRUTH=str(truth), **env)
    slept = json.loads(truth.read_text()) if truth.exists() else {}
    return Watched(out, slept, read_summary(RunFolder(folder / "run")).ranks[0])


def watch_and_compare(folder: Path, words: list[str], python: Path = PYTHON, **env: str) -> Watched:
    watched = watch(folder, words, python, **env)
    assert watched.out == run([str(python), *words], python, **env)
    assert watched.out.strip()
    return watched


def fit(folder: Path, **options: object) -> Watched:
    return watch_and_compare(folder, [str(PROGRAMS / "tf_fit.py"), json.dumps(options)])


def steady(watched: Watched) -> Split:
    assert watched.rank.steady is not None
    return watched.rank.steady


def assert_found(split: Split, phase: str, planted_s: float, own_s: float = 0.0) -> None:
    """What was planted is in its phase, with not much beside it."""
    found = split.phases.get(phase, 0.0)
    slack = max(SHARE * split.step.mean, LEAST_S)
    assert planted_s - slack <= found <= planted_s + slack + own_s, (phase, planted_s, split)


def assert_told_apart(split: Split, data_s: float, other_s: float, compute_s: float = 0.0) -> None:
    assert_found(split, "data", data_s, GENERATOR_S)
    # A small model takes a few milliseconds beside what is planted.
    assert_found(split, "graph", compute_s, GENERATOR_S)
    assert_found(split, "other", other_s, LEAST_S)


def timed(test: Callable[..., None]) -> Callable[..., None]:
    """Try a test of times again, in a new folder."""

    @functools.wraps(test)
    def tried(tmp_path: Path, **options: Any) -> None:
        def trial(number: int) -> None:
            folder = tmp_path / str(number)
            folder.mkdir()
            test(tmp_path=folder, **options)

        patiently(trial)

    return tried


# -- the reading of clocks, without TensorFlow ---------------------------------------------


class Graph:
    """Stands in for TensorFlow: an accumulator that is fed by the test, and costs time to read."""

    def __init__(self, cost_s: float) -> None:
        self.now = 0.0
        self.cost_s = cost_s
        self.rows: list[list[float]] = []
        self.reads = 0
        self.float64 = "float64"
        self.config = SimpleNamespace(
            experimental=SimpleNamespace(get_synchronous_execution=lambda: True)
        )
        self.raw_ops = SimpleNamespace(
            ResourceConditionalAccumulator=lambda **_: "handle",
            ResourceAccumulatorNumAccumulated=lambda **_: len(self.rows),
            ResourceAccumulatorTakeGradient=lambda **_: self.take(),
        )

    @contextlib.contextmanager
    def device(self, _: str) -> Iterator[None]:
        yield

    def take(self) -> Any:
        self.now += self.cost_s
        self.reads += 1
        count = len(self.rows)
        mean = [sum(column) / count for column in zip(*self.rows, strict=True)]
        self.rows.clear()
        return SimpleNamespace(numpy=lambda: mean)


def make_meter(graph: Graph) -> Meter:
    notes: list[str] = []
    timeline = SimpleNamespace(clock=lambda: graph.now, last=0.0)
    watched: Any = SimpleNamespace(
        timeline=timeline,
        facts={},
        notes=notes,
        give_up_on=lambda what, error: notes.append(f"{what} {error}"),
    )
    return Meter(watched, graph, "name")


def call(graph: Graph, meter: Meter, span_s: float, *rows: list[float]) -> float:
    graph.now += span_s
    meter.timeline.last = graph.now
    graph.rows.extend(rows)
    return meter.waited(span_s, is_alone=False)


def test_long_calls_are_each_given_their_own_wait() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    waits = [0.01 * (index % 7) for index in range(100)]
    assert [call(graph, meter, 0.1, [wait, 1, 0]) for wait in waits] == pytest.approx(waits)


def test_short_calls_are_given_the_mean_and_reads_cost_little() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    waits = [0.0002 * (index % 5) for index in range(5000)]
    given = [call(graph, meter, 0.001, [wait, 1, 0]) for wait in waits]
    assert sum(given) == pytest.approx(sum(waits), rel=0.02)
    assert graph.reads * graph.cost_s < 0.006 * graph.now
    assert all(0 <= each <= 0.001 for each in given)


@pytest.mark.parametrize("calls", [2, 8])
def test_waits_that_come_in_rounds_are_given_to_the_calls_that_waited(calls: int) -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    # Calls of tf.data beside each other give as many batches at once, and then none for a while.
    waits = [0.0 if index % calls else 0.02 for index in range(50 * calls)]
    given = [call(graph, meter, 0.001 + wait, [wait, 1, 0]) for wait in waits]
    assert graph.reads < len(waits)
    assert given == pytest.approx(waits, abs=1e-6)


def test_what_computing_varies_by_is_no_wait() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    draw = random.Random(1)
    given = [call(graph, meter, draw.uniform(0.002, 0.006), [0, 1, 0]) for _ in range(2000)]
    assert graph.reads < len(given)
    # In all, and not for each second of it.
    assert 0 <= sum(given) < 0.01


def test_a_wait_that_ends_or_begins_is_given_in_full() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    draw = random.Random(1)
    waits = [0.01 if index // 100 % 2 else 0.0 for index in range(1000)]
    given = [call(graph, meter, draw.uniform(0.002, 0.006) + w, [w, 1, 0]) for w in waits]
    assert graph.reads < len(waits)
    assert sum(given) == pytest.approx(sum(waits), rel=0.01)


def test_a_wait_that_the_function_computed_through_is_not_a_wait() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    # Two batches of 20 ms, fetched while two steps of 30 ms went on: 10 ms were only waited.
    rows = [[0.02, 1, 0], [0.02, 1, 0], [0, 0, 0.03], [0, 0, 0.03]]
    assert call(graph, meter, 0.07, *rows) == pytest.approx(0.01)
    assert meter.watched.facts["batches_per_call"] == 2


def test_a_call_that_finds_no_batch_is_the_end_of_the_data() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    call(graph, meter, 0.1, [0.01, 1, 0])
    assert not meter.is_at_end
    call(graph, meter, 0.1, [0.01, 0, 0])
    assert meter.is_at_end


def test_clocks_that_run_elsewhere_are_given_up_with_a_note() -> None:
    graph = Graph(cost_s=0.0001)
    meter = make_meter(graph)
    assert [call(graph, meter, 0.1) for _ in range(5)] == [0.0] * 5
    (note,) = meter.watched.notes
    assert "a part of `graph`" in note


# -- what a function does, without TensorFlow -----------------------------------------------


def test_a_gradient_is_noted_while_a_function_is_traced_in_whatever_phase() -> None:
    class Tape:
        def gradient(self, loss: float) -> float:
            return 2 * loss

    timeline = Timeline(get_ident())
    stand_in: Any = SimpleNamespace(
        executing_eagerly=lambda: False,
        config=SimpleNamespace(functions_run_eagerly=lambda: False),
        GradientTape=Tape,
    )
    watched: Any = SimpleNamespace(timeline=timeline)
    hooks = TensorFlow(watched, stand_in)
    hooks._watch_gradient()
    for phase in (OTHER, GRAPH):
        timeline.switch(phase)
        hooks.tracing = Traced()
        assert Tape().gradient(3.0) == 6.0
        assert hooks.tracing.has_gradient
        assert timeline.current == phase


# -- loops written by hand ------------------------------------------------------------------


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "inside", "split", "eager", "thread"])
@timed
def test_a_loop_by_hand(tmp_path: Path, mode: str) -> None:
    words = [str(PROGRAMS / "tf_loop.py"), mode, "30", "20", "10"]
    watched = watch_and_compare(tmp_path, words)
    split, rank, slept = steady(watched), watched.rank, watched.slept
    if mode == "thread":
        # That this thread trains is known after its first step.
        assert (rank.steps, rank.notes) == (59, ())
    else:
        assert (rank.steps, rank.epochs, rank.notes) == (60, 2, ())
    assert rank.evaluation is not None
    assert rank.evaluation.steps == 10
    assert_found(split, "data", slept["data"], GENERATOR_S)
    assert_found(split, "other", slept["other"], LEAST_S)
    phases = {phase for phase, took in split.phases.items() if took > 0.0001}
    parts = {"split": {"graph", "optimizer"}, "eager": {"forward", "backward", "optimizer"}}
    assert phases == {"data", "other", *parts.get(mode, {"graph"})}
    assert rank.facts["model"] == {
        "name": "Sequential",
        "parameters": 321,
        "dtype": "float32",
        "device": "CPU:0",
        "optimizer": "Adam",
    }


# -- Keras' fit ------------------------------------------------------------------------------


@needs_tensorflow
@pytest.mark.slow
@timed
def test_fit_with_a_pause_in_every_place(tmp_path: Path) -> None:
    watched = fit(tmp_path, data_ms=20, step_ms=30, between_ms=10, batches=20, validation=True)
    rank, slept = watched.rank, watched.slept
    assert (rank.steps, rank.epochs, rank.notes) == (40, 2, ())
    assert rank.evaluation is not None
    assert rank.evaluation.steps == 8
    assert_told_apart(steady(watched), slept["data"], slept["between"], slept["step"])
    assert rank.facts["keras"]["backend"] == "tensorflow"
    assert rank.facts["model"]["parameters"] == 161
    assert {each["prefetch"] for each in rank.facts["tf_data"].values()} == {True, False}


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"data": "unknown"},
        {"jit_compile": True},
        {"jit_compile": False, "steps_per_epoch": 10, "epochs": 4},
    ],
    ids=["a length that is not known", "XLA", "steps per epoch"],
)
@timed
def test_fit_waits_for_a_dataset(tmp_path: Path, options: dict[str, Any]) -> None:
    watched = fit(tmp_path, data_ms=20, batches=20, **options)
    rank = watched.rank
    assert (rank.steps, rank.epochs, rank.notes) == (40, options.get("epochs", 2), ())
    assert_told_apart(steady(watched), watched.slept["data"], 0.0)


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": True},
        {"class_weight": {"0": 1.0, "1": 2.0}},
        {"data": "pydataset"},
        {"data": "pydataset", "workers": 2, "data_ms": 40},
    ],
    ids=["prefetch", "class weights", "PyDataset", "PyDataset with threads"],
)
@timed
def test_fit_waits_for_what_a_prefetch_leaves(tmp_path: Path, options: dict[str, Any]) -> None:
    # The batch is 20 ms apart from the next and made ready during the step of 5 ms.
    watched = fit(tmp_path, **{"data_ms": 20, "step_ms": 5, "batches": 30, **options})
    split = steady(watched)
    assert (watched.rank.steps, watched.rank.notes) == (60, ())
    # Threads fill a queue of ten while Keras begins, which lasts for a third of the epoch.
    assert (0.002 if "workers" in options else 0.008) < split.phases["data"] < 0.020
    assert_found(split, "graph", watched.slept["step"], GENERATOR_S)


@needs_tensorflow
@pytest.mark.slow
@timed
def test_fit_does_not_wait_where_a_prefetch_is_enough(tmp_path: Path) -> None:
    split = steady(fit(tmp_path, data_ms=10, step_ms=30, batches=20, prefetch=True))
    assert split.share("data") < 0.1
    assert split.phases["graph"] >= 0.03


@needs_tensorflow
@pytest.mark.slow
@timed
def test_what_large_operations_take_is_no_wait(tmp_path: Path) -> None:
    """They begin as soon as the batch is there, and would keep a clock from being read then."""
    watched = watch_and_compare(tmp_path, [str(PROGRAMS / "tf_heavy.py")])
    assert steady(watched).share("data") < 0.05


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(("data_ms", "waited_ms"), [(20, 20), (50, 50 + 3 * 20)])
@timed
def test_several_steps_an_execution(tmp_path: Path, data_ms: int, waited_ms: int) -> None:
    """The next batch is fetched during the step: of 4, one wait is whole, three are the rest."""
    options = {"data_ms": data_ms, "step_ms": 30, "batches": 24, "steps_per_execution": 4}
    watched = fit(tmp_path, **options)
    assert (watched.rank.steps, watched.rank.facts["batches_per_call"]) == (12, 4)
    assert_found(steady(watched), "data", waited_ms / 1000, 2 * GENERATOR_S)
    assert steady(watched).phases["graph"] >= 4 * 0.03


@needs_tensorflow
@pytest.mark.slow
@timed
def test_several_steps_an_execution_and_data_that_ends_early(tmp_path: Path) -> None:
    options = {"data": "unknown", "data_ms": 5, "batches": 18, "steps_per_execution": 4}
    rank = fit(tmp_path, validation=True, **options).rank
    # 4, 4, 4, 4 and 2 batches, and then a call that finds none.
    assert rank.evaluation is not None
    assert (rank.evaluation.steps, rank.epochs) == (2, 2)
    assert 10 <= rank.steps <= 12


@needs_tensorflow
@pytest.mark.slow
@timed
def test_fit_of_arrays_and_predict(tmp_path: Path) -> None:
    rank = fit(tmp_path, data="arrays", batches=50, predict=True).rank
    assert (rank.steps, rank.epochs, rank.notes) == (100, 2, ())
    assert rank.evaluation is not None
    assert rank.evaluation.steps == 50


@needs_tensorflow
@pytest.mark.slow
@timed
def test_fit_that_runs_eagerly(tmp_path: Path) -> None:
    watched = fit(tmp_path, data_ms=20, batches=15, run_eagerly=True, validation=True)
    split, rank = steady(watched), watched.rank
    assert (rank.steps, rank.epochs, rank.notes) == (30, 2, ())
    assert rank.evaluation is not None
    assert rank.evaluation.steps == 8
    assert_found(split, "data", watched.slept["data"], GENERATOR_S)
    assert {"forward", "backward", "optimizer"} < set(split.phases)


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("when", [True, "late"])
@timed
def test_with_op_determinism_there_are_no_clocks_but_a_note(tmp_path: Path, when: object) -> None:
    rank = fit(tmp_path, data_ms=5, batches=10, deterministic=when).rank
    assert rank.steps == (20 if when is True else 40)
    (note,) = rank.notes
    assert note.endswith("is not told apart from `graph`: op determinism is on")


@needs_tensorflow
@pytest.mark.slow
@timed
def test_a_mirrored_strategy(tmp_path: Path) -> None:
    # Two replicas on one CPU add up in an order that changes from run to run: not compared.
    options = json.dumps({"data_ms": 20, "batches": 15, "replicas": 2, "validation": True})
    watched = watch(tmp_path, [str(PROGRAMS / "tf_fit.py"), options])
    assert (watched.rank.steps, watched.rank.epochs, watched.rank.notes) == (30, 2, ())
    assert watched.rank.evaluation is not None
    assert watched.rank.evaluation.steps == 8


# -- Keras on other backends ------------------------------------------------------------------


def has(python: Path, *modules: str) -> bool:
    if not python.exists():
        return False
    find = f"import importlib.util as u; print(all(map(u.find_spec, {modules!r})))"
    return run([str(python), "-c", find], python).strip() == "True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "python", "arguments"),
    [
        ("tensorflow", PYTHON, "20 0"),
        ("tensorflow", PYTHON, "20 0 --compile"),
        ("torch", TORCH, "20 10"),
        ("torch", TORCH, "20 0 --compile"),
        ("jax", PYTHON, "20 0 --compile"),
    ],
)
@timed
def test_keras_on_each_backend(tmp_path: Path, backend: str, python: Path, arguments: str) -> None:
    if not has(python, "keras", backend):
        pytest.skip(f"{python} has no Keras with {backend}")
    words = [str(PROGRAMS / "tf_backend.py"), *arguments.split()]
    watched = watch_and_compare(tmp_path, words, python, KERAS_BACKEND=backend)
    split, rank = steady(watched), watched.rank
    assert (rank.steps, rank.epochs) == (50, 2)
    assert rank.evaluation is not None
    assert rank.facts["model"]["name"] == "Sequential"
    if backend == "torch" and "--compile" in arguments:
        assert_found(split, "data", 0.02, 0.002)
        assert set(split.phases) == {"data", "graph", "other"}
    elif backend == "torch":
        assert_found(split, "data", 0.02, 0.002)
        assert_found(split, "forward", 0.01, 0.005)
        assert {"backward", "optimizer"} < set(split.phases)
    elif backend == "jax":
        assert split.share("graph") > 0.8
        assert "the wait for data is part of `graph`" in rank.notes[0]
