"""What people see of a run: the verdict, the text, the JSON, the CSV; also of damaged folders."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Stoker
from effort import examples
from stoker.advise.comparison import compare
from stoker.advise.verdict import held_gpus, make_verdict
from stoker.errors import FileError
from stoker.report.comparison import render_comparison
from stoker.report.gpu_csv import HEADER, render_gpu_csv
from stoker.report.live import render_top
from stoker.report.machines import _cell
from stoker.report.page import render_page
from stoker.report.run import next_command, notes, render_run
from stoker.report.run_json import render_run_json, run_json
from stoker.report.steps import render_steps
from stoker.watch.entry import EXACT
from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, SeriesWriter, Stat
from stoker.watch.summary import Summary, read_summary

START = 1_794_700_000.0
SECONDS = 60
TRAIN = """\
import torch

def load(i):
    return decode(i)

for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()
    opt.step()
"""


# -- folders to look at --------------------------------------------------------------


def new_folder(path: Path, **changes: Any) -> RunFolder:
    """A run of a minute that ended well, without a reading yet."""
    folder = RunFolder(path)
    folder.make()
    script = path.parent / "train.py"
    script.write_text(TRAIN)
    os.utime(script, (START - 100, START - 100))
    told = {
        "id": "20261115-065520-train",
        "command": ["/env/bin/python", "train.py", "--epochs", "3"],
        "cwd": str(path.parent),
        "host": "node1",
        "start": START,
        "end": START + SECONDS,
        "exit": 0,
        "is_whole": True,
        "notes": [],
        "recorder_cpu_s": 0.3,
    }
    folder.write(folder.run_json, {**told, **changes})
    return folder


def wave(value: float, second: int) -> Stat:
    """A reading that swings a little, always in the same way."""
    return Stat(1, each := value * (1 + 0.1 * (second % 5 - 2)), 0.0, each)


def add_machine(
    folder: RunFolder,
    readings: Mapping[str, float],
    *,
    host: str = "node1",
    num_gpus: int = 0,
    **more: object,
) -> None:
    gpus = [
        {"index": i, "uuid": f"GPU-{i:04x}", "name": "NVIDIA H200", "memory_gib": 139.8}
        for i in range(num_gpus)
    ]
    facts = {"host": host, "cores_allowed": 16, "memory_machine_gib": 503.2, "gpus": gpus}
    folder.write(folder.machine(host), {**facts, "memory_limit_gib": None, **more})
    writer = SeriesWriter(folder.samples(host), {"kind": "samples", "host": host})
    for second in range(SECONDS):
        stats = {name: wave(value, second) for name, value in readings.items()}
        writer.append(Row(second, second + 1, stats))
    writer.close()


CPU = {"cpu.cores": 3.2, "mem.rss_gib": 5.5, "io.read_mb_s": 40.0, "files.opens_s": 310.0}


def gpu(number: int, duty: float = 80.0, *, is_mine: bool = True) -> dict[str, float]:
    readings = {"duty_pct": duty, "sm_pct": duty / 2, "mem_gib": 30.0, "power_w": 400.0}
    if is_mine:
        readings["mine_gib"] = 29.0
    return {f"gpu.{number}.{name}": value for name, value in readings.items()}


def add_rank(
    folder: RunFolder,
    phases_ms: Mapping[str, float],
    *,
    rank: int = 0,
    steps: int = 400,
    host: str = "node1",
    is_on_device: bool = False,
    **facts: Any,
) -> None:
    """A rank with a start-up, three steps of warm-up and then equal ones."""
    label = f"{rank}-{host}"
    if folder.steps(label).exists():
        label += f"-{facts['pid']}"
    writer = SeriesWriter(folder.steps(label), {"kind": "steps", "label": label})
    phases = {name: ms / 1000 for name, ms in phases_ms.items()}
    step = sum(phases.values())

    def stats(kind: str, count: int, factor: float) -> dict[str, Stat]:
        told = {f"{kind}.step": step * factor}
        told |= {f"{kind}.{name}": value * factor for name, value in phases.items()}
        if is_on_device:
            told[f"{kind}.device_step"] = step * factor
        return {name: Stat(count, value, value / 20, value * 1.2) for name, value in told.items()}

    begun = {"startup.step": Stat(1, 4.2, 0.0, 4.2)}
    writer.append(Row(0, 6, {**begun, **stats("warmup", min(3, steps), 3.0)} if steps else begun))
    rest = steps - 3
    for second in range(min(SECONDS - 6, max(0, rest))):
        count = rest // 54 + (second < rest % 54)
        if count:
            writer.append(Row(6 + second, 7 + second, stats("steady", count, 1.0)))
    writer.close()
    told = {"label": label, "rank": rank, "host": host, "pid": 4711 + rank, "steps": steps}
    script = str(folder.path.parent / "train.py")
    lines = [
        [script, "load", 4, 21.0, 21.5, "data"],
        [script, "<module>", 8, 12.5, 12.5, "backward"],
        [script, "<module>", 7, 9.0, 9.25, "forward"],
        [script, "<module>", 1, 3.0, 3.0, "other"],
    ]
    told = {**told, "epochs": 2, "cost_s": 0.12, "notes": [], "lines": lines, **facts}
    folder.write(folder.facts(label), told)


def read(folder: RunFolder) -> Summary:
    return read_summary(folder, now=START + 30)


DATA_BOUND = {"data": 62.0, "forward": 14.0, "backward": 20.0, "optimizer": 3.0, "other": 1.0}
COMPUTING = {"data": 1.0, "h2d": 1.0, "forward": 30.0, "backward": 60.0, "optimizer": 5.0,
             "comm": 2.0, "other": 1.0}  # fmt: skip


def cpu_run(path: Path) -> RunFolder:
    folder = new_folder(path)
    add_machine(folder, CPU)
    script = str(path.parent / "train.py")
    workers = [[script, "load", 4, 100.0, 100.0, None], [script, "load", 3, 25.0, 125.0, None]]
    add_rank(folder, DATA_BOUND, worker_lines=workers, notes=["keras is not watched: why"])
    return folder


def gpu_run(path: Path) -> RunFolder:
    folder = new_folder(path)
    readings = dict(CPU)
    for number in range(8):
        readings |= gpu(number, 90.0 - number)
        add_rank(folder, COMPUTING, rank=number, is_on_device=True)
    add_machine(folder, readings, num_gpus=8)
    return folder


def slow_rank_run(path: Path) -> RunFolder:
    folder = new_folder(path, exit=1)
    add_machine(folder, {**CPU, **gpu(0), **gpu(1)}, num_gpus=2)
    quick = {"data": 5.0, "forward": 30.0, "backward": 50.0, "optimizer": 5.0, "comm": 42.0}
    slow = {"data": 45.0, "forward": 30.0, "backward": 50.0, "optimizer": 5.0, "comm": 2.0}
    add_rank(folder, quick, rank=0, is_on_device=True)
    add_rank(folder, slow, rank=1, is_on_device=True)
    return folder


def stepless_run(path: Path) -> RunFolder:
    folder = new_folder(path, end=None, exit=None)
    add_machine(folder, CPU)
    script = str(path.parent / "train.py")
    lines = [[script, "load", 4, 20.0, 20.0, None]]
    folder.write(
        folder.facts("0-node1"),
        {"label": "0-node1", "rank": 0, "host": "node1", "steps": 0, "lines": lines},
    )
    return folder


RUNS = {"cpu": cpu_run, "gpus": gpu_run, "slow-rank": slow_rank_run, "no-steps": stepless_run}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


# -- the text ------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_run_as_text(name: str, place: Path, golden: Callable[[str, str], None]) -> None:
    text = render_run(read(RUNS[name](place)), edge=100)
    assert len(text.splitlines()) <= 60
    golden(f"run-{name}.txt", text.replace(str(place.parent), "DIR") + "\n")


def test_sixty_four_ranks_on_sixteen_machines_fit_on_a_screen(place: Path) -> None:
    folder = new_folder(place)
    for host in range(16):
        readings = dict(CPU)
        for number in range(4):
            readings |= gpu(number)
            add_rank(folder, COMPUTING, rank=4 * host + number, host=f"n{host}", is_on_device=True)
        add_machine(folder, readings, host=f"n{host}", num_gpus=4)
    text = render_run(read(folder), edge=100)
    assert len(text.splitlines()) <= 60
    assert "64 ranks" in text
    assert "16 hosts (n0 … n9)" in text
    assert "9 more, each" in text
    assert "max of 64" in text


@pytest.fixture
def beside(place: Path) -> Summary:
    """Three processes that share a model, or that trained in turn: none of them has a rank."""
    folder = new_folder(place)
    add_machine(folder, CPU)
    for number in range(3):
        add_rank(folder, {**COMPUTING, "other": 1.0 + number}, pid=4711 + number, world=1)
    return read(folder)


def test_processes_without_ranks_are_not_told_as_ranks(beside: Summary) -> None:
    text = render_run(beside, edge=100)
    assert "3 processes, 400 steps" in text
    slowest = beside.name_of(max(beside.ranks, key=lambda rank: rank.pid))
    assert f"{slowest} on node1, the slowest of 3" in text
    assert f"slowest lines of {slowest}" in text
    assert "all processes together" in text
    assert not re.search(r"\branks?\b", text)
    page = render_page(beside, [], [])
    assert "3 processes" in page
    assert "most of 3 processes" in page
    assert not re.search(r"\branks?\b", page.partition("<script")[0])


def test_processes_without_ranks_are_told_apart_by_their_numbers(beside: Summary) -> None:
    screen = render_top(beside, 100, 40)
    assert "process  step" in screen
    assert "4713" in screen
    assert "more processes" in render_top(beside, 100, 11)
    comparison = render_comparison(compare(beside, replace(beside, ranks=beside.ranks[:1])))
    assert "A has 3 processes, B has 1" in comparison


def test_ranks_that_came_twice_are_ranks(place: Path) -> None:
    """As when torchrun starts them again."""
    folder = new_folder(place)
    for pid in (1, 2):
        for rank in (0, 1):
            add_rank(folder, COMPUTING, rank=rank, pid=10 * pid + rank, world=2)
    assert "4 ranks" in render_run(read(folder))


@pytest.mark.parametrize("edge", [20, 60, 80, 110])
@pytest.mark.parametrize("name", RUNS)
def test_no_line_is_wider_than_the_terminal(name: str, place: Path, edge: int) -> None:
    lines = render_run(read(RUNS[name](place)), edge=edge).splitlines()
    assert max(len(line) for line in lines) <= edge


def test_an_empty_folder_says_that_nothing_is_known(place: Path) -> None:
    folder = RunFolder(place)
    folder.make()
    text = render_run(read(folder))
    assert "unknown how it ended" in text
    assert "Nothing was recorded" in text
    assert "run.json is missing" in text


def test_without_run_json_the_rest_is_shown(place: Path) -> None:
    folder = cpu_run(place)
    folder.run_json.unlink()
    text = render_run(read(folder))
    assert "command  unknown" in text
    assert "Training waits for data 62 %" in text


def test_what_was_written_before_a_kill_is_shown(place: Path) -> None:
    folder = new_folder(place, end=None, exit=None, recorder_cpu_s=None)
    add_machine(folder, CPU)
    add_rank(folder, DATA_BOUND)
    for path in (folder.samples("node1"), folder.steps("0-node1")):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    text = render_run(read(folder))
    assert "still running" in text
    assert "Training waits for data 62 %" in text
    assert "recording took" not in text


def test_how_it_ended_is_said_in_words(place: Path) -> None:
    for code, words in (
        (0, "ended well"),
        (3, "failed with exit code 3"),
        (-15, "killed by SIGTERM"),
    ):
        folder = new_folder(place, exit=code)
        assert words in render_run(read(folder))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("_pickle.UnpicklingError", "failed with exit code 1: UnpicklingError\n"),
        ("builtins.ValueError", "failed with exit code 1: ValueError\n"),
        (7, "failed with exit code 1\n"),
    ],
)
def test_what_a_program_failed_with_is_named(place: Path, error: object, words: str) -> None:
    folder = new_folder(place, exit=1)
    add_rank(folder, {}, steps=0, facts={"error": error})
    assert words in render_run(read(folder))


def test_lines_choose_how_many_and_none(place: Path) -> None:
    summary = read(cpu_run(place))
    assert "slowest" not in render_run(summary, 0)
    assert render_run(summary, 1).count("train.py:") == 1
    assert render_run(summary, 99).count("train.py:") == 6


def test_a_source_that_changed_since_is_not_quoted(place: Path) -> None:
    folder = cpu_run(place)
    os.utime(place.parent / "train.py", (START + 5, START + 5))
    text = render_run(read(folder), edge=110)
    assert "loss.backward()" not in text
    assert "(changed since the run)" in text


@pytest.mark.parametrize("file", ["/dev/zero", "/", "/proc/kmsg", "relative.py", "\0", ""])
def test_a_file_that_is_no_source_is_left_alone(place: Path, file: str) -> None:
    folder = new_folder(place)
    add_rank(folder, DATA_BOUND, lines=[[file, "f", 1, 2.0, 2.0, "data"]])
    assert "2.00" in render_run(read(folder), edge=110)


def test_counted_lines_show_their_hits(place: Path) -> None:
    folder = new_folder(place)
    script = str(place.parent / "train.py")
    add_rank(folder, DATA_BOUND, exact=[[script, "load", 4, 51200, 21.25]])
    text = render_run(read(folder), edge=110)
    assert "51,200" in text
    assert next_command(read(folder)).endswith("--json")


def test_lines_on_the_device_show_their_time_and_who_waits(place: Path) -> None:
    folder = new_folder(place)
    script = str(place.parent / "train.py")
    extra = {"device_ms": 12.5, "sync": True}
    add_rank(folder, DATA_BOUND, lines=[[script, "<module>", 8, 9.0, 9.0, "backward", extra]])
    text = render_run(read(folder), edge=110)
    assert "device ms" in text
    assert "backward sync" in text


def test_a_terminal_is_never_sent_what_it_would_obey(place: Path) -> None:
    folder = new_folder(place, id="a\x1b[2Jb", command=["x\x07", "\x1b]0;t\x07"])
    add_machine(folder, CPU, host="h\x1b[31m")
    add_rank(
        folder, DATA_BOUND, notes=["n\x1b[0m\nm"], lines=[["\x1b[1m", "f\r", 1, 2.0, 2.0, "\x1b"]]
    )
    text = render_run(read(folder))
    assert all(each.isprintable() or each == "\n" for each in text)


# -- the verdict ---------------------------------------------------------------------


def verdict(place: Path, phases: Mapping[str, float], **changes: Any) -> str:
    folder = new_folder(place)
    add_rank(folder, phases, **changes)
    return make_verdict(read(folder))


def test_data_wait_has_its_share_and_its_ceiling(place: Path) -> None:
    assert verdict(place, DATA_BOUND, is_on_device=True) == (
        "The GPU waits for data 62 % of each step (62 of 100 ms); "
        "without the wait a step would take 38 ms, 2.6× faster at most."
    )


def test_on_a_cpu_it_is_training_that_waits(place: Path) -> None:
    assert verdict(place, DATA_BOUND).startswith("Training waits for data 62 %")


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (
            {"forward": 30, "backward": 40, "comm": 30},
            "Communication that no computing hides takes 30 % of each step (30 of 100 ms); "
            "without it a step would take 70 ms, 1.4× faster at most.",
        ),
        (
            {"h2d": 20, "forward": 80, "data": 15},
            "Copies to the GPU take 17 % of each step (20 of 115 ms); "
            "without them a step would take 95 ms, 1.2× faster at most.",
        ),
        ({"forward": 60, "optimizer": 40}, "The optimizer takes 40 % of each step (40 of 100 ms)."),
        (
            {"forward": 60, "other": 40},
            "40 % of each step (40 of 100 ms) is spent outside loading, model and optimizer.",
        ),
        (
            {"forward": 31, "backward": 62, "data": 7},
            "Compute-bound: forward and backward take 93 % of the step.",
        ),
        (
            {"forward": 30, "backward": 40, "optimizer": 20, "data": 9, "other": 1},
            "Compute-bound: forward and backward take 70 % of the step, "
            "then comes the optimizer with 20 %.",
        ),
        ({"graph": 95, "data": 5}, "Compute-bound: the graph takes 95 % of the step."),
        ({"data": 100}, "Training waits for data 100 % of each step (100 of 100 ms); "
                        "without the wait a step would take 0 µs."),
    ],
)  # fmt: skip
def test_the_largest_part_that_is_not_computing_is_named(
    place: Path, phases: Mapping[str, float], words: str
) -> None:
    assert verdict(place, phases) == words


@pytest.fixture
def forward_bound(place: Path) -> Callable[..., Summary]:
    """Steps of 100 ms that are nearly all forward, with what is told of that."""
    folder = new_folder(place)
    add_rank(folder, {"forward": 95, "data": 5})
    summary = read(folder)
    (rank,) = summary.ranks
    steady = rank.steady
    assert steady is not None

    def told(**of_forward: Any) -> Summary:
        return replace(summary, ranks=(replace(rank, steady=replace(steady, **of_forward)),))

    return told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("between_s", "passes between one call of the model and the next, in code of the script's own such as "
                      "an environment."),
        ("evaluated_s", "is spent in calls of a model in evaluation mode: a teacher's, or an evaluation after "
                        "each step."),
    ],
)  # fmt: skip
def test_what_else_forward_holds_is_not_called_computing(
    forward_bound: Callable[..., Summary], name: str, words: str
) -> None:
    much, little = (forward_bound(**{name: seconds}) for seconds in (0.06, 0.02))
    assert make_verdict(much) == f"60 % of each step (60 of 100 ms) {words}"
    assert make_verdict(little) == "Compute-bound: forward takes 95 % of the step."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("between", "from one call of the model to the next"),
        ("evaluated", "in calls in evaluation mode"),
    ],
)
@pytest.mark.parametrize(("ms", "is_told"), [(60, True), (20, True), (9, False)])
def test_the_table_says_how_much_of_forward_that_is(
    forward_bound: Callable[..., Summary], name: str, words: str, ms: float, is_told: bool
) -> None:
    summary = forward_bound(**{f"{name}_s": ms / 1000})
    row = f"  {name:<12}{ms} ms a step, of forward, {words}"
    assert (row in render_steps(summary, 120)) == is_told


def test_steps_of_several_batches_are_told_as_such(place: Path) -> None:
    folder = new_folder(place)
    add_rank(folder, {"graph": 95, "data": 5}, facts={"batches_per_call": 10})
    row = "  batches     10 a step: each is one call of TensorFlow's graph"
    assert row in render_steps(read(folder), 120)


def test_little_data_is_called_little(place: Path) -> None:
    assert verdict(place, DATA_BOUND, steps=15) == (
        "Only 12 steady steps after the warm-up, and a verdict needs 20; "
        "so far the largest part of a step is waiting for data (62 %)."
    )


def test_warm_up_alone_is_no_verdict(place: Path) -> None:
    assert verdict(place, DATA_BOUND, steps=2) == (
        "Only 2 steps were seen, all of them warm-up: too few to say what limits the run."
    )


def test_without_a_step_what_is_known_is_said(place: Path) -> None:
    assert make_verdict(read(stepless_run(place))) == (
        "No training step was recognised yet: the run kept 3.2 of 16 cores busy, "
        "the slowest line is train.py:4 (67 %)."
    )


def test_a_program_that_steps_by_itself_hears_why_it_has_no_steps(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, CPU)
    add_rank(folder, {}, steps=0, facts={"is_unstepped": True})
    assert make_verdict(read(folder)) == (
        "No training step was recognised, as gradients were taken but no optimizer that Stoker knows "
        "stepped: the run kept 3.2 of 16 cores busy, the slowest line is train.py:4 (35 %)."
    )


def test_of_a_run_that_goes_on_a_process_may_come_yet(place: Path) -> None:
    folder = new_folder(place, exit=None, end=None)
    add_machine(folder, {"cpu.cores": 3.2})
    assert make_verdict(read(folder)).startswith("No Python process was watched yet: ")
    folder = new_folder(place, exit=0, end=START + 30)
    assert make_verdict(read(folder)).startswith("No Python process was watched: ")


def test_a_failure_before_the_first_step_is_called_one(place: Path) -> None:
    folder = new_folder(place, exit=1, end=START + 30)
    add_rank(folder, {}, steps=0)
    assert make_verdict(read(folder)) == (
        "No training step was recognised before the run ended in failure."
    )


def test_ranks_are_missed_only_where_each_leaves_a_record(place: Path) -> None:
    """Of a run without steps, the busiest process is told for all."""
    folder = new_folder(place)
    add_rank(folder, {}, steps=0, world=4)
    assert notes(read(folder)) == []
    add_rank(folder, DATA_BOUND, rank=1, world=4)
    assert notes(read(folder)) == ["only 2 of 4 ranks left a record"]


def test_what_could_not_be_read_of_a_machine_is_noted_with_its_name(place: Path) -> None:
    lost, none = "GPU 2 is lost: GPU is lost", "no pressure: this kernel does not measure it (PSI)"
    folder = new_folder(place, notes=[none])
    add_rank(folder, DATA_BOUND, notes=["hooks failed"])
    add_machine(folder, CPU, notes=[none])
    assert notes(read(folder)) == ["hooks failed", none]
    for host in ("node2", "node3"):
        add_machine(folder, CPU, host=host, notes=[none, lost] if host == "node3" else [none])
    assert notes(read(folder)) == ["hooks failed", f"{none} (3 machines)", f"{lost} (node3)"]


def test_a_machine_that_others_keep_busy_is_noted(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, {"cpu.cores": 2.0, "cpu.machine_pct": 95.0}, cores_machine=16)
    assert notes(read(folder)) == [
        "others kept 13 of the 16 cores of node1 busy: "
        "on a free machine the run is faster, and may wait for other things"
    ]


def test_others_who_leave_cores_free_are_not_noted(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, {"cpu.cores": 2.0, "cpu.machine_pct": 60.0}, cores_machine=16)
    assert notes(read(folder)) == []


def test_a_program_that_is_not_python_is_not_called_idle(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, CPU)
    assert make_verdict(read(folder)) == (
        "No Python process was watched: the run kept 3.2 of 16 cores busy."
    )


def test_the_rank_that_the_others_wait_for_is_named(place: Path) -> None:
    assert make_verdict(read(slow_rank_run(place))) == (
        "Rank 1 on node1 slows the other: its own work takes 130 ms of each step against 90 ms, "
        "and for the difference that one waits in communication; most of it is waiting for data "
        "(40 ms)."
    )


def test_ranks_that_do_not_wait_for_each_other_have_no_slow_one(place: Path) -> None:
    folder = new_folder(place)
    add_rank(folder, {"data": 5.0, "forward": 30.0}, rank=0)
    add_rank(folder, {"data": 5.0, "forward": 60.0}, rank=1)
    assert "slows" not in make_verdict(read(folder))


def test_a_gpu_that_nobody_touched_is_named(place: Path) -> None:
    folder = new_folder(place)
    readings = {**CPU, **gpu(0)}
    for number in range(1, 4):
        readings |= gpu(number, 0.0, is_mine=False)
    add_machine(folder, readings, num_gpus=4)
    add_rank(folder, COMPUTING)
    summary = read(folder)
    assert make_verdict(summary).startswith("3 of 4 GPUs were never used (GPUs 1–3). Compute-")
    # In the verdict, in the finding and beside each of them.
    assert render_run(summary, edge=100).count("never used") == 1 + 1 + 3


def test_a_gpu_that_somebody_else_keeps_busy_is_not_ours(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, {**gpu(0), **gpu(1, 99.0, is_mine=False)}, num_gpus=2)
    assert [each.is_used for each in held_gpus(read(folder))] == [True, False]


def test_in_a_container_load_is_taken_for_use(place: Path) -> None:
    folder = new_folder(place)
    readings = {**gpu(0, 50.0, is_mine=False), **gpu(1, 0.0, is_mine=False)}
    add_machine(folder, readings, num_gpus=2)
    assert [each.is_used for each in held_gpus(read(folder))] == [True, False]


def test_a_model_on_the_cpu_beside_a_gpu_is_told(place: Path) -> None:
    folder = new_folder(place)
    add_machine(folder, {**CPU, **gpu(0, 0.0, is_mine=False)}, num_gpus=1)
    add_rank(folder, COMPUTING, facts={"model": {"device": "cpu"}})
    assert make_verdict(read(folder)).startswith(
        "The GPU was never used; the model ran on the CPU. Compute-bound"
    )


# -- JSON, CSV, the next command -----------------------------------------------------


def test_json_of_many_machines_is_one_line(place: Path) -> None:
    summary = read(gpu_run(place))
    assert render_run_json(summary).count("\n") > 100
    many = replace(summary, machines=summary.machines * 9)
    assert "\n" not in render_run_json(many)
    assert json.loads(render_run_json(many)) == run_json(many)


def test_json_has_everything_with_units(place: Path) -> None:
    told = json.loads(json.dumps(run_json(read(gpu_run(place))), allow_nan=False))
    assert (told["format"], told["state"], told["exit_code"]) == (1, "ended", 0)
    assert (told["wall_s"], told["num_ranks"], told["steps"]) == (60, 8, 400)
    steady = told["slowest_rank"]["splits"]["steady"]
    assert steady["steps"] == 397
    assert steady["phases_s"]["backward"] == pytest.approx(0.06)
    assert sum(steady["phases_s"].values()) == pytest.approx(steady["step_s"]["mean"])
    assert told["over_ranks_s"]["step"] == pytest.approx({"min": 0.1, "median": 0.1, "max": 0.1})
    card = told["machines"][0]["gpus"][7]
    assert (card["index"], card["uuid"], card["is_used"]) == (7, "GPU-0007", True)
    assert card["stats"]["duty_pct"]["mean"] == pytest.approx(83, rel=0.01)
    assert told["next"].startswith("stoker run --lines ")


def test_csv_has_one_line_for_each_gpu_and_row(place: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(render_gpu_csv(read(gpu_run(place))))))
    assert len(rows) == 8 * SECONDS
    assert (rows[9]["gpu"], rows[9]["uuid"], rows[9]["host"]) == ("1", "GPU-0001", "node1")
    assert float(rows[9]["time_s"]) == 2
    assert rows[9]["temp_c"] == ""
    assert float(rows[9]["power_w"]) == 360


def test_csv_without_a_gpu_is_the_header(place: Path) -> None:
    assert render_gpu_csv(read(cpu_run(place))) == ",".join(HEADER) + "\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/env/bin/python", "train.py", "a b"], "--python /env/bin/python train.py 'a b'"),
        (["/env/bin/python3.11", "-m", "p.t"], "--python /env/bin/python3.11 -m p.t"),
        (["torchrun", "train.py"], "-- torchrun train.py"),
        (["python3", "-u", "train.py"], "-- python3 -u train.py"),
        (
            ["/env/bin/python", "b\udcff.py", "a\nb"],
            r"--python /env/bin/python $'b\xff.py' $'a\nb'",
        ),
    ],
)
def test_the_next_command_runs_the_same_again(place: Path, command: list[str], words: str) -> None:
    folder = new_folder(place, command=command)
    add_rank(folder, DATA_BOUND)
    assert next_command(read(folder)) == f"stoker run --lines {words}"


@pytest.mark.parametrize("before", [[], ["-m", "torch.distributed.run", "--"]])
def test_where_lines_could_not_be_counted_the_next_command_brings_what_counts_them(
    place: Path, before: list[str]
) -> None:
    folder = new_folder(place, command=["/env/bin/python", *before, str(EXACT), "t.py"])
    add_rank(folder, DATA_BOUND)
    again = " ".join([*before, "t.py"])
    assert next_command(read(folder)) == (
        "/env/bin/python -m pip install line_profiler "
        f"&& stoker run --lines --python /env/bin/python {again}"
    )


def test_the_next_command_of_a_run_that_failed_is_the_same_again(place: Path) -> None:
    folder = new_folder(place, command=["/env/bin/python", "t.py"], exit=1, end=START + 30)
    add_rank(folder, DATA_BOUND)
    assert next_command(read(folder)) == "stoker run --python /env/bin/python t.py"


def test_what_srun_or_mpirun_started_is_not_started_again_as_one_process(place: Path) -> None:
    folder = new_folder(place, command=["/env/bin/python", "t.py"], launch="slurm-7.0 of 4")
    add_rank(folder, DATA_BOUND)
    assert next_command(read(folder)) == f"stoker report {place} --json"


def test_the_next_command_of_a_run_that_goes_on_watches_it(place: Path) -> None:
    assert next_command(read(stepless_run(place))).startswith("stoker top ")


# -- the command ---------------------------------------------------------------------


def test_report_shows_the_newest_run_of_this_folder(stoker: Stoker, tmp_path: Path) -> None:
    for name in ("1-old", "2-new"):
        add_machine(new_folder(tmp_path / ".stoker/runs" / name, id=name), CPU)
    done = stoker("report")
    assert done.returncode == 0
    assert done.stdout.startswith("run      2-new: ended well\n")
    assert done.stderr == "next: stoker report 2-new --json\n"
    assert stoker("report", "1-old").stdout.startswith("run      1-old: ")


def test_report_writes_csv_and_not_over_another(stoker: Stoker, tmp_path: Path) -> None:
    gpu_run(tmp_path / "run")
    done = stoker("report", "run", "--csv", "gpu.csv")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "wrote gpu.csv (480 rows)\n"
    assert stoker("report", "run", "--csv", "gpu.csv").returncode == 1
    assert stoker("report", "run", "--csv", "gpu.csv", "--force").returncode == 0
    assert stoker("report", "run", "--csv", "-").stdout == (tmp_path / "gpu.csv").read_text()


def test_report_writes_a_page_and_not_over_another(stoker: Stoker, tmp_path: Path) -> None:
    add_machine(new_folder(tmp_path / "run"), {**CPU, **gpu(0)}, num_gpus=1)
    done = stoker("report", "run", "--html", "run.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("wrote run.html (")
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert stoker("report", "run", "--html", "run.html").returncode == 1
    assert stoker("report", "run", "--html", "run.html", "--force").returncode == 0


def test_csv_without_a_gpu_says_so(stoker: Stoker, tmp_path: Path) -> None:
    cpu_run(tmp_path / "run")
    done = stoker("report", "run", "--csv", "gpu.csv")
    assert done.returncode == 0
    assert "note: there was no GPU" in done.stderr
    assert (tmp_path / "gpu.csv").read_text() == ",".join(HEADER) + "\n"


def test_report_has_json_and_lines(stoker: Stoker, tmp_path: Path) -> None:
    cpu_run(tmp_path / "run")
    assert json.loads(stoker("report", "run", "--json").stdout)["format"] == 1
    assert stoker("report", "run", "--lines", "1").stdout.count("train.py:") == 1
    assert stoker("report", "run", "--lines", "few").returncode == 2


def test_a_folder_without_a_run_is_an_error(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = stoker("report", "empty")
    assert done.returncode == 1
    assert done.stderr.startswith("error: `empty` holds no run\n  why: ")


def test_the_report_is_utf8_whatever_the_locale(stoker: Stoker, tmp_path: Path) -> None:
    cpu_run(tmp_path / "run")
    done = stoker("report", "run", LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "█" in done.stdout.encode("utf-8", "surrogateescape").decode()


# -- damage --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_rank_run(tmp_path_factory.mktemp("whole") / "run").path


@settings(max_examples=examples(50))
@given(st.data())
def test_any_damage_can_be_reported(whole: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run"
        shutil.copytree(whole, path)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3)):
            content = bytearray(file.read_bytes())
            for at in data.draw(st.lists(st.integers(0, 1500), min_size=1, max_size=6)):
                if at < len(content):
                    content[at] = data.draw(st.sampled_from(b'0-9"[]{},.:en \n\xff'))
            cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
            file.write_bytes(content[:cut])
        try:
            summary = read_summary(RunFolder(path), now=START + 30)
        except FileError:
            return  # one digit of the format's number makes it that of a newer Stoker
        text = render_run(summary, edge=100)
        assert all(each.isprintable() or each == "\n" for each in text)
        assert max(len(line) for line in text.splitlines()) <= 100
        json.dumps(run_json(summary), allow_nan=False)
        render_gpu_csv(summary)
        next_command(summary)


def test_a_gpus_counter_that_is_all_but_nothing_is_nothing() -> None:
    assert _cell(Stat(20, 0.0021, 0.0004, 0.0026)) == "0 ±0 (0)"
    assert _cell(Stat(20, 0.85, 6.6, 52.0)) == "0.85 ±6.6 (52)"
    assert _cell(Stat(20, math.nan, 0.0, 1.0)) == "unknown ±0 (1.0)"
