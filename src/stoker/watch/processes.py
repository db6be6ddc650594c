"""What a tree of processes uses, read from /proc (Linux).

Only reads. A process that ends while we look is left out; nothing here raises for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30
# Asking a thread for its children takes about as long as listing this many processes.
PROCESSES_PER_THREAD = 5
NAME_LENGTH = 60
# The lines of /proc/<pid>/io that we keep, in this order.
IO_LINES = (b"rchar", b"wchar", b"syscr", b"read_bytes", b"write_bytes")
NO_IO = (0,) * len(IO_LINES)


@dataclass(frozen=True)
class StatLine:
    """One line of /proc/<pid>/stat; times in clock ticks, since the process or machine started."""

    pid: int
    name: str
    state: str
    ppid: int
    own_ticks: int  # on a core, by its own threads
    reaped_ticks: int  # by its children that ended and were waited for, and by theirs
    threads: int
    started: int  # with the pid, tells a process from a later one of the same number
    resident_pages: int


@dataclass(frozen=True)
class Seen:
    """One process at one moment."""

    stat: StatLine
    io: tuple[int, ...] | None  # as IO_LINES; `None` where the kernel does not tell us
    private_pages: int  # resident, without the pages that come from files or shared memory


@dataclass(frozen=True)
class Snapshot:
    """A tree of processes at one moment, without the process at its root."""

    root_pid: int
    seen: Mapping[int, Seen]
    root_reaped_ticks: int


@dataclass(frozen=True)
class Used:
    """What a tree used between two snapshots."""

    ticks: int
    ticks_of: Mapping[int, int] = field(default_factory=dict)
    io: tuple[int, ...] | None = None  # as IO_LINES


@dataclass(frozen=True)
class Process:
    """One process for people to look at; `rss_gib` is what `top` calls RES."""

    pid: int
    ppid: int
    name: str
    cores: float
    rss_gib: float
    state: str


def read_start(path: str, size: int = 4096) -> bytes | None:
    """Return the first bytes of a file of the kernel, or `None` if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, size)
    except OSError:  # a process that ended between open and read: ESRCH
        return None
    finally:
        os.close(handle)


def parse_stat(raw: bytes) -> StatLine | None:
    """Read a line of /proc/<pid>/stat; a name may hold spaces and parentheses.

    >>> parse_stat(b"7 (a (b) c) D 1 7 7 0 -1 0 0 0 0 0 30 12 5 1 20 0 4 0 99 0 512 0").name
    'a (b) c'
    """
    head, opened, rest = raw.partition(b" (")
    name, closed, tail = rest.rpartition(b") ")
    words = tail.split()
    if not opened or not closed or len(words) < 22:
        return None
    try:
        return StatLine(
            pid=int(head),
            name=name.decode("utf-8", "replace"),
            state=words[0].decode("ascii", "replace"),
            ppid=int(words[1]),
            own_ticks=int(words[11]) + int(words[12]),
            reaped_ticks=int(words[13]) + int(words[14]),
            threads=int(words[17]),
            started=int(words[19]),
            resident_pages=int(words[21]),
        )
    except ValueError:
        return None


def parse_io(raw: bytes) -> tuple[int, ...] | None:
    """Read /proc/<pid>/io and return the counters in the order of `IO_LINES`.

    >>> parse_io(b"rchar: 5\\nwchar: 4\\nsyscr: 3\\nsyscw: 9\\nread_bytes: 2\\nwrite_bytes: 1\\n")
    (5, 4, 3, 2, 1)
    """
    counters = {}
    for line in raw.splitlines():
        key, _, value = line.partition(b":")
        if value.strip().isdigit():
            counters[key] = int(value)
    try:
        return tuple(counters[key] for key in IO_LINES)
    except KeyError:
        return None


def parse_statm(raw: bytes) -> int:
    """Read /proc/<pid>/statm and return the resident pages that are not shared.

    >>> parse_statm(b"783 412 390 5 0 97 0")
    22
    """
    words = raw.split()
    try:
        return max(0, int(words[1]) - int(words[2]))
    except (IndexError, ValueError):
        return 0


def short_name(cmdline: bytes, name: str) -> str:
    """Return a command line short enough for a table, or the kernel's name where it is empty.

    >>> short_name(b"/usr/bin/python3\\0-u\\0train.py\\0", "python3")
    'python3 -u train.py'
    """
    words = cmdline.decode("utf-8", "replace").split("\0")
    words[0] = words[0].rpartition("/")[2]
    text = "".join(
        each if each.isprintable() else " " for each in " ".join(words).strip() or f"[{name}]"
    )
    return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"


def used_between(before: Snapshot, now: Snapshot) -> Used:
    """Return what the tree used between two snapshots; never less than nothing.

    When a process has waited for a dead child, the kernel adds the child's whole life to the
    parent's counters: CPU time to cutime and cstime, reads and writes to the very numbers of
    /proc/<pid>/io (Linux, wait_task_zombie). What the child had shown to us before is taken off
    again, or a worker's end would look like hours of work and gigabytes in one second.
    """
    living = {pid for pid in now.seen if _same(before, now, pid)}
    lost_ticks, lost_io = _inherited(before, living)
    total, ticks_of, io, knows_io = 0, {}, [0] * len(IO_LINES), False
    for pid, seen in now.seen.items():
        old = before.seen[pid] if pid in living else None
        own = max(0, seen.stat.own_ticks - (old.stat.own_ticks if old else 0))
        reaped = seen.stat.reaped_ticks - (old.stat.reaped_ticks if old else 0)
        ticks_of[pid] = own
        total += own + max(0, reaped - lost_ticks.get(pid, 0))
        old_io = old.io if old else NO_IO
        if seen.io is not None and old_io is not None:
            knows_io = True
            lost = lost_io.get(pid, NO_IO)
            for i, value in enumerate(seen.io):
                io[i] += max(0, value - old_io[i] - lost[i])
    root = now.root_reaped_ticks - before.root_reaped_ticks
    total += max(0, root - lost_ticks.get(before.root_pid, 0))
    return Used(total, ticks_of, tuple(io) if knows_io else None)


def _same(before: Snapshot, now: Snapshot, pid: int) -> bool:
    old = before.seen.get(pid)
    return old is not None and old.stat.started == now.seen[pid].stat.started


def _inherited(
    before: Snapshot, living: set[int]
) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
    """Return, for each heir, what the processes that ended had shown in the last snapshot."""
    ticks: dict[int, int] = {}
    io: dict[int, tuple[int, ...]] = {}
    for pid, seen in before.seen.items():
        if pid in living:
            continue
        heir, dead = seen.stat.ppid, {pid}
        while heir in before.seen and heir not in living and heir not in dead:
            dead.add(heir)
            heir = before.seen[heir].stat.ppid
        ticks[heir] = ticks.get(heir, 0) + seen.stat.own_ticks + seen.stat.reaped_ticks
        if seen.io is not None:
            io[heir] = tuple(map(sum, zip(io.get(heir, NO_IO), seen.io, strict=True)))
    return ticks, io


class ProcessTree:
    """The descendants of one process; each `read` looks at /proc anew.

    A descendant once seen stays one when its parent ends and another process adopts it.
    """

    def __init__(self, root_pid: int, proc: Path = Path("/proc")) -> None:
        self._root_pid = root_pid
        self._proc = str(proc)
        self._known: dict[int, int] = {}  # pid → start, of our descendants
        self._foreign: set[int] = set()
        self._threads = 1
        # Only kernels built with CONFIG_PROC_CHILDREN have it.
        self._has_children = (proc / f"{root_pid}/task/{root_pid}/children").exists()

    def read(self) -> Snapshot:
        """Return the tree as it is now."""
        root = self._stat(self._root_pid)
        stats = self._by_children() if self._is_small() else self._by_listing()
        self._known = {pid: stat.started for pid, stat in stats.items()}
        self._threads = sum(stat.threads for stat in stats.values()) + (root.threads if root else 0)
        seen = {pid: self._look(stat) for pid, stat in stats.items()}
        return Snapshot(self._root_pid, seen, root.reaped_ticks if root else 0)

    def describe(self, stat: StatLine, cores: float, page_bytes: int) -> Process:
        """Return one process of a snapshot as people like to see it."""
        cmdline = read_start(f"{self._proc}/{stat.pid}/cmdline") or b""
        rss_gib = stat.resident_pages * page_bytes / GIB
        name = short_name(cmdline, stat.name)
        return Process(stat.pid, stat.ppid, name, cores, rss_gib, stat.state)

    def _is_small(self) -> bool:
        if not self._has_children:
            return False
        # The link count of /proc is the number of processes on the machine (proc_root_getattr).
        return self._threads * PROCESSES_PER_THREAD < _links(self._proc)

    def _stat(self, pid: int) -> StatLine | None:
        raw = read_start(f"{self._proc}/{pid}/stat")
        return parse_stat(raw) if raw else None

    def _look(self, stat: StatLine) -> Seen:
        folder = f"{self._proc}/{stat.pid}"
        raw = read_start(f"{folder}/io")
        # Quicker than `status`, which alone knows RssShmem.
        statm = read_start(f"{folder}/statm")
        return Seen(stat, parse_io(raw) if raw else None, parse_statm(statm) if statm else 0)

    def _by_children(self) -> dict[int, StatLine]:
        """Ask every thread of the tree for its children: quick where the tree is small."""
        self._foreign.clear()  # nobody keeps it up to date meanwhile
        found: dict[int, StatLine] = {}
        waiting = [self._root_pid]
        for pid, started in self._known.items():
            stat = self._stat(pid)
            if stat and stat.started == started:
                found[pid] = stat
                waiting.append(pid)
        while waiting:
            for child in self._children(waiting.pop()):
                stat = None if child in found else self._stat(child)
                if stat:
                    found[child] = stat
                    waiting.append(child)
        return found

    def _children(self, pid: int) -> Iterator[int]:
        tasks = f"{self._proc}/{pid}/task"
        for tid in _names(tasks):
            for word in (read_start(f"{tasks}/{tid}/children", 65536) or b"").split():
                if word.isdigit():
                    yield int(word)

    def _by_listing(self) -> dict[int, StatLine]:
        """List all processes, and look at those that are ours or not yet known."""
        listed = {int(name) for name in _names(self._proc) if name.isdigit()}
        self._foreign &= listed
        stats = {}
        for pid in listed - self._foreign - {self._root_pid}:
            stat = self._stat(pid)
            if stat:
                stats[pid] = stat
        ours = {pid for pid, started in self._known.items() if _started(stats, pid) == started}
        ours.add(self._root_pid)
        for pid in stats:
            self._sort_out(pid, stats, ours)
        return {pid: stat for pid, stat in stats.items() if pid in ours}

    def _sort_out(self, pid: int, stats: Mapping[int, StatLine], ours: set[int]) -> None:
        """Climb from a process until it is clear whose it is; all on the way are the same."""
        line = []
        while pid in stats and pid not in ours and pid not in line:
            line.append(pid)
            pid = stats[pid].ppid
        if pid in ours:
            ours.update(line)
        elif pid == 0 or pid in self._foreign:
            self._foreign.update(line)
        # Else the parent has ended, or began after the listing: look again next time.


def _started(stats: Mapping[int, StatLine], pid: int) -> int | None:
    stat = stats.get(pid)
    return stat.started if stat else None


def _names(folder: str) -> list[str]:
    # Path.iterdir takes several times as long, and a node may have thousands of processes.
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _links(folder: str) -> int:
    try:
        return Path(folder).stat().st_nlink
    except OSError:
        return 0
