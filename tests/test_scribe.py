"""The scribe writes down what processes say, survives what they should not say, and never stops them."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import KEEPS_FIXTURES, examples
from stoker.watch import scribe as scribe_module
from stoker.watch.folder import RunFolder
from stoker.watch.inside.post import Post
from stoker.watch.record import begin_run
from stoker.watch.scribe import FACTS_EVERY_S, MAX_LINES, MAX_PROCESSES, NEWS_S, Scribe
from stoker.watch.series import Row, SeriesWriter, Stat, merged, read_series

HOST = socket.gethostname()
# No process has this number: it is above the largest that Linux allows.
GONE = 5_000_000
TRAIN, WORKER = 71, 72


class Program:
    """A child of the scribe that does what the test says, and then ends."""

    def __init__(self, *scenes: Callable[[], object], code: int = 0) -> None:
        self.scenes, self.code = list(scenes), code
        self.read_end, self.write_end = os.pipe()

    def fileno(self) -> int:
        return self.read_end

    def poll(self) -> int | None:
        if not self.scenes:
            return self.code
        self.scenes.pop(0)()
        os.write(self.write_end, b".")
        return None

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


class Run:
    """One run: its scribe, and processes that speak to it."""

    def __init__(self, folder: RunFolder, root_pid: int | None = None) -> None:
        self.folder = folder
        self.start = time.time() - 100
        self.warnings: list[str] = []
        self.scribe = Scribe(folder, self.start, self.warnings.append, root_pid)
        self.post = Post(self.scribe.address)

    def steps(self, pid: int = TRAIN, rank: int = 0, at: float = 0, **sums: list[float]) -> None:
        sums = sums or {"steady.step": [4, 2.0, 1.5, 0.75]}
        times = [self.start + at, self.start + at + 1]
        assert self.post.send({"k": "steps", "pid": pid, "rank": rank, "t": times, "sums": sums})

    def facts(self, pid: int = TRAIN, **more: object) -> None:
        told = {
            "k": "facts",
            "pid": pid,
            "ppid": 1,
            "child": False,
            "rank": 0,
            "lines": [],
            "opens": 0,
        }
        assert self.post.send({**told, **more})

    def worker(self, pid: int = WORKER, own: float = 1.0, line: int = 7, **more: object) -> None:
        lines = [["/u/data.py", "load", line, own, 2 * own, None]]
        self.facts(pid, ppid=TRAIN, child=True, lines=lines, **more)

    def bye(self, pid: int = TRAIN) -> None:
        assert self.post.send({"k": "bye", "pid": pid})

    def raw(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(data, self.scribe.address)

    def attend(self, *scenes: Callable[[], object], code: int = 0) -> None:
        program = Program(*scenes, code=code)
        try:
            assert self.scribe.attend(program) == code
        finally:
            program.close()
            self.scribe.close(code)

    def told(self, label: str = f"0-{HOST}") -> dict[str, Any]:
        return self.folder.read(self.folder.facts(label))

    def rows(self, label: str = f"0-{HOST}") -> list[Row]:
        return read_series(self.folder.steps(label))[1]

    def labels(self) -> list[str]:
        return [each.stem for each in self.folder.all_facts()]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    begin_run(folder, ["train.py"], time.time() - 100)
    return folder


@pytest.fixture
def run(folder: RunFolder) -> Run:
    return Run(folder)


# -- what is said -------------------------------------------------------------------------


def test_steps_and_facts_of_a_process_are_written_down(run: Run) -> None:
    def speak() -> None:
        run.steps(at=1)
        run.steps(at=2)
        run.facts(steps=8, facts={"torch": "2.9"}, notes=["a note"])
        run.bye()

    run.attend(speak)
    assert run.rows() == [
        Row(at, at + 1, {"steady.step": Stat(4, 0.5, 0.3536, 0.75)}) for at in (1, 2)
    ]
    told = run.told()
    assert (told["label"], told["host"], told["pid"]) == (f"0-{HOST}", HOST, TRAIN)
    assert (told["steps"], told["facts"], told["notes"]) == (8, {"torch": "2.9"}, ["a note"])
    assert not run.warnings


def test_how_it_ended_is_written_at_the_end(run: Run) -> None:
    assert run.folder.read(run.folder.run_json)["exit"] is None
    run.attend(code=-9)
    record = run.folder.read(run.folder.run_json)
    assert (record["exit"], record["is_whole"], record["command"]) == (-9, True, ["train.py"])
    assert record["end"] >= record["start"]


def test_each_rank_has_its_own_files(run: Run) -> None:
    def speak() -> None:
        for rank in range(3):
            run.steps(pid=80 + rank, rank=rank)
            run.facts(pid=80 + rank, rank=rank)

    run.attend(speak)
    assert run.labels() == [f"{rank}-{HOST}" for rank in range(3)]
    assert [run.told(label)["pid"] for label in run.labels()] == [80, 81, 82]


def test_two_processes_of_the_same_rank_are_told_apart(run: Run) -> None:
    """As in a batch script that trains twice."""

    def speak() -> None:
        for pid in (81, 82):
            run.steps(pid)
            run.steps(pid)
            run.facts(pid)
            run.bye(pid)

    run.attend(speak)
    assert run.labels() == [f"0-{HOST}-82", f"0-{HOST}"]
    assert [len(run.rows(label)) for label in run.labels()] == [2, 2]


def test_facts_are_written_on_though_the_clock_is_set_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, wall = time.monotonic(), time.time()
    for since, clock in ((10.0, wall), (20.0, wall - 3600)):
        run.steps()
        run.facts(cost_s=since)
        run.scribe._hear()
        monkeypatch.setattr(time, "monotonic", lambda since=since: running + since)
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        run.scribe._read(None, 1.0)
        assert run.told()["cost_s"] == since
    run.scribe.close(0)


def test_who_takes_no_step_is_not_told_beside_those_who_do(run: Run) -> None:
    """The launcher of the ranks, for one."""
    run.attend(lambda: run.facts(70), run.steps, run.facts)
    assert [run.told(label)["pid"] for label in run.labels()] == [TRAIN]


def test_of_a_run_without_steps_the_busiest_process_is_told(run: Run) -> None:
    def speak() -> None:
        for pid, seconds in ((81, 1.0), (82, 9.0), (83, 2.0)):
            run.facts(pid, lines=[["/u/a.py", "main", 3, seconds, seconds, None]])
        run.worker(84, own=100)

    run.attend(speak)
    assert [run.told(label)["pid"] for label in run.labels()] == [82]


def told_in_time(run: Run, clock: pytest.MonkeyPatch) -> None:
    """Hear what was said, and let so much time pass that facts are written."""
    run.scribe._hear()
    later = time.monotonic() + 2 * FACTS_EVERY_S
    clock.setattr(time, "monotonic", lambda: later)
    run.scribe._read(None, 1.0)


def test_of_a_run_that_has_taken_no_step_yet_somebody_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at it while it goes on, or after `kill -9`, finds its lines."""
    run.facts(81, rank=1, lines=[["/u/a.py", "main", 3, 1.0, 1.0, None]])
    told_in_time(run, monkeypatch)
    assert [run.told(label)["pid"] for label in run.labels()] == [81]
    run.facts(82, lines=[["/u/a.py", "main", 3, 9.0, 9.0, None]])
    told_in_time(run, monkeypatch)
    assert [run.told(label)["pid"] for label in run.labels()] == [82]
    run.steps(83, rank=2)
    run.facts(83, rank=2)
    told_in_time(run, monkeypatch)
    assert [run.told(label)["pid"] for label in run.labels()] == [83]
    run.scribe.close(0)


def test_any_number_of_small_programs_costs_no_memory(run: Run) -> None:
    def speak() -> None:
        for pid in range(5 * MAX_PROCESSES):
            run.facts(pid)
            run.bye(pid)
            run.scribe._hear()

    run.attend(speak)
    assert len(run.scribe._heard) <= MAX_PROCESSES + 1


def test_any_number_of_trainings_keeps_no_files_open(run: Run) -> None:
    """As in a batch script that tries a thousand settings."""
    open_files: list[int] = []

    def train(pid: int) -> None:
        open_files.append(len(list(Path("/proc/self/fd").iterdir())))
        run.facts(pid)
        run.steps(pid)
        run.worker(GONE, own=float(pid))
        run.facts(pid, ppid=9)
        run.bye(pid)

    run.attend(*(partial(train, pid) for pid in range(TRAIN, TRAIN + 9)))
    assert open_files == [open_files[0]] * 9
    assert len(run.labels()) == 9
    assert {run.told(label)["ppid"] for label in run.labels()} == {9}
    assert [len(run.rows(label)) for label in run.labels()] == [1] * 9
    # The worker that was killed is the first one's.
    assert run.told()["worker_lines"] == [["/u/data.py", "load", 7, TRAIN, 2 * TRAIN]]


# -- workers ---------------------------------------------------------------------------------


def test_lines_of_workers_are_told_with_the_process_that_they_work_for(run: Run) -> None:
    def speak() -> None:
        run.steps()
        run.facts()
        run.worker(os.getpid(), own=1.5)
        run.worker(WORKER, own=1.0)
        run.worker(WORKER, own=2.0)  # what it says is the sum so far
        run.bye(WORKER)
        run.worker(73, own=0.5, line=8)
        run.bye(73)

    run.attend(speak)
    assert run.labels() == [f"0-{HOST}"]
    assert run.told()["worker_lines"] == [
        ["/u/data.py", "load", 7, 3.5, 7.0],
        ["/u/data.py", "load", 8, 0.5, 1.0],
    ]
    assert run.told()["workers"] == 1  # the one that lives


def test_lines_of_a_worker_that_was_killed_are_kept(run: Run) -> None:
    def speak() -> None:
        run.steps()
        run.facts()
        run.worker(GONE, own=4.0)

    run.attend(speak)
    assert run.told()["worker_lines"] == [["/u/data.py", "load", 7, 4.0, 8.0]]
    assert run.told()["workers"] == 0


def test_a_worker_that_takes_steps_is_a_rank(run: Run) -> None:
    """As those of `torch.multiprocessing.spawn` do."""

    def speak() -> None:
        run.steps(pid=WORKER, rank=1)
        run.worker(WORKER, rank=1)
        run.bye(WORKER)

    run.attend(speak)
    assert run.labels() == [f"1-{HOST}"]


def test_lines_of_workers_are_bounded(run: Run) -> None:
    def speak() -> None:
        for number in range(4 * MAX_LINES):
            run.worker(1000 + number, own=float(number), line=number)
            run.bye(1000 + number)
            run.scribe._hear()
        run.steps()
        run.facts()

    run.attend(speak)
    lines = [each[2] for each in run.told()["worker_lines"]]
    assert lines == list(range(4 * MAX_LINES - 1, 3 * MAX_LINES - 1, -1))


# -- what should not be said -------------------------------------------------------------------


GOOD = {"k": "steps", "pid": 90, "rank": 0, "t": [1, 2], "sums": {"a": [1, 1, 1, 1]}}
FACTS = {"k": "facts", "pid": 90, "ppid": 1, "child": False, "rank": 0, "lines": [], "opens": 0}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\x00garbage", b"null", b"7", b"[]", b"{}", b"[" * 99_999, b'{"pid":1e999,"k":1}',
        *(
            json.dumps(each).encode()
            for each in (
                {"k": "steps", "pid": 90}, {"k": "unknown", "pid": 90}, {"pid": "x", "k": "bye"},
                {**GOOD, "sums": []}, {**GOOD, "sums": {"a": [0, 1, 1, 1]}}, {**GOOD, "t": [1]},
                {**GOOD, "sums": {"a": 7}}, {**GOOD, "sums": {"a": ["x", 1, 1, 1]}},
                {**GOOD, "t": [float("nan"), 1]}, {**GOOD, "t": None}, {**GOOD, "rank": "x"},
                {**FACTS, "lines": 7}, {**FACTS, "lines": [[1]]}, {**FACTS, "opens": "x"},
                {**FACTS, "ppid": None}, {**FACTS, "rank": []},
                {key: value for key, value in FACTS.items() if key != "child"},
                {key: value for key, value in FACTS.items() if key != "lines"},
                {**FACTS, "lines": [[["a"], "b", 1, 1, 1]]}, {**FACTS, "lines": [["a", "b", 1, "x", 1]]},
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_message_changes_nothing(data: bytes, run: Run) -> None:
    def speak() -> None:
        run.steps()
        run.facts()
        run.raw(data)
        run.steps(at=5)

    run.attend(speak)
    assert run.labels() == [f"0-{HOST}"]
    assert len(run.rows()) == 2
    assert not run.warnings


def test_a_message_that_is_too_large_is_lost_alone(run: Run) -> None:
    def speak() -> None:
        run.facts(lines=[["/u/" + "x" * 200_000, "main", 1, 1.0, 1.0, None]])
        run.raw(b'{"k":"bye","text":"' + b"x" * 180_000)
        run.steps()

    run.attend(speak)
    assert run.post.lost == 1
    assert len(run.rows()) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["a", "x", ""]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {"k": st.sampled_from(["steps", "facts", "bye"]), "pid": st.integers(1, 3)},
    optional=dict.fromkeys(("rank", "t", "sums", "ppid", "child", "lines", "opens"), values),
)


@settings(max_examples=examples(40), suppress_health_check=KEEPS_FIXTURES)
@given(st.lists(messages | st.builds(lambda more: {**GOOD, **more}, messages), max_size=8))
def test_nothing_that_is_said_stops_the_scribe(
    folder: RunFolder, told: list[dict[str, object]]
) -> None:
    run = Run(folder)
    run.attend(*(partial(run.raw, json.dumps(each).encode()) for each in told))
    assert not run.warnings


# -- a disk that refuses -----------------------------------------------------------------------


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_once_and_the_program_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speak() -> None:
        run.steps(at=1)
        run.facts()
        run.scribe._hear()
        monkeypatch.setattr(SeriesWriter, "append", refuse)
        monkeypatch.setattr(RunFolder, "write", refuse)
        run.steps(at=2)
        run.steps(at=3)

    run.attend(speak, run.steps, run.facts, code=3)
    (warning,) = run.warnings
    assert warning.startswith("recording stopped: No space left on device; the program goes on")
    assert len(run.rows()) == 1


def test_a_disk_that_has_room_again_gets_how_it_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SeriesWriter, "append", refuse)
        program = Program(run.steps)
        run.scribe.attend(program)
        program.close()
    run.scribe.close(7)
    record = run.folder.read(run.folder.run_json)
    assert (record["exit"], record["is_whole"]) == (7, False)


def test_a_folder_that_is_removed_is_told_once(run: Run) -> None:
    def remove() -> None:
        for path in sorted(run.folder.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    run.attend(remove, run.steps, run.facts, code=3)
    assert len(run.warnings) == 1


def test_a_fault_of_our_own_is_told_once_and_the_program_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scribe, "_facts_of", lambda *_: 1 / 0)
    run.attend(run.steps, run.facts, code=3)
    (warning,) = run.warnings
    assert "ZeroDivisionError" in warning
    assert run.folder.read(run.folder.run_json)["exit"] == 3


# -- readings ------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings one after the other, without waiting."""
    monkeypatch.setattr(scribe_module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(scribe_module, "READING_BUDGET", 1e9)


@pytest.mark.usefixtures("at_once")
def test_readings_of_the_machine_are_written_beside(folder: RunFolder) -> None:
    run = Run(folder, os.getpid())
    looked: list[int] = []
    run.scribe.on_reading = lambda: looked.append(len(folder.all_samples()))
    run.attend(lambda: run.facts(opens=50), lambda: None, lambda: run.facts(opens=80))
    head, rows = read_series(folder.samples(HOST))
    assert (head["kind"], head["host"]) == ("samples", HOST)
    assert len(rows) == len(looked) >= 3
    assert all(99 < row.start_s <= row.end_s < 200 for row in rows)
    assert "mem.machine_gib" in rows[0].stats
    assert rows[-1].stats["files.opens_s"].mean > 0
    assert folder.read(folder.machine(HOST))["host"] == HOST


def test_a_reading_counts_for_the_seconds_that_it_tells_of(run: Run) -> None:
    """A start that was read each second, and a training of which each reading was dear."""

    class Machine:
        busy = 0.0

        def read(self) -> dict[str, float]:
            return {"cpu.cores": self.busy}

    machine: Any = Machine()
    for _ in range(10):
        run.scribe._read(machine, 1.0)
    machine.busy = 8.0
    for _ in range(10):
        run.scribe._read(machine, 3.0)
    run.scribe._read(machine, 0.2)
    run.scribe.close(0)
    whole = merged(read_series(run.folder.samples(HOST))[1])
    assert whole is not None
    assert whole.stats["cpu.cores"].count == 10 + 30 + 1
    assert whole.stats["cpu.cores"].mean == pytest.approx(8 * 31 / 41, rel=1e-3)


def test_files_are_opened_as_fast_as_their_processes_say(run: Run) -> None:
    """One that opens a hundred a second and says so every two; its last words come at its end."""
    opened = []
    for second in range(1, 9):
        if second % 2 == 0:
            run.facts(opens=100 * second)
            run.scribe._hear()
        opened.append(run.scribe._opened(1.0))
    run.facts(opens=850)
    run.scribe._hear()
    opened.append(run.scribe._opened(0.5))
    assert opened == [0, *[100] * 8]
    assert [run.scribe._opened(1.0) for _ in range(4)] == [100, 100, 100, 0]
    # Another that has come meanwhile; and readings that are far apart.
    run.facts(80, opens=60)
    run.scribe._hear()
    assert run.scribe._opened(1.0) == 60 / NEWS_S
    run.facts(80, opens=160)
    run.scribe._hear()
    assert run.scribe._opened(10.0) == 10
    run.scribe.close(0)


@pytest.mark.usefixtures("at_once")
def test_what_cannot_be_read_is_told_by_who_reads(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine than the first rank's, and before the end: a GPU may take its node along."""
    run, noted = Run(folder, os.getpid()), []

    def lose() -> None:
        run.scribe.notes.append("GPU 2 is lost")
        later = time.monotonic() + 2 * FACTS_EVERY_S
        monkeypatch.setattr(time, "monotonic", lambda: later)

    run.attend(lose, lambda: None, lambda: noted.append(folder.read(folder.machine(HOST))["notes"]))
    assert "GPU 2 is lost" in noted[0]


def test_a_second_scribe_on_a_machine_takes_no_readings(run: Run) -> None:
    run.attend(run.steps, run.facts)
    assert run.folder.all_samples() == []
    assert run.labels() == [f"0-{HOST}"]


# -- the socket --------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Of this process: others run other tests at the same time.
    own = f"stoker-{os.getpid()}-*"
    assert not list(Path("/tmp").glob(own))
    yield tmp_path
    assert not list(Path("/tmp").glob(own))


def test_only_the_user_can_reach_the_socket_and_nothing_is_left_of_it(
    room: Path, folder: RunFolder
) -> None:
    run = Run(folder)
    place = Path(run.scribe.address).parent
    assert place.parent == room
    assert place.stat().st_mode & 0o777 == 0o700
    run.attend(run.steps)
    assert not place.exists()


@pytest.mark.parametrize("name", ["x" * 200, "ü" * 40, "not/there", "file"])
def test_a_temporary_folder_of_no_use_is_not_used(
    name: str, room: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "file").touch()
    for each in ("x" * 200, "ü" * 40):
        (room / each).mkdir()
    monkeypatch.setenv("TMPDIR", str(room / name))
    run = Run(folder)
    run.attend(run.steps)
    assert len(run.rows()) == 1
    assert not list(room.rglob("stoker-*"))


def test_files_are_closed_at_the_end(run: Run) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    other = Run(run.folder, os.getpid())
    other.attend(other.steps, other.facts)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    run.attend()
