"""A run while it goes on: the line, the screen, and how they follow the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Stoker
from stoker.commands import top
from stoker.report.live import Follower, render_status, render_top
from stoker.watch.folder import RunFolder
from stoker.watch.series import Row, SeriesWriter, Stat
from stoker.watch.summary import Summary, read_summary
from test_report_run import (
    COMPUTING,
    CPU,
    DATA_BOUND,
    SECONDS,
    START,
    add_machine,
    add_rank,
    gpu,
    new_folder,
)

NOW = START + SECONDS


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that goes on, on two GPUs."""
    folder = new_folder(tmp_path / "run", end=None, exit=None)
    add_machine(folder, {**CPU, **gpu(0, 34.0), **gpu(1, 0.0, is_mine=False)}, num_gpus=2)
    add_rank(folder, DATA_BOUND, is_on_device=True)
    return folder


def test_one_line_tells_how_it_goes(folder: RunFolder) -> None:
    assert render_status(Follower(folder).read(NOW)) == (
        "00:01:00  step 400  100 ms  data 62 %  forward 14 %  backward 20 %  optimizer 3 %  "
        "other 1 %  GPU0 34 %  GPU1 0 %  CPU 3.2/16  mem 5.5 GiB"
    )


def test_the_line_is_the_same_from_a_whole_reading(folder: RunFolder) -> None:
    assert render_status(read_summary(folder, NOW)) == render_status(Follower(folder).read(NOW))


def test_a_screen(folder: RunFolder, golden: Callable[[str, str], None]) -> None:
    golden("top.txt", render_top(Follower(folder).read(NOW), 100, 30) + "\n")


def test_only_the_newest_rows_count(folder: RunFolder) -> None:
    writer = SeriesWriter(folder.steps("0-node1"), {})
    steps = {name: Stat(10, 0.02, 0, 0.02) for name in ("steady.step", "steady.forward")}
    writer.append(Row(71, 72, steps))
    writer.close()
    text = render_status(Follower(folder).read(START + 72))
    assert "20 ms  forward 100 %" in text


def test_a_step_that_does_not_end_is_noticed(folder: RunFolder) -> None:
    summary = Follower(folder).read(NOW + 90)
    assert "no step for 90 s" in render_status(summary)
    assert "no step for 90 s" in render_top(summary, 100, 30)


def test_a_run_that_has_ended_is_not_called_late(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", end=NOW + 90)
    add_rank(folder, DATA_BOUND)
    assert "no step for" not in render_status(Follower(folder).read())


def test_before_the_first_step_there_is_none(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", end=None, exit=None)
    assert render_status(Follower(folder).read(START + 2)) == "00:00:02  no step yet"
    assert "nothing was recorded yet" in render_top(Follower(folder).read(START + 2), 80, 24)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """64 ranks and 16 GPUs on one machine."""
    folder = new_folder(tmp_path_factory.mktemp("crowd") / "run", end=None, exit=None)
    readings = dict(CPU)
    for number in range(16):
        readings |= gpu(number)
    add_machine(folder, readings, num_gpus=16)
    for rank in range(64):
        add_rank(folder, COMPUTING, rank=rank)
    return Follower(folder).read(NOW)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (40, 8), (80, 24), (250, 80)])
def test_the_screen_is_never_left(crowd: Summary, width: int, height: int) -> None:
    lines = render_top(crowd, width, height).split("\n")
    assert len(lines) <= max(height, 8)
    assert max(len(line) for line in lines) <= max(width, 40)


def test_ranks_that_find_no_room_are_counted(crowd: Summary) -> None:
    assert "more ranks, 100 ms to 100 ms a step over all" in render_top(crowd, 80, 24)


# -- following -----------------------------------------------------------------------


def test_what_is_appended_is_seen_and_a_torn_line_waited_for(folder: RunFolder) -> None:
    follower, path = Follower(folder), folder.samples("node1")
    before = len(follower.read(NOW).machines[0].rows)
    with path.open("ab") as file:
        file.write(b"[60,61,9")
        file.flush()
        assert len(follower.read(NOW).machines[0].rows) == before
        file.write(b".5]\n")
    row = follower.read(NOW).machines[0].rows[-1]
    assert (row.end_s, row.stats["cpu.cores"].mean) == (61, 9.5)


def test_a_file_that_was_merged_is_read_anew(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", end=None, exit=None)
    writer = SeriesWriter(folder.samples("node1"), {"host": "node1"})
    follower = Follower(folder)
    for second in range(1500):
        writer.append(Row(second, second + 1, {"cpu.cores": Stat(1, second, 0, second)}))
        if second % 100 == 0:
            rows = follower.read(NOW).machines[0].rows
            assert rows[-1].end_s == second + 1
            assert [row.end_s for row in rows] == sorted({row.end_s for row in rows})
            assert len(rows) <= 300
    writer.close()


def test_a_rank_that_comes_later_is_found(folder: RunFolder) -> None:
    follower = Follower(folder)
    assert len(follower.read(NOW).ranks) == 1
    add_rank(folder, DATA_BOUND, rank=1)
    assert len(follower.read(NOW).ranks) == 2


def test_looking_every_second_costs_little(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "run", end=None, exit=None)
    metrics = ("duty_pct", "sm_pct", "tensor_pct", "dram_pct", "mem_gib", "power_w", "temp_c")
    names = [f"gpu.{number}.{metric}" for number in range(8) for metric in metrics]
    writer = SeriesWriter(folder.samples("node1"), {"host": "node1"})
    for second in range(600):
        writer.append(Row(second, second + 1, {name: Stat(9, 1.5, 0.3, 2.5) for name in names}))
    writer.close()
    follower = Follower(folder)
    follower.read(NOW)
    took = []
    for _ in range(5):
        began = time.process_time()
        render_top(follower.read(NOW), 120, 40)
        took.append(time.process_time() - began)
    assert min(took) < 0.05


# -- the command ---------------------------------------------------------------------


def test_top_draws_until_the_run_ends(
    folder: RunFolder, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    summaries = [Follower(folder).read(NOW) for _ in range(3)]
    ended = new_folder(folder.path)
    summaries.append(Follower(ended).read(NOW))
    slept: list[float] = []
    queue: list[Summary] = summaries[:]
    last = top.watch(lambda: queue.pop(0), once=False, interval_s=0.5, sleep=slept.append)
    assert (last.state, slept, queue) == ("ended", [0.5, 0.5, 0.5], [])
    out = capfdbinary.readouterr().out.decode()
    assert out.count("\x1b[H") == 4
    assert out.endswith("\x1b[J")
    assert out.count("still running") == 3


def test_once_is_one_screen_without_escapes(stoker: Stoker, folder: RunFolder) -> None:
    done = stoker("top", str(folder.path), "--once")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("20261115-065520-train  still running")
    assert done.stderr == "next: stoker top run\n"


def test_a_pipe_gets_one_screen(stoker: Stoker, tmp_path: Path) -> None:
    add_machine(new_folder(tmp_path / ".stoker/runs/1-a"), CPU)
    done = stoker("top")
    assert done.returncode == 0
    assert "ended well" in done.stdout
    assert done.stderr == "next: stoker report 1-a\n"


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan", "inf"])
def test_an_interval_that_makes_no_sense_is_refused(stoker: Stoker, interval: str) -> None:
    done = stoker("top", "--interval", interval)
    assert done.returncode == 2
    assert done.stderr.startswith("error: argument --interval")


def test_control_c_leaves_quietly(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object, **kwargs: object) -> Summary:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "watch", interrupt)
    assert top.run([os.fspath(folder.path)]) == 0
    assert capfd.readouterr().err == ""
