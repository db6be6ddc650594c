"""Whole readings: from stand-ins with a clock that the test moves, and from this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.gpus import Gpus
from stoker.watch.nvidia import Nvidia
from stoker.watch.sampler import (
    Counters,
    Sampler,
    parse_counter,
    parse_cpu_line,
    parse_net,
    parse_pressure,
)
from test_nvidia import LOST, FakeDevice, FakeNvml
from test_processes import ROOT, FakeProc

GIB = 2**30
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeMachine(FakeProc):
    """A /proc with the files of the whole machine, and /sys and /dev beside it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sys = folder / "sys"
        self.cgroup = folder / "cgroup"
        self.cgroup.mkdir()
        for name in ("pressure", "net"):
            (self.folder / name).mkdir()
        for kind in ("cpu", "io", "memory"):
            self.press(self.folder / "pressure" / kind, 0)
        (self.folder / "meminfo").write_text(
            f"MemTotal: {2**25} kB\nMemFree: 5 kB\nMemAvailable: {2**24} kB\n"
            f"SwapTotal: {2**21} kB\nSwapFree: {2**20} kB\nHugePages_Total: 0\n"
        )
        (self.folder / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
        mount = f"30 22 0:26 / {self.cgroup} rw - cgroup2 cgroup2 rw\n"
        (self.folder / f"{ROOT}/mountinfo").write_text(mount)
        (self.folder / f"{ROOT}/cgroup").write_text("0::/job\n")
        (self.folder / f"{ROOT}/status").write_text("Name: x\nCpus_allowed_list:\t0-7\n")
        job = self.cgroup / "job"
        job.mkdir()
        (job / "cpu.max").write_text("400000 100000\n")
        (job / "memory.max").write_text(f"{8 * GIB}\n")
        (job / "memory.current").write_text(f"{3 * GIB}\n")
        (job / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\n")
        self.press(job / "cpu.pressure", 0)
        self.cpu(0, 0)
        self.net(0, 0)

    def press(self, path: Path, total_us: int) -> None:
        path.write_text(f"some avg10=9.87 avg60=0.10 total={total_us}\nfull avg10=0.00 total=7\n")

    def cpu(self, busy: int, idle: int) -> None:
        lines = "".join(f"cpu{core} 1 0 1 9 0 0 0 0 0 0\n" for core in range(16))
        (self.folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n{lines}")

    def net(self, rx: int, tx: int) -> None:
        rows = {"lo": (9**9, 9**9), "eth0": (rx, tx), "bond0": (rx, tx)}
        text = "Inter-|   Receive\n face |bytes    packets\n"
        for name, (received, sent) in rows.items():
            text += f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
        (self.folder / "net/dev").write_text(text)

    def device(self, name: str) -> None:
        (self.sys / f"class/net/{name}/device").mkdir(parents=True)

    def infiniband(self, received: int, sent: int, card: str = "mlx5_0") -> None:
        port = self.sys / f"class/infiniband/{card}/ports/1/counters"
        port.mkdir(parents=True, exist_ok=True)
        (port / "port_rcv_data").write_text(f"{received}\n")
        (port / "port_xmit_data").write_text(f"{sent}\n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def sampler(machine: FakeMachine, clock: Clock) -> Iterator[Sampler]:
    made = Sampler(ROOT, clock=clock, proc=machine.folder, environ={}, gpus=no_gpus())
    yield made
    made.close()


def no_gpus() -> Gpus:
    return Gpus([], {}, lambda _: None)


def test_the_first_reading_has_levels_and_no_rates(machine: FakeMachine, sampler: Sampler) -> None:
    machine.add(200, ROOT, ticks=(5000, 0))
    machine.add(201, 200, "pt_data_worker", state="D")
    machine.add(202, 200, "gone", state="Z")
    assert sampler.read() == {
        "cpu.processes": 2.0,
        "cpu.waiting_io": 0.5,
        "mem.rss_gib": 2 * 200 * PAGE / GIB,
        "mem.machine_gib": 16.0,
        "mem.swap_gib": 1.0,
        "mem.cgroup_gib": 2.0,
    }
    assert sampler.notes == []
    assert sampler.processes() == []


def test_the_second_reading_has_rates(machine: FakeMachine, sampler: Sampler, clock: Clock) -> None:
    machine.add(200, ROOT, "python (main)", ticks=(100, 0), io=(0, 0, 0, 0, 0))
    machine.add(201, 200, "worker")
    machine.infiniband(1000, 1000)
    sampler.read()
    clock.now += 2
    machine.add(200, ROOT, "python (main)", ticks=(100 + 3 * TICKS, 0))
    machine.add(201, 200, "worker", ticks=(TICKS, 0), io=(8 * 10**6, 2 * 10**6, 50, 10**6, 4000))
    machine.cpu(busy=30, idle=70)
    machine.net(6 * 10**6, 10**6)
    machine.infiniband(1000 + 10**6, 1000)
    machine.press(machine.cgroup / "job/cpu.pressure", 665_000)
    machine.press(machine.folder / "pressure/io", 50_000)
    reading = sampler.read()
    rates = {
        "cpu.cores": 2.0,
        "cpu.max_process_cores": 1.5,
        "cpu.machine_pct": 30.0,
        "io.read_mb_s": 4.0,
        "io.write_mb_s": 1.0,
        "io.reads_s": 25.0,
        "io.disk_read_mb_s": 0.5,
        "io.disk_write_mb_s": 0.002,
        "net.rx_mb_s": 6.0,  # no device is known here, so the bond counts as well
        "net.tx_mb_s": 1.0,
        "ib.rx_mb_s": 2.0,
        "ib.tx_mb_s": 0.0,
        "cpu.pressure_pct": 33.25,  # of the job's own group
        "io.pressure_pct": 2.5,
        "mem.pressure_pct": 0.0,
    }
    assert {name: reading[name] for name in rates} == pytest.approx(rates)


def test_the_busiest_processes_come_first_and_at_most_sixteen(
    machine: FakeMachine, sampler: Sampler, clock: Clock
) -> None:
    for pid in range(200, 230):
        machine.add(pid, ROOT, "data worker")
    sampler.read()
    clock.now += 1
    for pid in range(200, 230):
        machine.add(pid, ROOT, "data worker", ticks=(pid - 200, 0))
    sampler.read()
    shown = sampler.processes()
    assert [each.pid for each in shown] == list(range(229, 213, -1))
    assert shown[0].cores == pytest.approx(29 / TICKS)
    assert shown[0].name == "data worker train.py"
    assert (shown[0].ppid, shown[0].state) == (ROOT, "S")
    machine.remove(229)
    assert sampler.processes()[0].name == "[data worker]"


def test_only_devices_count_where_there_are_any(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.device("eth0")
    sampler.read()
    clock.now += 1
    machine.net(5 * 10**6, 0)
    assert sampler.read()["net.rx_mb_s"] == 5.0


def test_a_port_that_comes_or_goes_is_no_traffic(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.infiniband(10**12, 0)
    machine.infiniband(0, 0, "mlx5_1")
    sampler.read()
    file = machine.sys / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"
    text = file.read_text()
    file.unlink()
    clock.now += 1
    assert sampler.read()["ib.rx_mb_s"] == 0.0
    file.write_text(text)
    clock.now += 1
    assert sampler.read()["ib.rx_mb_s"] == 0.0


def test_kills_for_memory_are_counted_from_the_start_of_the_run(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    events = machine.cgroup / "job/memory.events"
    events.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    machine.add(200, ROOT)
    assert sampler.read()["mem.oom_kills"] == 0
    events.write_text("low 0\noom 6\noom_kill 5\noom_group_kill 0\n")
    assert sampler.read()["mem.oom_kills"] == 2


def test_pages_that_go_to_swap_and_come_back_are_rates(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    vmstat = machine.folder / "vmstat"
    vmstat.write_text("nr_free_pages 7\npswpin 1000\npswpout 0\n")
    assert "mem.swap_in_mb_s" not in sampler.read()
    clock.now += 2
    vmstat.write_text("nr_free_pages 7\npswpin 3000\npswpout 500\n")
    reading = sampler.read()
    assert reading["mem.swap_in_mb_s"] == pytest.approx(1000 * PAGE / 1e6)
    assert reading["mem.swap_out_mb_s"] == pytest.approx(250 * PAGE / 1e6)


def test_two_readings_in_quick_succession_give_no_rates_and_lose_nothing(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.add(200, ROOT)
    sampler.read()
    clock.now += 0.01
    machine.add(200, ROOT, ticks=(TICKS // 2, 0))
    quick = sampler.read()
    assert "cpu.cores" not in quick
    assert "mem.rss_gib" in quick
    clock.now += 0.99
    machine.add(200, ROOT, ticks=(TICKS, 0))
    assert sampler.read()["cpu.cores"] == pytest.approx(1.0)


def test_a_worker_that_ends_is_no_flood(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.add(200, ROOT, ticks=(10, 0), io=(100, 0, 0, 0, 0))
    machine.add(201, 200, ticks=(10**6, 0), io=(10**12, 0, 0, 0, 0))
    sampler.read()
    clock.now += 1
    machine.remove(201)
    machine.add(200, ROOT, ticks=(10, 10**6), io=(100 + 10**12, 0, 0, 0, 0))
    reading = sampler.read()
    assert reading["cpu.cores"] == 0.0
    assert reading["io.read_mb_s"] == 0.0


def test_when_all_have_ended_the_machine_is_still_read(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.add(200, ROOT)
    sampler.read()
    machine.remove(200)
    clock.now += 1
    reading = sampler.read()
    assert reading["cpu.processes"] == 0.0
    assert reading["cpu.cores"] == 0.0
    assert "cpu.waiting_io" not in reading
    assert "cpu.max_process_cores" not in reading


def test_what_the_kernel_does_not_tell_is_noted_once(
    machine: FakeMachine, clock: Clock, sampler: Sampler
) -> None:
    machine.add(200, ROOT, io=None)
    for path in (*(machine.folder / "pressure").iterdir(), machine.cgroup / "job/cpu.pressure"):
        path.unlink()
    (machine.folder / "stat").unlink()
    (machine.folder / "meminfo").unlink()
    (machine.cgroup / "job/memory.current").unlink()
    for _ in range(3):
        reading = sampler.read()
        clock.now += 1
    assert set(reading) == {
        "cpu.processes", "cpu.waiting_io", "cpu.cores", "cpu.max_process_cores",
        "mem.rss_gib", "net.rx_mb_s", "net.tx_mb_s",
    }  # fmt: skip
    assert sampler.notes == [
        "no reads and writes: the kernel does not tell them (/proc/<pid>/io)",
        "no pressure: this kernel does not measure it (PSI)",
        "no cpu.machine_pct: /proc/stat cannot be read",
    ]


def test_an_empty_proc_gives_an_empty_reading(tmp_path: Path, clock: Clock) -> None:
    sampler = Sampler(ROOT, clock=clock, proc=tmp_path / "proc", environ={}, gpus=no_gpus())
    sampler.read()
    clock.now += 1
    assert sampler.read() == {}
    assert "no cores and memory of the run: its processes cannot be seen in /proc" in sampler.notes
    assert sampler.facts()["cores_machine"] is None
    json.dumps(sampler.facts())


def test_facts_are_json_and_say_limits_apart(machine: FakeMachine, clock: Clock) -> None:
    environ = {"SLURM_JOB_ID": "4211", "SLURM_LOCALID": "0", "HOME": "/home/me"}
    gpus = Gpus([Nvidia(FakeNvml(FakeDevice(0)))], environ, lambda _: None)
    sampler = Sampler(ROOT, clock=clock, proc=machine.folder, environ=environ, gpus=gpus)
    facts = json.loads(json.dumps(sampler.facts()))
    assert facts.pop("host") == os.uname().nodename
    assert facts.pop("kernel") == os.uname().release
    assert facts == {
        "cpu_model": "AMD EPYC 9654",
        "cores_machine": 16,
        "cores_affinity": 8,
        "cores_quota": 4.0,
        "cores_allowed": 4.0,
        "memory_machine_gib": 32.0,
        "memory_limit_gib": 8.0,
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0000-4106",
                "name": "NVIDIA H200",
                "kind": "nvidia",
                "driver": "580.95.05",
                "memory_gib": 140.0,
                "power_limit_w": 700.0,
                "mig": False,
                "has_gpm": True,
                "max_clock_mhz": 1980,
            }
        ],
        "slurm": {"SLURM_JOB_ID": "4211", "SLURM_LOCALID": "0"},
    }


def test_gpus_are_part_of_a_reading(machine: FakeMachine, clock: Clock) -> None:
    device = FakeDevice(0)
    device.processes = [(200, 4 * GIB)]
    notes: list[str] = []
    gpus = Gpus([Nvidia(FakeNvml(device))], {}, notes.append)
    sampler = Sampler(ROOT, clock=clock, proc=machine.folder, environ={}, gpus=gpus)
    machine.add(200, ROOT)
    first = sampler.read()
    assert first["gpu.0.mine_gib"] == 4.0
    assert "gpu.0.sm_pct" not in first
    assert sampler.used_gpus == {0}
    clock.now += 0.01
    device.seconds += 0.01
    assert "gpu.0.sm_pct" not in sampler.read()
    clock.now += 0.99
    device.seconds += 0.99
    assert sampler.read()["gpu.0.sm_pct"] == pytest.approx(2.0)
    device.errors = {"*": LOST}
    clock.now += 1
    assert not [name for name in sampler.read() if name.startswith("gpu.")]
    assert notes == ["GPU 0 is lost: GPU is lost"]
    sampler.close()
    sampler.close()


def test_a_fault_of_our_own_costs_one_part_and_is_noted(
    machine: FakeMachine, clock: Clock, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, float]:
        raise RuntimeError("our bug")

    monkeypatch.setattr("stoker.watch.sampler.Machine.levels", fails)
    monkeypatch.setattr("stoker.watch.sampler.read_limits", fails)
    machine.add(200, ROOT)
    for _ in range(2):
        assert sampler.read()["cpu.processes"] == 1.0
        clock.now += 1
    assert "host" in sampler.facts()
    assert sampler.notes == [
        "a fault in _read_machine: RuntimeError('our bug')",
        "a fault in _limit_facts: RuntimeError('our bug')",
    ]


def test_a_folder_that_is_not_mounted_is_not_shared_memory(
    machine: FakeMachine, sampler: Sampler, tmp_path: Path
) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert "mem.shm_gib" not in sampler.read()


def test_the_real_machine_is_read_in_good_time_and_shape() -> None:
    """Our own child keeps one core busy; the clock is ours, so nobody sleeps."""
    clock = Clock()
    sampler = Sampler(os.getpid(), clock=clock)
    code = (
        "print('ready', flush=True)\ninput()\n"
        "x = sum(range(20_000_000))\nprint('done', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        sampler.facts()
        sampler.read()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        clock.now += 1
        reading = sampler.read()
        (busiest, *_) = sampler.processes()
        child.communicate("\n")
    assert all(isinstance(value, float) for value in reading.values())
    assert all(value >= 0 for value in reading.values())
    assert reading["cpu.processes"] >= 1
    assert reading["cpu.cores"] >= 0.05
    assert reading["mem.rss_gib"] > 0.001
    assert busiest.pid == child.pid
    assert reading["mem.machine_gib"] > 0.05
    sampler.close()


def test_importing_it_stays_light() -> None:
    code = (
        "import sys, stoker.watch.sampler\n"
        "heavy = ('argparse', 'subprocess', 'ctypes', 'pynvml', 'asyncio', 'json', 'logging')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_counters_that_are_set_back_tell_nothing() -> None:
    counters = Counters()
    assert counters.changes({"a": 5, "b": 5}) == {}
    assert counters.changes({"a": 3, "b": 7, "c": 100}) == {"b": 2}
    assert counters.changes({"a": 4}) == {"a": 1}


@given(st.binary(max_size=200))
def test_no_text_breaks_the_parsers(raw: bytes) -> None:
    parse_cpu_line(raw)
    parse_cpu_line(b"cpu " + raw)
    parse_pressure(b"some avg10=1 total=" + raw)
    parse_counter(b"oom_kill " + raw, b"oom_kill")
    parse_net(raw)


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9.]{0,14}", fullmatch=True), st.integers(0, 2**63))
)
def test_interfaces_are_read_back(counters: dict[str, int]) -> None:
    text = "".join(f"{name:>6}:{n:8} 1 0 0 0 0 0 0 {n + 1} 0\n" for name, n in counters.items())
    expected = {name: (n, n + 1) for name, n in counters.items() if name != "lo"}
    assert parse_net(text.encode()) == expected
