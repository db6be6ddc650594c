"""Cores and memory that a job may use: control groups of both versions, in folders of a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.limits import (
    Cgroup,
    Limits,
    Mount,
    find_cgroup,
    memory_folder,
    parse_bytes,
    parse_cgroups,
    parse_cpu_list,
    parse_cpu_max,
    parse_mounts,
    parse_table,
    read_cgroup,
    read_limits,
    read_memory_gib,
)

GIB = 2**30
PID = 100
# The path that Slurm 26.05 gives: no job id in it.
SLURM = "/system.slice/slurmstepd.scope/s_01J9ZK/step_0/user/task_0"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def make_proc(tmp_path: Path, cgroup: str, mounts: list[str], *, cores: str = "0-3,8-11") -> Path:
    proc = tmp_path / "proc"
    write(
        proc / str(PID),
        cgroup=cgroup,
        mountinfo="\n".join(["22 1 8:1 / / rw - ext4 /dev/sda1 rw", *mounts]),
        status=f"Name:\tstoker\nCpus_allowed:\tf0f\nCpus_allowed_list:\t{cores}",
    )
    lines = "".join(f"cpu{core} 1 0 1 9 0 0 0 0 0 0\n" for core in range(16))
    write(proc, stat=f"cpu  1 0 1 9 0 0 0 0 0 0\n{lines}intr 5", meminfo=f"MemTotal: {2**26} kB")
    return proc


def v2_mount(point: Path, root: str = "/") -> str:
    escaped = str(point).replace(" ", "\\040")
    return f"30 22 0:26 {root} {escaped} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def v1_mount(point: Path, controllers: str, root: str = "/") -> str:
    return f"31 22 0:27 {root} {point} rw - cgroup cgroup rw,{controllers}"


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup two"
    write(mount / SLURM[1:], cpu__max="max 100000", memory__max="max")
    write((mount / SLURM[1:]).parents[1], cpu__max="800000 100000", memory__max=str(64 * GIB))
    write((mount / SLURM[1:]).parents[2], cpu__max="600000 100000", memory__max=str(32 * GIB))
    proc = make_proc(tmp_path, f"0::{SLURM}", [v2_mount(mount)])
    limits = read_limits(PID, proc)
    assert limits == Limits(16, 8, 6.0, 64.0, 32.0)
    assert limits.cores == 6.0


def test_without_limits_the_affinity_mask_decides(tmp_path: Path) -> None:
    write(tmp_path / "cg/user.slice", cpu__max="max 100000", memory__max="max")
    proc = make_proc(tmp_path, "0::/user.slice", [v2_mount(tmp_path / "cg")])
    limits = read_limits(PID, proc)
    assert (limits.cores_quota, limits.memory_limit_gib, limits.cores) == (None, None, 8)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu,cpuacct", tmp_path / "memory"
    job = "slurm/uid_7/job_4211/step_0"
    write(cpu / job, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    write((cpu / job).parent, cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    write(memory / job, memory__limit_in_bytes="9223372036854771712")
    write((memory / job).parent, memory__limit_in_bytes=str(16 * GIB))
    proc = make_proc(
        tmp_path,
        f"5:memory:/{job}\n4:cpu,cpuacct:/{job}\n1:name=systemd:/init.scope\n0::/init.scope",
        [v1_mount(cpu, "cpu,cpuacct"), v1_mount(memory, "memory"), v2_mount(tmp_path / "unified")],
    )
    limits = read_limits(PID, proc)
    assert (limits.cores_quota, limits.memory_limit_gib) == (2.5, 16.0)


def test_a_container_shows_the_path_of_the_host_but_mounts_its_own_part(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    write(mount / "inner", memory__max=str(8 * GIB))
    proc = make_proc(tmp_path, "0::/docker/3f/inner", [v2_mount(mount, root="/docker/3f")])
    assert read_cgroup("memory", PID, proc) == Cgroup(2, (str(mount / "inner"), str(mount)))
    assert read_limits(PID, proc).memory_limit_gib == 8.0


@pytest.mark.parametrize("path", ["/../../elsewhere", "/other/part"])
def test_a_path_outside_of_what_is_mounted_means_the_mount_point(tmp_path: Path, path: str) -> None:
    mount = tmp_path / "cg"
    write(mount, memory__max=str(4 * GIB))
    proc = make_proc(tmp_path, f"0::{path}", [v2_mount(mount, root="/docker/3f")])
    assert read_limits(PID, proc).memory_limit_gib == 4.0


def test_nothing_readable_is_nothing_known(tmp_path: Path) -> None:
    limits = read_limits(PID, tmp_path / "nowhere")
    assert limits == Limits(None, None, None, None, None)
    assert limits.cores is None
    assert read_cgroup("memory", PID, tmp_path / "nowhere") is None


def test_memory_is_measured_where_the_limit_is_hit_first(tmp_path: Path) -> None:
    outer, inner = tmp_path / "job", tmp_path / "job/step"
    write(outer, memory__max=str(8 * GIB), memory__current=str(5 * GIB))
    write(outer, memory__stat=f"anon 7\ninactive_file {GIB}\nactive_file 9")
    write(inner, memory__max="max", memory__current=str(GIB))
    folder = memory_folder(Cgroup(2, (str(inner), str(outer))))
    assert folder == str(outer)
    assert read_memory_gib(2, folder) == 4.0


def test_memory_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, memory__usage_in_bytes=str(3 * GIB))
    write(tmp_path, memory__stat=f"inactive_file 1\ntotal_inactive_file {2 * GIB}")
    assert read_memory_gib(1, str(tmp_path)) == 1.0


def test_memory_without_a_limit_is_that_of_the_innermost_group(tmp_path: Path) -> None:
    folders = (str(tmp_path / "a/b"), str(tmp_path / "a"))
    assert memory_folder(Cgroup(2, folders)) == folders[0]
    assert memory_folder(Cgroup(1, folders)) == folders[0]
    assert memory_folder(Cgroup(2, folders[:1])) == folders[0]
    assert memory_folder(Cgroup(1, folders[:1])) is None  # the whole machine
    assert memory_folder(None) is None
    assert read_memory_gib(2, folders[0]) is None


def test_file_pages_larger_than_all_do_not_make_it_negative(tmp_path: Path) -> None:
    write(tmp_path, memory__current="4096", memory__stat="inactive_file 8192")
    assert read_memory_gib(2, str(tmp_path)) == 0.0


def test_a_controller_of_version_1_wins_over_the_empty_version_2() -> None:
    mounts = [Mount("/u", "/", 2, frozenset()), Mount("/m", "/", 1, frozenset({"rw", "memory"}))]
    assert find_cgroup("memory", {"memory": "/a", "": "/"}, mounts) == Cgroup(1, ("/m/a", "/m"))
    assert find_cgroup("cpu", {"memory": "/a", "": "/"}, mounts) == Cgroup(2, ("/u",))
    assert find_cgroup("cpu", {"memory": "/a"}, mounts) is None


@given(st.sets(st.integers(0, 400), min_size=1))
def test_a_list_of_cores_is_read_back(cores: set[int]) -> None:
    text, ordered = [], sorted(cores)
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        text.append(str(first) if first == last else f"{first}-{last}")
    assert parse_cpu_list(",".join(text) + "\n") == cores


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_quota_is_cores(quota: int, period: int) -> None:
    assert parse_cpu_max(f"{quota} {period}\n") == quota / period


@given(st.text(max_size=200))
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert all(path.startswith("/") for path in parse_cgroups(text).values())
    parse_mounts(text)
    parse_cpu_max(text)
    parse_bytes(text)
    parse_cpu_list(text)
    parse_table(text.encode())


@given(
    st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="\n\\\0"), min_size=1), max_size=8
    )
)
def test_no_line_of_mounts_breaks_the_parser(words: list[str]) -> None:
    parse_mounts(" ".join(words) + " - cgroup2 x rw")


def test_this_machine_has_cores_and_memory() -> None:
    limits = read_limits(os.getpid())
    assert limits.cores_affinity == len(os.sched_getaffinity(0))
    assert limits.cores_machine is not None
    assert limits.memory_machine_gib is not None
    assert limits.memory_machine_gib > 0.1
