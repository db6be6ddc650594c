"""A tree of processes, read from stand-ins for /proc and from the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.processes import (
    IO_LINES,
    ProcessTree,
    Seen,
    Snapshot,
    StatLine,
    parse_io,
    parse_stat,
    parse_statm,
    short_name,
    used_between,
)

ROOT = 100


class FakeProc:
    """A /proc that a test fills; a process is a folder with the files that we read."""

    def __init__(self, folder: Path, *, has_children: bool = False) -> None:
        self.folder = folder / "proc"
        self.folder.mkdir(parents=True)
        self.has_children = has_children
        self.parents: dict[int, int] = {}
        self.add(1, 0, "systemd")
        self.add(ROOT, 1, "stoker")
        if has_children and self.folder.stat().st_nlink == 1:
            pytest.skip("btrfs does not count folders as /proc does")

    def add(
        self,
        pid: int,
        ppid: int,
        name: str = "python",
        *,
        state: str = "S",
        ticks: tuple[int, int] = (0, 0),
        io: Sequence[int] | None = (0, 0, 0, 0, 0),
        started: int | None = None,
        statm: str = "900 300 100 5 0 97 0",
    ) -> None:
        folder = self.folder / str(pid)
        (folder / f"task/{pid}").mkdir(parents=True, exist_ok=True)
        own, reaped = ticks
        fields = [
            state, ppid, pid, pid, 0, -1, 0, 0, 0, 0, 0, own, 0, reaped, 0, 20, 0, 1, 0,
            pid if started is None else started, 4096, 300, 0, 0, 0,
        ]  # fmt: skip
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (folder / "statm").write_text(statm)
        (folder / "cmdline").write_text(f"/usr/bin/{name}\0train.py\0")
        if io is not None:
            lines = zip(IO_LINES, io, strict=True)
            text = "".join(f"{key.decode()}: {value}\n" for key, value in lines)
            (folder / "io").write_text(text + "cancelled_write_bytes: 0\n")
        else:
            (folder / "io").unlink(missing_ok=True)
        before = self.parents.get(pid, ppid)
        self.parents[pid] = ppid
        for parent in {pid, before, ppid}:
            self._write_children(parent)

    def remove(self, pid: int) -> None:
        for path in sorted((self.folder / str(pid)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.folder / str(pid)).rmdir()
        self._write_children(self.parents.pop(pid))

    def _write_children(self, pid: int) -> None:
        if self.has_children and pid in self.parents:
            mine = [str(child) for child, parent in self.parents.items() if parent == pid]
            (self.folder / f"{pid}/task/{pid}/children").write_text(" ".join(mine) + " ")

    def crowd(self, count: int = 20) -> None:
        """Add processes of somebody else: asking threads for children then is the quicker way."""
        for pid in range(1000, 1000 + count):
            self.add(pid, 1, "somebody")


@pytest.fixture(params=[False, True], ids=["listing", "children"])
def proc(request: pytest.FixtureRequest, tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path, has_children=request.param)
    fake.crowd()
    return fake


def pids(tree: ProcessTree) -> set[int]:
    return set(tree.read().seen)


def test_the_tree_is_all_below_the_root_but_not_the_root(proc: FakeProc) -> None:
    proc.add(200, ROOT)
    proc.add(201, 200)
    proc.add(202, 201)
    proc.add(300, 1, "somebody (else)")
    assert pids(ProcessTree(ROOT, proc.folder)) == {200, 201, 202}


def test_processes_come_and_go(proc: FakeProc) -> None:
    tree = ProcessTree(ROOT, proc.folder)
    assert pids(tree) == set()
    proc.add(200, ROOT)
    proc.add(201, 200)
    assert pids(tree) == {200, 201}
    proc.remove(201)
    proc.add(202, 200)
    assert pids(tree) == {200, 202}


def test_a_worker_whose_parent_ended_stays_ours(proc: FakeProc) -> None:
    tree = ProcessTree(ROOT, proc.folder)
    proc.add(200, ROOT)
    proc.add(201, 200)
    assert pids(tree) == {200, 201}
    proc.remove(200)
    proc.add(201, 1)
    assert pids(tree) == {201}


def test_a_number_given_to_another_process_is_not_ours(proc: FakeProc) -> None:
    tree = ProcessTree(ROOT, proc.folder)
    proc.add(200, ROOT)
    assert pids(tree) == {200}
    proc.add(200, 1, "somebody", started=77)
    assert pids(tree) == set()


def test_a_child_listed_before_its_parent_is_found_later(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    tree = ProcessTree(ROOT, fake.folder)
    fake.add(201, 200)  # its parent came after the listing
    assert pids(tree) == set()
    fake.add(200, ROOT)
    assert pids(tree) == {200, 201}


def test_a_process_that_ends_while_we_look_is_left_out(proc: FakeProc) -> None:
    proc.add(200, ROOT)
    proc.add(201, 200)
    (proc.folder / "201/stat").unlink()
    assert pids(ProcessTree(ROOT, proc.folder)) == {200}


def test_damaged_files_are_left_out(proc: FakeProc) -> None:
    proc.add(200, ROOT, io=None, statm="garbage")
    proc.add(201, 200)
    (proc.folder / "201/stat").write_text("201 (python")
    seen = ProcessTree(ROOT, proc.folder).read().seen
    assert set(seen) == {200}
    assert seen[200].io is None
    assert seen[200].private_pages == 0


def test_threads_have_children_too(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path, has_children=True)
    fake.crowd()
    fake.add(200, ROOT)
    fake.add(201, 1)
    folder = fake.folder / "200/task/205"
    folder.mkdir()
    (folder / "children").write_text("201 ")
    assert pids(ProcessTree(ROOT, fake.folder)) == {200, 201}


def test_a_tree_larger_than_the_rest_of_the_machine_is_found_by_listing(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path, has_children=True)
    for pid in range(200, 230):
        fake.add(pid, ROOT)
    tree = ProcessTree(ROOT, fake.folder)
    everyone = set(range(200, 230))
    assert pids(tree) == everyone
    (fake.folder / f"{ROOT}/task/{ROOT}/children").write_text("")
    assert pids(tree) == everyone
    fake.crowd(170)
    fake.add(230, 200)
    assert pids(tree) == {*everyone, 230}


def seen(
    pid: int,
    own: int,
    reaped: int = 0,
    read: int | None = 0,
    *,
    ppid: int = ROOT,
    started: int = 5,
) -> Seen:
    stat = StatLine(pid, "python", "S", ppid, own, reaped, 1, started, 10)
    return Seen(stat, None if read is None else (read, 0, 0, 0, 0), 1)


def snapshot(*processes: Seen, root_reaped: int = 0) -> Snapshot:
    return Snapshot(ROOT, {each.stat.pid: each for each in processes}, root_reaped)


def test_what_was_used_is_the_growth_of_the_counters() -> None:
    before = snapshot(seen(200, 10, read=100), seen(201, 5, read=50))
    used = used_between(before, snapshot(seen(200, 40, read=150), seen(201, 6, read=70)))
    assert used.ticks == 31
    assert used.ticks_of == {200: 30, 201: 1}
    assert used.io == (70, 0, 0, 0, 0)


def test_a_new_process_counts_from_nothing() -> None:
    used = used_between(snapshot(seen(200, 10)), snapshot(seen(200, 10), seen(201, 7, read=9)))
    assert (used.ticks, used.io) == (7, (9, 0, 0, 0, 0))


def test_the_life_of_a_worker_that_ended_is_not_counted_again() -> None:
    """The parent's counters jump by all that the worker ever did: only its last bit is new."""
    before = snapshot(seen(200, 10, read=100), seen(201, 5000, read=10**9, ppid=200))
    used = used_between(before, snapshot(seen(200, 12, 5003, 100 + 10**9 + 40)))
    assert used.ticks == 2 + 3
    assert used.io == (40, 0, 0, 0, 0)


def test_a_child_shorter_than_the_interval_is_counted_through_its_parent() -> None:
    used = used_between(snapshot(seen(200, 10, 50)), snapshot(seen(200, 10, 80)))
    assert used.ticks == 30


def test_a_whole_branch_that_ended_is_inherited_by_the_nearest_that_lives() -> None:
    before = snapshot(seen(200, 0), seen(201, 30, ppid=200), seen(202, 70, ppid=201))
    used = used_between(before, snapshot(seen(200, 0, 104)))
    assert used.ticks == 4


def test_the_last_work_of_the_training_is_told_by_the_supervisor() -> None:
    before = snapshot(seen(200, 100), root_reaped=7)
    assert used_between(before, snapshot(root_reaped=112)).ticks == 5


def test_nothing_is_negative_when_nobody_waits_for_the_dead() -> None:
    before = snapshot(seen(200, 10, read=10), seen(201, 5000, read=10**9, ppid=200))
    used = used_between(before, snapshot(seen(200, 25, read=30)))
    assert used.ticks == 15
    assert used.io == (0, 0, 0, 0, 0)


def test_a_reused_number_is_a_new_process() -> None:
    before = snapshot(seen(200, 5000, started=5))
    assert used_between(before, snapshot(seen(200, 3, started=9))).ticks == 3


def test_reads_that_the_kernel_hides_are_unknown_and_not_zero() -> None:
    before = snapshot(seen(200, 1, read=None))
    assert used_between(before, snapshot(seen(200, 2, read=None))).io is None
    assert used_between(before, snapshot(seen(200, 2, read=900))).io is None


counts = st.integers(0, 2**40)
processes = st.builds(
    seen,
    st.integers(200, 206),
    counts,
    counts,
    st.none() | counts,
    ppid=st.sampled_from([1, ROOT, 200, 201, 202]),
    started=st.integers(1, 2),
)
snapshots = st.builds(
    lambda many, root: snapshot(*many, root_reaped=root), st.lists(processes), counts
)


@given(snapshots, snapshots)
def test_no_rate_is_ever_negative(before: Snapshot, now: Snapshot) -> None:
    used = used_between(before, now)
    assert used.ticks >= 0
    assert all(each >= 0 for each in used.ticks_of.values())
    assert used.io is None or all(each >= 0 for each in used.io)


names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=15)


@given(names, st.lists(st.integers(0, 2**63), min_size=22, max_size=52))
def test_any_name_of_a_process_is_read(name: str, numbers: list[int]) -> None:
    words = ["R", *map(str, numbers)]
    stat = parse_stat(f"42 ({name}) {' '.join(words)}\n".encode())
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.ppid) == (42, name, "R", numbers[0])
    assert stat.own_ticks == numbers[10] + numbers[11]
    assert stat.reaped_ticks == numbers[12] + numbers[13]
    assert stat.started == numbers[18]


@given(st.binary(max_size=300))
def test_no_text_breaks_the_parsers(raw: bytes) -> None:
    parse_stat(raw)
    parse_io(raw)
    assert parse_statm(raw) >= 0
    assert short_name(raw, "name").isprintable()


@pytest.mark.parametrize(
    ("cmdline", "name"),
    [
        (b"", "[kworker]"),
        (b"/opt/env/bin/python\0-m\0torch.distributed.run\0", "python -m torch.distributed.run"),
        (b"python\0-c\0a\nb\x1b[2J", "python -c a b [2J"),
        (b"x" * 200, "x" * 59 + "…"),
    ],
)
def test_a_command_line_is_made_fit_for_a_table(cmdline: bytes, name: str) -> None:
    assert short_name(cmdline, "kworker") == name


def test_the_real_proc_shows_our_own_child() -> None:
    """The child counts to a number and waits: it has used a core and has memory of its own."""
    code = "sum(range(3_000_000)); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        tree = ProcessTree(os.getpid())
        assert child.stdout.readline() == "ready\n"
        now = tree.read()
        assert os.getpid() not in now.seen
        mine = now.seen[child.pid]
        assert mine.stat.own_ticks > 0
        assert mine.stat.ppid == os.getpid()
        assert mine.private_pages > 0
        shown = tree.describe(mine.stat, 0.5, os.sysconf("SC_PAGE_SIZE"))
        assert "python" in shown.name
        assert shown.rss_gib > 0.001
        child.communicate("\n")
    later = tree.read()
    assert child.pid not in later.seen
    # Its whole life has moved to us, and is not counted a second time.
    assert later.root_reaped_ticks >= mine.stat.own_ticks
    assert used_between(now, later).ticks < mine.stat.own_ticks + 20
