"""A run folder as one value: phases that add up, how it ended, and no damage that stops a reader."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_marks
import test_timeline
from stoker.watch import summary as summary_module
from stoker.watch.folder import RunFolder
from stoker.watch.inside.timeline import Timeline
from stoker.watch.record import started
from stoker.watch.scribe import _stat
from stoker.watch.series import Row, SeriesWriter, Stat, merged
from stoker.watch.summary import PHASES, SILENT_S, Summary, make_split, read_summary

START = 1_794_700_000.0


def stats(count: int, **means_ms: float) -> dict[str, Stat]:
    """Stats of steady steps, in milliseconds; a double underscore is a dot."""
    return {
        f"steady.{name.replace('__', '.')}": Stat(count, ms / 1000, 0.0, ms / 1000)
        for name, ms in means_ms.items()
    }


def phases_ms(found: Mapping[str, Stat]) -> dict[str, float]:
    split = make_split(found, "steady")
    assert split is not None
    return {name: round(1000 * value, 6) for name, value in split.phases.items()}


# -- what a step is made of ------------------------------------------------------------------


def test_without_steps_there_is_nothing_to_split() -> None:
    assert make_split({}, "steady") is None
    assert make_split(stats(3, data=4, step=10), "first") is None


def test_by_the_hosts_clock_phases_add_up_to_the_step() -> None:
    split = make_split(stats(10, step=10, data=4, backward=5) | stats(5, forward=2), "steady")
    assert split is not None
    # Half of the steps had a forward pass of 2 ms: 1 ms a step.
    assert split.phases == pytest.approx({"data": 0.004, "forward": 0.001, "backward": 0.005})
    assert (split.steps, split.device_steps) == (10, 0)
    assert split.share("data") == pytest.approx(0.4)
    assert split.share("comm") == 0


def test_phases_come_in_the_order_of_a_step() -> None:
    every = dict.fromkeys(reversed(PHASES), 1.0)
    assert tuple(phases_ms(stats(3, step=8, **every))) == PHASES


def test_where_some_steps_were_measured_on_the_device_those_tell_the_phases() -> None:
    found = stats(1000, step=10, host__data=6, host__forward=4)
    found |= stats(20, device_step=9, data=1, forward=8) | stats(10, data_hidden=6)
    split = make_split(found, "steady")
    assert split is not None
    assert split.phases == pytest.approx({"data": 0.001, "forward": 0.008})
    assert (split.steps, split.device_steps) == (1000, 20)
    assert split.data_hidden_s == pytest.approx(0.003)  # over all 20, though 10 hid nothing
    assert split.step.mean == 0.010


def test_where_none_was_the_hosts_clock_does() -> None:
    assert phases_ms(stats(5, step=10, host__data=6, host__forward=4)) == {"data": 6, "forward": 4}


def test_what_ddp_could_not_hide_is_communication_and_not_the_backward_pass() -> None:
    found = stats(100, step=20, forward=8, backward=12) | stats(4, ddp_comm=7, ddp_overlapped=5)
    split = make_split(found, "steady")
    assert split is not None
    assert split.phases == pytest.approx({"forward": 0.008, "backward": 0.010, "comm": 0.002})
    assert split.comm_overlapped_s == pytest.approx(0.005)


@pytest.mark.parametrize(("comm", "overlapped"), [(50, 1), (5, 9), (0, 0)])
def test_whatever_ddp_says_phases_still_add_up(comm: float, overlapped: float) -> None:
    found = stats(9, step=20, forward=8, backward=12, ddp_comm=comm, ddp_overlapped=overlapped)
    phases = phases_ms(found)
    assert sum(phases.values()) == pytest.approx(20)
    assert all(value >= 0 for value in phases.values())


def test_other_threads_work_beside_the_step() -> None:
    found = stats(10, step=10, forward=10) | stats(5, beside__data=4, beside__comm=2)
    split = make_split(found, "steady")
    assert split is not None
    assert split.phases == {"forward": 0.010}
    assert (split.data_hidden_s, split.comm_overlapped_s) == pytest.approx((0.002, 0.001))


def told(line: Timeline) -> dict[str, Stat]:
    """What the scribe would have written of a timeline."""
    line.flush()
    rows = [Row(each.start, each.end, {name: _stat(*sums) for name, sums in each.sums.items()})
            for each in line.ready]  # fmt: skip
    whole = merged(rows)
    return dict(whole.stats) if whole else {}


@given(st.lists(st.sampled_from(sorted(test_timeline.EVENTS)), max_size=60))
def test_phases_add_up_to_the_step_after_any_order_of_events(names: list[str]) -> None:
    loop = test_timeline.Loop()
    for name in names:
        test_timeline.EVENTS[name](loop)
    found = told(loop.line)
    for kind in ("warmup", "first", "steady", "eval"):
        split = make_split(found, kind)
        if split is not None:
            assert sum(split.phases.values()) == pytest.approx(split.step.mean, abs=1e-6)


@pytest.mark.parametrize("fails_at", ["", "record", "query"])
def test_phases_add_up_on_a_device_also_when_it_fails_half_way(fails_at: str) -> None:
    loop = test_marks.Loop()
    loop.steps(20)
    loop.device.fails_at = fails_at
    loop.steps(20)
    split = make_split(told(loop.line), "steady")
    assert split is not None
    assert split.steps == 37
    assert sum(split.phases.values()) == pytest.approx(split.step.mean, rel=0.1)


# -- how it ended --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


def read(folder: RunFolder, **run: object) -> Summary:
    folder.write(folder.run_json, {"start": START, "end": None, "exit": None, **run})
    return read_summary(folder, now=START + 30)


@pytest.mark.parametrize(
    ("code", "state", "ending"),
    [
        (0, "ended", "ended well"),
        (1, "failed", "failed with exit code 1"),
        (-signal.SIGKILL, "killed", "killed by SIGKILL"),
        (-63, "killed", "killed by signal 63"),
    ],
)
def test_a_run_ends_as_its_program_did(
    folder: RunFolder, code: int, state: str, ending: str
) -> None:
    summary = read(folder, exit=code, end=START + 12)
    assert (summary.state, summary.ending, summary.wall_s) == (state, ending, 12)


def test_a_run_whose_supervisor_lives_is_running(folder: RunFolder) -> None:
    summary = read(folder, host=os.uname().nodename, supervisor=os.getpid())
    assert (summary.state, summary.ending, summary.wall_s) == ("running", "running", 30)


def test_a_run_whose_supervisor_is_gone_is_lost_and_lasted_as_long_as_its_record(
    folder: RunFolder,
) -> None:
    writer = SeriesWriter(folder.samples("node1"), {"host": "node1"})
    writer.append(Row(0, 7.5, {}))
    writer.close()
    summary = read(folder, host=os.uname().nodename, supervisor=5_000_000)
    assert (summary.state, summary.wall_s) == ("lost", 7.5)
    assert summary.ending == "ended without a word"


@pytest.mark.parametrize(("later", "state"), [(0, "running"), (1, "lost")])
def test_a_process_that_got_the_supervisors_number_is_not_taken_for_it(
    folder: RunFolder, later: int, state: str
) -> None:
    """As in a container, where each run may be process 7."""
    ticks = started(os.getpid())
    assert ticks is not None
    told = {"supervisor": os.getpid(), "supervisor_started": ticks - later}
    assert read(folder, host=os.uname().nodename, **told).state == state


def test_a_supervisor_on_another_machine_is_taken_for_alive_while_somebody_writes(
    folder: RunFolder,
) -> None:
    """A machine that is lost, or killed at its time limit, says nothing any more."""
    writer = SeriesWriter(folder.samples("elsewhere"), {"host": "elsewhere"})
    writer.append(Row(0, 7.5, {}))
    writer.close()
    elsewhere = {"host": "elsewhere", "supervisor": 5_000_000}
    assert read(folder, **elsewhere).state == "running"
    past = time.time() - SILENT_S - 1
    for path in (folder.run_json, folder.samples("elsewhere")):
        assert read_summary(folder).state == "running"
        os.utime(path, (past, past))
    summary = read_summary(folder)
    assert (summary.state, summary.wall_s) == ("lost", 7.5)


# -- damage ------------------------------------------------------------------------------------


def everything(summary: Summary) -> None:
    """Ask for all that is worked out only when it is asked for."""
    assert summary.state in ("running", "ended", "failed", "killed", "lost")
    assert isinstance(summary.ending, str)
    for machine in summary.machines:
        machine.gpus()
    for rank in summary.ranks:
        for split in (rank.steady, rank.first, rank.warmup, rank.evaluation):
            assert split is None or all(isfinite(split.share(each)) for each in split.phases)


def test_an_empty_folder_is_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    summary = read_summary(RunFolder(tmp_path / "nothing"), now=START)
    assert (summary.run, summary.ranks, summary.machines, summary.wall_s) == ({}, (), (), 0)
    everything(summary)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


@given(
    objects("start", "end", "exit", "host", "supervisor"),
    objects("label", "rank", "host", "pid", "steps", "epochs", "lines", "worker_lines", "exact",
            "facts", "notes", "cost_s"),
    st.lists(values, max_size=4),
)  # fmt: skip
def test_no_value_of_any_kind_stops_the_reader(
    run: dict[str, Any], facts: dict[str, Any], cells: list[Any]
) -> None:
    run = {"host": os.uname().nodename, **run}
    columns = ["steady.step", "steady.data", "gpu.0.duty_pct", "gpu.x", "gpu.", "steady.ddp_comm"]
    lines = [
        {"host": "n"},
        {"columns": columns},
        [0, 1, *cells],
        [0, 1, *([3] * 6)],
        [1, 2, *cells],
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.make()
        folder.run_json.write_text(json.dumps(run))
        folder.facts("0-n").write_text(json.dumps({"label": "0-n", **facts}))
        for path in (folder.steps("0-n"), folder.samples("n")):
            path.write_text("\n".join(json.dumps(each) for each in lines))
        everything(read_summary(folder, now=START))


@given(st.lists(st.binary(max_size=60), min_size=5, max_size=5))
def test_no_bytes_in_any_file_stop_the_reader(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.make()
        paths = (folder.run_json, folder.facts("0-n"), folder.steps("0-n"), folder.machine("n"),
                 folder.samples("n"))  # fmt: skip
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        everything(read_summary(folder, now=START))


def test_a_folder_in_place_of_a_file_is_nothing(folder: RunFolder) -> None:
    for path in (folder.run_json, folder.facts("0-n"), folder.steps("0-n"), folder.samples("n")):
        path.mkdir()
    everything(read_summary(folder, now=START))


# -- many files ------------------------------------------------------------------------------


def add_rank(folder: RunFolder, rank: int, **facts: object) -> None:
    label = f"{rank}-n{rank // 8}"
    writer = SeriesWriter(folder.steps(label), {"kind": "steps", "host": f"n{rank // 8}"})
    for second in range(20):
        writer.append(Row(second, second + 1, stats(5, step=10 + rank, forward=10 + rank)))
    writer.close()
    lines = [["train.py", "load", 4, 1.0 + rank, 2.0, "data"]]
    told = {"label": label, "rank": rank, "world": 8, "steps": 100, "lines": lines}
    folder.write(folder.facts(label), {**told, "worker_lines": [], **facts})


def test_rows_and_lines_are_read_when_they_are_asked_for(folder: RunFolder) -> None:
    add_rank(folder, 0, exact=[["train.py", "load", 4, 20, 1.5]])
    (rank,) = read_summary(folder).ranks
    assert "rows" not in repr(rank)
    assert len(rank.rows) == 20
    assert (rank.lines[0].own_s, rank.exact_lines[0].hits, rank.worker_lines) == (1.0, 20, ())
    folder.steps(rank.label).unlink()
    assert len(rank.rows) == 20  # read once


def test_what_is_not_asked_for_may_be_gone_by_then(folder: RunFolder) -> None:
    add_rank(folder, 0)
    (rank,) = read_summary(folder).ranks
    folder.steps(rank.label).unlink()
    folder.facts(rank.label).unlink()
    assert (rank.rows, rank.lines) == ((), ())


def test_facts_are_the_same_with_and_without_their_lists(folder: RunFolder) -> None:
    lines = [["a.py", 'odd "lines": [ ] \n name', 3, 1.0, 2.0, "data"]] * 5
    facts = {"loaders": {"x": {"lines": [1, [2]], "batch_size": 4}}, "worker_lines": "text"}
    add_rank(folder, 0, lines=lines, worker_lines=lines, exact=[], facts=facts)
    (rank,) = read_summary(folder).ranks
    assert rank.facts == facts
    assert len(rank.lines) == len(rank.worker_lines) == 5


def test_many_files_are_read_by_several_processes_to_the_same_end(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(12):
        add_rank(folder, rank)
    alone = read_summary(folder, now=START)
    monkeypatch.setattr(summary_module, "CHECKED_FILES", 0)
    monkeypatch.setattr(summary_module, "CHUNK", 2)
    together = read_summary(folder, now=START)
    assert (together.ranks, together.machines) == (alone.ranks, alone.machines)
    assert together.wall_s == alone.wall_s
    assert [rank.rank for rank in together.ranks] == list(range(12))
