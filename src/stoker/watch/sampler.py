"""One reading of the machine beside a training: processes, memory, files, network, GPUs.

Nothing raises out of it: what cannot be known is absent from the reading, and a note says why.
MB is 10^6 bytes, GiB 2^30.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from stoker.watch.gpus import Gpus, open_gpus
from stoker.watch.limits import (
    memory_folder,
    parse_table,
    read_cgroup,
    read_limits,
    read_memory_gib,
)
from stoker.watch.processes import (
    GIB,
    Process,
    ProcessTree,
    Snapshot,
    StatLine,
    Used,
    read_start,
    used_between,
)

MB = 1e6
# CPU time comes in steps of 10 ms and NVML wants 100 ms between two samples of its counters.
MIN_INTERVAL_S = 0.1
PROCESSES_SHOWN = 16
# Ended, but not yet waited for by its parent; or just about to vanish.
DEAD = ("Z", "X")
# /proc/net/dev and /proc/meminfo grow with the machine; neither comes near this.
LARGE = 65536
# InfiniBand counts words of four bytes, whatever the width of the link.
IB_WORD_BYTES = 4
# Pages that the machine has moved to and from its swap, as /proc/vmstat counts them.
SWAP_METRICS = ((b"pswpin", "mem.swap_in_mb_s"), (b"pswpout", "mem.swap_out_mb_s"))

# What the counters of `processes.IO_LINES` are called here, and in what unit. The first two are
# what programs read and wrote, from network file systems and the page cache too.
IO_METRICS = (
    ("io.read_mb_s", MB),
    ("io.write_mb_s", MB),
    ("io.reads_s", 1),
    ("io.disk_read_mb_s", MB),
    ("io.disk_write_mb_s", MB),
)
SLURM_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID",
    "SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_NODEID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_JOB_GPUS",
)  # fmt: skip


def parse_cpu_line(raw: bytes) -> tuple[int, int] | None:
    """Read the first line of /proc/stat and return idle and all ticks of the machine.

    >>> parse_cpu_line(b"cpu  10 0 5 80 5 0 0 0 0 0\\ncpu0 ...")
    (85, 100)
    """
    words = raw.partition(b"\n")[0].split()
    if len(words) < 6 or words[0] != b"cpu" or not all(each.isdigit() for each in words[1:]):
        return None
    ticks = [int(each) for each in words[1:9]]  # the two after these are counted in user and nice
    return ticks[3] + ticks[4], sum(ticks)


def parse_pressure(raw: bytes) -> int | None:
    """Read a pressure file: microseconds in which some task waited. Its means come late.

    >>> parse_pressure(b"some avg10=1.53 avg60=0.87 avg300=0.73 total=42\\nfull avg10=0.00 ...")
    42
    """
    line = raw.partition(b"some ")[2].partition(b"\n")[0]
    word = line.partition(b" total=")[2].strip()
    return int(word) if word.isdigit() else None


def parse_net(raw: bytes) -> dict[str, tuple[int, int]]:
    """Read /proc/net/dev: bytes received and sent by each interface but the loopback.

    >>> parse_net(b"  lo: 1 2 3 4 5 6 7 8 9\\n  ib0:7 2 3 4 5 6 7 8 9 10\\n")
    {'ib0': (7, 9)}
    """
    counters = {}
    for line in raw.splitlines():
        name, _, rest = line.rpartition(b":")
        words = rest.split()
        if len(words) > 8 and words[0].isdigit() and words[8].isdigit() and name.strip() != b"lo":
            counters[name.strip().decode("utf-8", "replace")] = (int(words[0]), int(words[8]))
    return counters


def parse_counter(raw: bytes, name: bytes) -> int | None:
    """Read one line of a file of names and numbers, such as /proc/vmstat or memory.events.

    >>> parse_counter(b"oom 3\\noom_kill 2\\n", b"oom_kill")
    2
    """
    word = (b"\n" + raw).partition(b"\n" + name + b" ")[2].partition(b"\n")[0].strip()
    return int(word) if word.isdigit() else None


class Counters:
    """Numbers that only grow, remembered from one reading to the next."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def changes(self, now: Mapping[str, float]) -> dict[str, float]:
        """Return how much each has grown; nothing for a new one, or one that was set back."""
        grown = {name: value - self._last.get(name, math.inf) for name, value in now.items()}
        self._last = dict(now)
        return {name: change for name, change in grown.items() if change >= 0}


class Machine:
    """What the machine as a whole does, and the control group that the run is in."""

    def __init__(self, root_pid: int, proc: Path, note: Callable[[str], None]) -> None:
        self._proc, self._note = str(proc), note
        self._traffic, self._ticks, self._waits = Counters(), Counters(), Counters()
        sys, shm = proc.parent / "sys", proc.parent / "dev/shm"
        # A folder that is not mounted would tell of the disk under it.
        self._shm = str(shm) if shm.is_mount() else None
        memory = read_cgroup("memory", root_pid, proc)
        self._version, self._memory = memory.version if memory else 0, memory_folder(memory)
        self._oom_before = self._oom_kills()
        self._pressure = self._find_pressure(root_pid, proc)
        # A bond, a bridge or a VLAN counts again what its device has counted. In a container
        # there may be no devices at all: then everything counts.
        cards = sorted((sys / "class/net").glob("*/device"))
        self._devices = {path.parent.name for path in cards}
        ports = sorted((sys / "class/infiniband").glob("*/ports/*/counters"))
        self._ports = [str(path) for path in ports]

    def _find_pressure(self, root_pid: int, proc: Path) -> dict[str, str]:
        """Return, for each metric, the first file that exists and has a number."""
        group = read_cgroup("pressure", root_pid, proc)  # only version 2 has it
        inner = group.folders[0] if group else None
        found = {}
        for kind, metric in (("cpu", "cpu"), ("io", "io"), ("memory", "mem")):
            files = [f"{inner}/{kind}.pressure"] if inner else []
            for file in (*files, f"{proc}/pressure/{kind}"):
                if parse_pressure(read_start(file) or b"") is not None:
                    found[f"{metric}.pressure_pct"] = file
                    break
        if not found:
            self._note("no pressure: this kernel does not measure it (PSI)")
        return found

    def levels(self) -> dict[str, float]:
        """Return what is in use now: memory."""
        levels = {}
        table = parse_table(read_start(f"{self._proc}/meminfo", LARGE) or b"")
        for metric, total, free in (
            ("mem.machine_gib", b"MemTotal", b"MemAvailable"),
            ("mem.swap_gib", b"SwapTotal", b"SwapFree"),
        ):
            if total in table and free in table:
                levels[metric] = (table[total] - table[free]) * 1024 / GIB
        if self._memory is not None:
            used_gib = read_memory_gib(self._version, self._memory)
            if used_gib is not None:
                levels["mem.cgroup_gib"] = used_gib
            kills = self._oom_kills()
            if kills is not None and self._oom_before is not None:
                levels["mem.oom_kills"] = float(kills - self._oom_before)
        if self._shm is not None:
            with suppress(OSError):
                size = os.statvfs(self._shm)
                levels["mem.shm_gib"] = (size.f_blocks - size.f_bfree) * size.f_frsize / GIB
        return levels

    def rates(self, interval_s: float | None) -> dict[str, float]:
        """Return what happened since the last call; the first one only looks at the counters."""
        rates = self._busy()
        # Each device is followed by itself: one that comes or goes would look like traffic.
        grown = self._traffic.changes({**self._net(), **self._infiniband(), **self._swap()})
        waited = self._waits.changes(self._waited())
        if interval_s is None:
            return {}
        for name, change in grown.items():
            metric = name.partition(" ")[0]
            rates[metric] = rates.get(metric, 0) + change / MB / interval_s
        for metric, change in waited.items():
            rates[metric] = min(100.0, 100 * change / 1e6 / interval_s)
        return rates

    def _waited(self) -> dict[str, float]:
        """Return for how long, in microseconds, some task waited for each thing."""
        waited = {
            metric: parse_pressure(read_start(file) or b"")
            for metric, file in self._pressure.items()
        }
        return {metric: each for metric, each in waited.items() if each is not None}

    def _busy(self) -> dict[str, float]:
        ticks = parse_cpu_line(read_start(f"{self._proc}/stat") or b"")
        if ticks is None:
            self._note("no cpu.machine_pct: /proc/stat cannot be read")
            return {}
        grown = self._ticks.changes({"idle": ticks[0], "all": ticks[1]})
        # Waiting for a disk is idle, and may run backwards (proc_stat(5)).
        if not grown.get("all"):
            return {}
        idle = grown.get("idle", 0) / grown["all"]
        return {"cpu.machine_pct": 100 * (1 - min(1, idle))}

    def _oom_kills(self) -> int | None:
        """Return how many processes of the control group the kernel has killed for memory."""
        if self._memory is None:
            return None
        file = "memory.events" if self._version == 2 else "memory.oom_control"
        return parse_counter(read_start(f"{self._memory}/{file}") or b"", b"oom_kill")

    def _swap(self) -> dict[str, float]:
        raw = read_start(f"{self._proc}/vmstat", LARGE) or b""
        pages = {metric: parse_counter(raw, name) for name, metric in SWAP_METRICS}
        size = os.sysconf("SC_PAGE_SIZE")
        return {metric: count * size for metric, count in pages.items() if count is not None}

    def _net(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        table = parse_net(read_start(f"{self._proc}/net/dev", LARGE) or b"")
        for name, (rx, tx) in table.items():
            if name in self._devices or not self._devices:
                counters[f"net.rx_mb_s {name}"], counters[f"net.tx_mb_s {name}"] = rx, tx
        return counters

    def _infiniband(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        for port in self._ports:
            for metric, file in (("ib.rx_mb_s", "port_rcv_data"), ("ib.tx_mb_s", "port_xmit_data")):
                raw = (read_start(f"{port}/{file}") or b"").strip()
                if raw.isdigit():
                    counters[f"{metric} {port}"] = int(raw) * IB_WORD_BYTES
        return counters


class Sampler:
    """Readings of the descendants of one process and of the machine they run on.

    `root_pid` itself, the supervisor, is not counted. `sys` and `dev` are looked for beside `proc`.
    """

    def __init__(
        self,
        root_pid: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
        environ: Mapping[str, str] | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._root_pid, self._clock, self._proc = root_pid, clock, proc
        self._environ = os.environ if environ is None else environ
        self._gpus = gpus
        self._machine: Machine | None = None
        self._tree = ProcessTree(root_pid, proc)
        self._tick = 0
        self._read_s: float | None = None
        self._last: Snapshot | None = None
        self._busiest: list[tuple[float, StatLine]] = []
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    @property
    def used_gpus(self) -> set[int]:
        """The GPUs on which processes of the tree have been seen so far."""
        return set(self._gpus.used) if self._gpus else set()

    def facts(self) -> dict[str, object]:
        """Return what does not change while the run goes on, ready for JSON."""
        facts: dict[str, object] = {}
        for part in (self._machine_facts, self._limit_facts, self._gpu_facts, self._slurm_facts):
            try:
                facts.update(part())
            except Exception as error:
                self._note(f"a fault in {part.__name__}: {error!r}")
        return facts

    def read(self) -> dict[str, float]:
        """Return one reading; rates are over the time since the last one, so not in the first."""
        now_s = self._clock()
        elapsed_s = None if self._read_s is None else now_s - self._read_s
        is_new = elapsed_s is None or elapsed_s >= MIN_INTERVAL_S
        reading: dict[str, float] = {}
        for part in (self._read_tree, self._read_machine, self._read_gpus):
            try:
                reading.update(part(elapsed_s, is_new))
            except Exception as error:  # a fault in here must never end a training run
                self._note(f"a fault in {part.__name__}: {error!r}")
        if is_new:
            self._read_s = now_s
        self._tick += 1
        return reading

    def processes(self) -> list[Process]:
        """Return the busiest processes of the last reading, at most 16, the busiest first."""
        return [self._tree.describe(line, cores, self._page_bytes) for cores, line in self._busiest]

    def close(self) -> None:
        """Give the GPUs back; reading is over."""
        if self._gpus:
            self._gpus.close()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _read_tree(self, elapsed_s: float | None, is_new: bool) -> dict[str, float]:
        now = self._tree.read()
        if not now.seen and not (self._last and self._last.seen) and not self._has_root():
            self._note("no cores and memory of the run: its processes cannot be seen in /proc")
            return {}
        living = [seen for seen in now.seen.values() if seen.stat.state not in DEAD]
        reading = {"cpu.processes": float(len(living))}
        if living:
            pages = sum(seen.private_pages for seen in living)
            # What the processes hold for themselves: without files and shared memory, which would
            # count once for each of them. Forked workers share pages until one writes to them, so
            # this is too much rather than too little; mem.cgroup_gib is exact. The reading after
            # the last process has ended has none: 0 would count in the mean of the others.
            reading["mem.rss_gib"] = pages * self._page_bytes / GIB
            waiting = sum(seen.stat.state == "D" for seen in living)
            reading["cpu.waiting_io"] = waiting / len(living)
            if all(seen.io is None for seen in living):
                self._note("no reads and writes: the kernel does not tell them (/proc/<pid>/io)")
        if is_new:
            if self._last is not None and elapsed_s:
                reading.update(self._tree_rates(used_between(self._last, now), now, elapsed_s))
            self._last = now
        return reading

    def _has_root(self) -> bool:
        return read_start(f"{self._proc}/{self._root_pid}/stat") is not None

    def _tree_rates(self, used: Used, now: Snapshot, interval_s: float) -> dict[str, float]:
        cores_of = {pid: each * self._tick_s / interval_s for pid, each in used.ticks_of.items()}
        order = sorted(cores_of, key=lambda pid: -cores_of[pid])
        lines = [now.seen[pid].stat for pid in order if now.seen[pid].stat.state not in DEAD]
        self._busiest = [(cores_of[line.pid], line) for line in lines[:PROCESSES_SHOWN]]
        rates = {"cpu.cores": used.ticks * self._tick_s / interval_s}
        if cores_of:
            rates["cpu.max_process_cores"] = max(cores_of.values())
        if used.io is not None:
            for (metric, unit), count in zip(IO_METRICS, used.io, strict=True):
                rates[metric] = count / unit / interval_s
        return rates

    def _read_machine(self, elapsed_s: float | None, is_new: bool) -> dict[str, float]:
        if self._machine is None:
            self._machine = Machine(self._root_pid, self._proc, self._note)
        rates = self._machine.rates(elapsed_s) if is_new else {}
        return {**self._machine.levels(), **rates}

    def _read_gpus(self, elapsed_s: float | None, is_new: bool) -> dict[str, float]:
        pids = self._last.seen if self._last else {}
        return self._opened_gpus().read(self._tick, is_new, pids)

    def _opened_gpus(self) -> Gpus:
        if self._gpus is None:
            self._gpus = open_gpus(self._environ, self._note, self._proc.parent / "dev")
        return self._gpus

    def _machine_facts(self) -> dict[str, object]:
        # The start is enough: the rest repeats it for each core, and takes the kernel long.
        info = (read_start(f"{self._proc}/cpuinfo") or b"").decode("utf-8", "replace")
        model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
        system = os.uname()
        return {
            "host": system.nodename,
            "kernel": system.release,
            "cpu_model": model[1].strip() if model else None,
        }

    def _limit_facts(self) -> dict[str, object]:
        limits = read_limits(self._root_pid, self._proc)
        return {
            "cores_machine": limits.cores_machine,
            "cores_affinity": limits.cores_affinity,
            "cores_quota": limits.cores_quota,
            "cores_allowed": limits.cores,
            "memory_machine_gib": limits.memory_machine_gib,
            "memory_limit_gib": limits.memory_limit_gib,
        }

    def _gpu_facts(self) -> dict[str, object]:
        return {"gpus": [asdict(gpu) for gpu in self._opened_gpus().gpus]}

    def _slurm_facts(self) -> dict[str, object]:
        known = {each: self._environ[each] for each in SLURM_VARIABLES if each in self._environ}
        return {"slurm": known} if known else {}
