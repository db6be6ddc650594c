"""What is said of a loader: each cause by itself, and silence where there is none or little is known."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stoker.advise.finding import Finding
from stoker.advise.findings import find
from stoker.advise.repeat import repeat_noise
from stoker.advise.rules import loading, storage, tensorflow_input
from stoker.advise.rules.device import host_code
from stoker.advise.wait import read_wait
from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, SeriesWriter, Stat
from stoker.watch.summary import Summary, read_summary

START = 1_794_700_000.0
RULES = (*loading.RULES, *storage.RULES, *tensorflow_input.RULES)
DECODE, SCALE = ["train.py", "__getitem__", 8, 5.0, 5.0], ["train.py", "__getitem__", 9, 4.0, 4.0]
LOOP = ["train.py", "<module>", 20, 0.1, 40.0, "data"]


class Case(NamedTuple):
    """A minute of training after ten seconds of start-up; times in milliseconds."""

    data: float = 60.0
    rest: float = 40.0
    steps: int = 600
    workers: int = 0
    # Of the loads that were looked at: on a core, and waiting for one; None if nobody looked.
    core: float | None = 58.0
    queue: float = 0.0
    opens: float = 0.0
    first: float | None = None
    epochs: int = 1
    cores: float | None = 16
    cores_machine: float = 64
    busy: float = 1.1
    machine_pct: float = 20.0
    read_mb_s: float = 0.0
    h2d: float = 0.0
    other: float = 0.0
    hidden: float = 0.0
    device_steps: int = 0
    lines: Sequence[list[Any]] = (LOOP, [*DECODE, "data"], [*SCALE, "data"])
    worker_lines: Sequence[list[Any]] = ()
    loader: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}
    ranks: int = 1


def stat(value: float, count: int = 1) -> Stat:
    return Stat(count, value, 0.0, value)


def summary_of(case: Case, path: Path) -> Summary:
    folder = RunFolder(path / "run")
    folder.make()
    step = (case.data + case.rest) / 1000
    wall = 10 + step * case.steps
    told = {"id": "run", "start": START, "end": START + wall, "exit": 0, "host": "n1"}
    folder.write(folder.run_json, {**told, "environment": dict(case.environment)})
    facts = {"host": "n1", "cores_allowed": case.cores, "cores_machine": case.cores_machine}
    folder.write(folder.machine("n1"), facts)
    writer = SeriesWriter(folder.samples("n1"), {"kind": "samples", "host": "n1"})
    readings = {"cpu.cores": case.busy, "cpu.machine_pct": case.machine_pct}
    readings["io.read_mb_s"] = case.read_mb_s
    for second in range(int(wall)):
        row = {name: stat(value) for name, value in readings.items()}
        writer.append(Row(second, second + 1, row))
    writer.close()
    for rank in range(case.ranks):
        write_rank(folder, case, rank, wall)
    return read_summary(folder, now=START + wall)


def write_rank(folder: RunFolder, case: Case, rank: int, wall: float) -> None:
    label = f"{rank}-n1"
    writer = SeriesWriter(folder.steps(label), {"kind": "steps", "label": label})
    writer.append(Row(0, 10, {"startup.step": stat(10.0)}))
    step = (case.data + case.rest) / 1000
    count = case.steps - 3 - (case.epochs - 1)
    stats = {
        "steady.step": stat(step, count),
        "steady.data": stat(case.data / 1000, count),
        "steady.forward": stat((case.rest - case.h2d - case.other) / 1000, count),
    }
    if case.other:
        stats["steady.other"] = stat(case.other / 1000, count)
    if case.hidden:
        stats["steady.data_hidden"] = stat(case.hidden / 1000, count)
    if case.h2d:
        stats["steady.h2d"] = stat(case.h2d / 1000, count)
    if case.device_steps:
        stats = {name: value._replace(count=case.device_steps) for name, value in stats.items()}
        stats["steady.step"] = stat(step, count)
        stats["steady.device_step"] = stat(step, case.device_steps)
    if case.core is not None:
        looked = case.data / 1000 if not case.workers else 0.5
        share = 1.0 if not case.workers else looked / (case.workers * step)
        stats["loading.wall"] = stat(looked, 100)
        stats["loading.core"] = stat(case.core / 1000 * share, 100)
        stats["loading.queue"] = stat(case.queue / 1000 * share, 100)
        stats["loading.opens"] = stat(case.opens, 100)
    if case.first is not None:
        stats["first.step"] = stat((case.first + case.rest) / 1000, case.epochs - 1)
        stats["first.data"] = stat(case.first / 1000, case.epochs - 1)
        stats["first.forward"] = stat(case.rest / 1000, case.epochs - 1)
    writer.append(Row(10, wall, stats))
    writer.close()
    loader = {"batch_size": 8, "num_workers": case.workers, "pin_memory": False,
              "persistent_workers": False, "batches": case.steps // case.epochs,
              "epochs": case.epochs, **case.loader}  # fmt: skip
    facts = {"loaders": {"a": loader}, **case.facts}
    told = {"label": label, "rank": rank, "host": "n1", "pid": 7, "steps": case.steps}
    told |= {"epochs": case.epochs, "facts": {k: v for k, v in facts.items() if v is not None}}
    folder.write(
        folder.facts(label),
        {**told, "lines": list(case.lines), "worker_lines": list(case.worker_lines)},
    )


def found(case: Case, path: Path) -> list[Finding]:
    return find(summary_of(case, path), RULES)


def top(case: Case, path: Path) -> Finding:
    findings = found(case, path)
    assert len(findings) == 1, [each.key for each in findings]
    return findings[0]


# -- each cause ----------------------------------------------------------------------


def test_a_gain_is_less_sure_while_others_have_the_cores(tmp_path: Path) -> None:
    case = Case(cores=16, cores_machine=16)
    assert top(case, tmp_path / "alone").confidence == "high"
    assert top(case._replace(machine_pct=95.0), tmp_path / "beside").confidence == "medium"


CROWDED = Case(workers=16, cores=10, busy=9.8, core=900, queue=600)
SLOW_LINE = [LOOP, ["train.py", "grey", 12, 30.0, 30.0, "data"], [*DECODE, "data"]]
PIPELINE = {"stages": ["Batch", "Map", "Range"], "prefetch": False, "batches": 600, "iterators": 1}
TENSORFLOW = Case(busy=0.4, core=None, facts={"loaders": None, "tf_data": {"a": PIPELINE}})
CAUSES = {
    "loader-workers": Case(),
    "loader-cpus": Case(workers=2, cores=2, busy=1.95, core=190),
    "loader-crowded": CROWDED,
    "loader-line": Case(lines=SLOW_LINE),
    "loader-storage": Case(core=5.0, read_mb_s=20.0),
    "loader-files": Case(opens=512.0),
    "loader-restart": Case(data=1.0, epochs=20, first=2000.0, workers=4, core=None),
    "loader-pinning": Case(data=1.0, h2d=12.0, device_steps=30),
    "tensorflow-pipeline": TENSORFLOW,
}


@pytest.mark.parametrize("key", CAUSES)
def test_each_cause_is_told_alone(key: str, tmp_path: Path) -> None:
    finding = top(CAUSES[key], tmp_path)
    assert finding.key == key
    assert finding.gain is not None
    assert finding.gain.high > 1.05
    for text in (finding.what, finding.why, finding.fix):
        assert text.endswith(".")
        assert ".." not in text


def test_workers_are_as_many_as_keep_up_and_the_gain_is_of_the_whole_run(tmp_path: Path) -> None:
    finding = top(Case(), tmp_path)
    assert finding.fix == "Give DataLoader `num_workers=2, persistent_workers=True`."
    assert finding.why == (
        "Training waits for data 60 % of each step (60 ms of 100 ms); a batch takes 60 ms to make, "
        "the rest of the step 40 ms, and 1.1 of 16 cores are busy."
    )
    assert (finding.level, finding.confidence, finding.safety) == ("problem", "high", "B")
    assert finding.gain is not None
    # 70 s, of which 600 waits of 60 ms: at most 34 s are left, and 36 s at the very best.
    assert finding.gain.ceiling == pytest.approx(70 / 34, rel=0.05)
    assert 1.6 < finding.gain.low < finding.gain.high <= finding.gain.ceiling


@pytest.mark.parametrize(
    "key",
    [f"loader-{name}" for name in ("workers", "cpus", "crowded", "line", "restart", "pinning")],
)
def test_the_trainer_of_hugging_face_is_told_its_own_arguments(key: str, tmp_path: Path) -> None:
    case = CAUSES[key]
    loader = {**case.loader, "trainer": "transformers"}
    fix = top(case._replace(loader=loader), tmp_path).fix
    assert "dataloader_" in fix
    assert re.search(r"(?<!dataloader_)(num_workers|persistent_workers|pin_memory)=", fix) is None
    assert "DataLoader" not in fix


def test_lightning_lets_its_workers_go_by_itself(tmp_path: Path) -> None:
    loader = {"pin_memory": True, "trainer": "lightning"}
    assert "`del`" not in top(Case(loader=loader), tmp_path).fix
    del loader["trainer"]
    assert "`del` it" in top(Case(loader=loader), tmp_path).fix


def test_no_more_workers_than_cores(tmp_path: Path) -> None:
    few = Case(data=400.0, core=390.0, rest=20.0, cores=4, steps=150)
    assert "num_workers=3," in top(few, tmp_path).fix


def test_workers_that_would_read_everything_twice_are_told_so(tmp_path: Path) -> None:
    finding = top(Case(loader={"is_iterable": True}), tmp_path)
    assert "get_worker_info" in finding.fix
    assert finding.safety == "C"


def test_workers_are_less_sure_where_others_take_the_cores(tmp_path: Path) -> None:
    shared = Case(cores=2, cores_machine=2, busy=0.6, machine_pct=98.0)
    finding = top(shared, tmp_path)
    assert (finding.key, finding.confidence) == ("loader-workers", "medium")
    assert finding.gain is not None
    assert finding.gain.low == 1.0


def test_cpus_are_asked_for_with_the_workers_that_use_them(tmp_path: Path) -> None:
    finding = top(CAUSES["loader-cpus"], tmp_path)
    assert finding.fix == (
        "`#SBATCH --cpus-per-task=7` in the batch script, and `num_workers=6` for DataLoader."
    )
    assert finding.what == "The loader has too few CPUs: the job may use 2 of 64."


def test_one_task_with_several_ranks_asks_for_the_cpus_of_all(tmp_path: Path) -> None:
    case = Case(workers=2, cores=4, busy=3.9, core=190, ranks=2)
    assert "--cpus-per-task=14`" in top(case, tmp_path).fix


def test_a_task_for_each_rank_asks_for_its_own(tmp_path: Path) -> None:
    case = Case(workers=2, cores=4, busy=3.9, core=190, ranks=2, environment={"SLURM_NTASKS": "2"})
    assert "--cpus-per-task=7`" in top(case, tmp_path).fix


def test_a_machine_without_more_cpus_has_none_to_ask_for(tmp_path: Path) -> None:
    assert found(Case(workers=2, cores=2, cores_machine=2, busy=1.95, core=190), tmp_path) == []


def test_too_many_workers_are_as_many_as_cores(tmp_path: Path) -> None:
    finding = top(CROWDED, tmp_path)
    assert finding.fix == "Give DataLoader `num_workers=10`, or ask for `--cpus-per-task=17`."
    assert "16 share 10 cores" in finding.what


def test_many_workers_that_wait_for_storage_are_not_crowded(tmp_path: Path) -> None:
    waiting = Case(workers=16, cores=10, busy=1.0, core=60, queue=5, read_mb_s=50.0)
    assert top(waiting, tmp_path).key == "loader-storage"


# -- one line, or the whole loader ---------------------------------------------------


def test_a_line_that_takes_most_is_named_with_its_place(tmp_path: Path) -> None:
    finding = top(CAUSES["loader-line"], tmp_path)
    assert finding.what == "One line takes 86 % of all loading: train.py:12, in grey."
    assert "num_workers=2 spreads it over the free cores" in finding.fix


def test_a_line_among_equals_is_not_the_cause(tmp_path: Path) -> None:
    equals = [LOOP, ["train.py", "grey", 12, 12.0, 12.0, "data"], [*DECODE, "data"]]
    assert top(Case(lines=equals), tmp_path).key == "loader-workers"


def test_a_loader_of_one_line_is_not_a_slow_line(tmp_path: Path) -> None:
    assert top(Case(lines=SLOW_LINE[:2]), tmp_path).key == "loader-workers"


def test_a_library_that_loads_leaves_only_the_loop_and_that_is_no_slow_line(tmp_path: Path) -> None:
    loop = ["train.py", "<module>", 20, 36.0, 40.0, "data"]
    lines = [loop, ["train.py", "<module>", 22, 20.0, 20.0, "forward"]]
    assert top(Case(lines=lines), tmp_path).key == "loader-workers"


def test_workers_have_slow_lines_too(tmp_path: Path) -> None:
    lines = [["train.py", "grey", 12, 100.0, 100.0], DECODE]
    case = Case(workers=2, core=190, busy=2.4, worker_lines=lines)
    assert top(case, tmp_path).key == "loader-line"


def test_a_comprehension_is_named_by_its_function(tmp_path: Path) -> None:
    inner = ["train.py", "<listcomp>", 12, 28.0, 28.0, "data"]
    outer = ["train.py", "grey", 12, 2.0, 30.0, "data"]
    assert "in grey." in top(Case(lines=[LOOP, inner, outer, [*DECODE, "data"]]), tmp_path).what


# -- storage -------------------------------------------------------------------------


def test_storage_is_the_cause_where_loading_waits_and_reads(tmp_path: Path) -> None:
    finding = top(CAUSES["loader-storage"], tmp_path)
    assert finding.what == "Loading waits for storage 92 % of its time."
    assert finding.why.endswith("only 5.0 ms of CPU time, to read 2.0 MB.")
    # It is in few files already.
    assert finding.fix == (
        "`stoker submit --data DIR …` copies it to the node's local disk ($LOCAL_SCRATCH or "
        "$TMPDIR) at the start of the job."
    )


def test_storage_that_is_slow_with_many_files_is_told_to_pack_them(tmp_path: Path) -> None:
    case = CAUSES["loader-storage"]._replace(opens=8.0)
    assert top(case, tmp_path).fix.startswith("`stoker pack DIR OUT`, then read it with ")


def test_small_files_are_packed_by_a_command_that_names_their_folder(tmp_path: Path) -> None:
    finding = top(CAUSES["loader-files"]._replace(loader={"root": "/scratch/my data/"}), tmp_path)
    assert finding.fix == (
        "`stoker pack '/scratch/my data' '/scratch/my data-packed'`, then read it with "
        "`stoker.open` and `stoker.Loader`. `stoker submit --data '/scratch/my data-packed' …` "
        "copies it to the node's local disk ($LOCAL_SCRATCH or $TMPDIR) at the start of the job."
    )


@pytest.mark.parametrize("root", [None, 7, "", "/", "."])
def test_a_folder_that_is_not_known_is_a_placeholder(tmp_path: Path, root: object) -> None:
    finding = top(CAUSES["loader-files"]._replace(loader={"root": root}), tmp_path)
    assert finding.fix.startswith("`stoker pack DIR OUT`")


def test_loading_that_waits_and_reads_nothing_is_not_storage(tmp_path: Path) -> None:
    assert top(Case(core=5.0), tmp_path).key == "loader-workers"


def test_files_that_take_long_to_decode_are_not_small_files(tmp_path: Path) -> None:
    assert top(Case(opens=8.0), tmp_path).key == "loader-workers"


# -- restarts, copies, TensorFlow ----------------------------------------------------


def test_workers_that_stay_do_not_restart(tmp_path: Path) -> None:
    case = CAUSES["loader-restart"]._replace(loader={"persistent_workers": True})
    assert found(case, tmp_path) == []


def test_a_long_epoch_hides_the_restart(tmp_path: Path) -> None:
    assert found(CAUSES["loader-restart"]._replace(epochs=2, first=500.0), tmp_path) == []


def test_workers_that_keep_up_are_not_too_few(tmp_path: Path) -> None:
    case = Case(data=15.0, rest=40.0, workers=4, core=60, worker_lines=[[*DECODE[:3], 40.0, 40.0]],
                loader={"persistent_workers": True})  # fmt: skip
    assert found(case, tmp_path) == []


def test_pinned_memory_is_not_advised_twice(tmp_path: Path) -> None:
    case = CAUSES["loader-pinning"]._replace(loader={"pin_memory": True})
    assert found(case, tmp_path) == []


def test_freeing_batches_of_workers_is_a_part_of_what_pinning_saves(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nfor batch in loader:\n    tidy(batch)\n")
    os.utime(script, (START - 60, START - 60))
    loop = [str(script), "<module>", 2, 12.0, 40.0, "data"]
    code = [str(script), "<module>", 3, 12.0, 12.0, "other"]
    case = CAUSES["loader-pinning"]._replace(workers=4, other=15.0)
    gains = []
    for name, line in (("loop", loop), ("code", code)):
        summary = summary_of(case._replace(lines=[line]), tmp_path / name)
        finding, *_ = find(summary, RULES)
        assert finding.key == "loader-pinning"
        assert finding.gain is not None
        gains.append(finding.gain.ceiling)
        told = host_code(summary)
        assert (told is None) == (name == "loop")
    assert gains[0] > 1.2 * gains[1]


def test_waits_that_the_device_hides_are_not_freeing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nfor batch in loader:\n    tidy(batch)\n")
    os.utime(script, (START - 60, START - 60))
    loop = [str(script), "<module>", 2, 18.0, 40.0, "data"]
    case = CAUSES["loader-pinning"]._replace(workers=4, other=15.0, hidden=30.0, lines=[loop])
    assert host_code(summary_of(case, tmp_path / "run")) is not None


def test_copies_by_the_hosts_clock_alone_are_not_believed(tmp_path: Path) -> None:
    assert found(CAUSES["loader-pinning"]._replace(device_steps=0), tmp_path) == []


def test_a_pipeline_is_told_what_it_lacks(tmp_path: Path) -> None:
    finding = top(TENSORFLOW, tmp_path)
    assert finding.fix == (
        ".map(…, num_parallel_calls=tf.data.AUTOTUNE), and "
        ".prefetch(tf.data.AUTOTUNE) as the last stage."
    )


@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({"stages": ["Prefetch", "Batch", "ParallelMap", "Range"], "prefetch": True}, 0.4),
        ({"prefetch": True, "has_python": True}, 0.9),
        ({}, 15.9),
    ],
    ids=["parallel", "python holds its lock", "no core is free"],
)
def test_a_pipeline_that_can_do_no_better_is_left_alone(
    changes: dict[str, Any], busy: float, tmp_path: Path
) -> None:
    facts = {"loaders": None, "tf_data": {"a": {**PIPELINE, **changes}}}
    assert found(TENSORFLOW._replace(facts=facts, busy=busy), tmp_path) == []


# -- silence -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case(data=3.0),
        Case(steps=15),
        Case(cores=None),
        Case(cores=1, cores_machine=1, busy=1.0),
        Case(facts={"loaders": None}),
        Case(facts={"loaders": {"a": None}}),
    ],
    ids=["no wait", "few steps", "unknown cores", "one core", "no loader", "damaged"],
)
def test_nothing_is_said_of_what_is_well_or_not_known(case: Case, tmp_path: Path) -> None:
    assert found(case, tmp_path) == []


def test_a_small_gain_of_a_long_start_is_advice(tmp_path: Path) -> None:
    finding = top(Case(steps=80, data=20.0, core=18.0), tmp_path)
    assert finding.level == "advice"


def test_the_loader_that_was_trained_on_is_told_from_the_one_that_validated(tmp_path: Path) -> None:
    other = {"num_workers": 7, "batches": 40, "epochs": 1}
    mine = {"num_workers": 0, "batches": 600, "epochs": 1}
    facts = {"loaders": {"a": other, "b": mine}}
    wait = read_wait(summary_of(Case(facts=facts), tmp_path))
    assert wait is not None
    assert wait.workers == 0


@pytest.mark.parametrize("data", [20.0, 60.0, 200.0])
def test_no_gain_is_larger_than_what_the_wait_takes(tmp_path: Path, data: float) -> None:
    # Somebody else keeps the cores busy: sending them away is no fix of the loader.
    line = [["train.py", "__getitem__", 8, 30.0, 30.0, "data"], LOOP]
    shared = Case(
        data=data, core=data / 2, queue=data / 2, cores=2, cores_machine=2, busy=0.6,
        machine_pct=98.0, lines=line,
    )  # fmt: skip
    summary = summary_of(shared, tmp_path)
    [finding] = [each for each in find(summary, RULES) if each.gain is not None]
    assert finding.gain is not None
    ceiling = summary.wall_s / (summary.wall_s - shared.steps * data / 1000)
    assert finding.gain.expected < ceiling
    # They may be away in another run: that much more it may gain.
    assert finding.gain.ceiling <= ceiling * (1 + repeat_noise(summary)) * 1.001


def test_a_loader_that_was_left_before_its_end_is_the_one_that_was_trained_on(
    tmp_path: Path,
) -> None:
    """As where a sampler draws from the data for ever, and the loop counts its steps."""
    mine = {"num_workers": 4, "batches": 156_250_000, "epochs": 1, "trained": 600}
    held_out = {"num_workers": 0, "batches": 600, "epochs": 1, "trained": 0}
    wait = read_wait(summary_of(Case(facts={"loaders": {"a": held_out, "b": mine}}), tmp_path))
    assert wait is not None
    assert wait.workers == 4


def test_the_line_that_asks_for_a_batch_is_not_a_slow_line_of_the_loader(tmp_path: Path) -> None:
    """As with a data set of a library, whose lines are not the user's."""
    lines = [
        ["train.py", "<module>", 60, 0.0, 55.0, None],
        ["train.py", "run", 20, 36.0, 36.0, "data"],
        ["train.py", "run", 24, 12.0, 12.0, "backward"],
        ["train.py", "check", 40, 1.0, 1.0, "data"],
        ["train.py", "check", 41, 6.0, 6.0, "forward"],
    ]
    assert top(Case(lines=lines), tmp_path).key == "loader-workers"
