"""One task of each machine reads for all: it has to find the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.engine.task import read_task
from stoker.watch.folder import RunFolder
from stoker.watch.launcher import find_launcher
from stoker.watch.series import read_series

SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1",
}  # fmt: skip
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
SHELL, DAEMON = 300, 200


def add(proc: Path, pid: int, ppid: int, environment: dict[str, str]) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a b) S {ppid} " + " ".join("0" * 40))
    words = [f"{name}={value}" for name, value in environment.items()]
    (folder / "environ").write_bytes("\0".join([*words, ""]).encode())


@pytest.mark.parametrize("task", [SLURM, MPI, {**SLURM, **MPI}], ids=["srun", "mpirun", "both"])
@pytest.mark.parametrize("shells", [0, 1, 2])
def test_shells_around_a_task_are_part_of_it(
    task: dict[str, str], shells: int, tmp_path: Path
) -> None:
    # The daemon of an MPI may itself be a task of Slurm.
    add(tmp_path, DAEMON, 1, SLURM if "OMPI_COMM_WORLD_RANK" in task else {"HOME": "/root"})
    for number in range(shells):
        add(tmp_path, SHELL + number, SHELL + number - 1 if number else DAEMON, task)
    me = read_task(task)
    assert me is not None
    assert find_launcher(me, SHELL + shells - 1 if shells else DAEMON, tmp_path) == DAEMON


def test_a_daemon_that_is_not_ours_to_look_at_is_the_launcher(tmp_path: Path) -> None:
    task = read_task(SLURM)
    assert task is not None
    assert find_launcher(task, DAEMON, tmp_path) == DAEMON
    add(tmp_path, SHELL, DAEMON, SLURM)
    assert find_launcher(task, SHELL, tmp_path) == DAEMON


def test_the_first_process_of_a_container_has_nobody_above(tmp_path: Path) -> None:
    task = read_task(SLURM)
    assert task is not None
    add(tmp_path, 1, 0, SLURM)
    assert find_launcher(task, 1, tmp_path) == 1


def test_who_reads_for_all_sees_the_other_tasks_from_within_a_shell(tmp_path: Path) -> None:
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(5)]
    run = f'"{sys.executable}" -m stoker run --quiet -o run -- true; exit $?'
    try:
        environment = {**os.environ, **SLURM, "SLURM_PROCID": "0"}
        subprocess.run(["sh", "-c", run], cwd=tmp_path, env=environment, check=True)
    finally:
        for each in others:
            each.kill()
            each.wait()
    _, rows = read_series(RunFolder(tmp_path / "run").samples(os.uname().nodename))
    assert rows[-1].stats["cpu.processes"].mean > len(others)
