"""Ranks that really run: they meet, agree, and name who is missing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from patience import Done, run_ranks

HERE = Path(__file__).parent
PROGRAM = HERE / "programs/context_ranks.py"
PYTHON = HERE.parent / ".venv-torch/bin/python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no PyTorch in .venv-torch"),
]
ENV = {
    "PATH": f"{PYTHON.parent}:/usr/bin:/bin",
    "PYTHONPATH": str(HERE.parent / "src"),
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def ran(folder: Path, mode: str, *launcher: str, **environ: str) -> Done:
    def run(place: Path) -> Done:
        return subprocess.run(
            [*launcher, str(PYTHON), str(PROGRAM), mode], cwd=place, env={**ENV, "HOME": str(folder), **environ}, capture_output=True,
            text=True, check=False, timeout=240,
        )  # fmt: skip

    return run_ranks(run, folder)[1]


def torchrun(folder: Path, count: int, mode: str) -> Done:
    words = [str(PYTHON), "-m", "torch.distributed.run", "--standalone"]

    def run(place: Path) -> Done:
        return subprocess.run(
            [*words, f"--nproc_per_node={count}", str(PROGRAM), mode], cwd=place,
            env={**ENV, "HOME": str(folder)}, capture_output=True, text=True, check=False,
            timeout=240,
        )  # fmt: skip

    return run_ranks(run, folder)[1]


def test_ranks_that_part_meet_again(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "meets_again")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"rank {rank} {time} True" for rank in (0, 1) for time in ("first", "second")
    ]


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_of_torchrun_meet(count: int, tmp_path: Path) -> None:
    done = torchrun(tmp_path, count, "meets")
    assert done.returncode == 0, done.stderr
    total = sum(range(1, count + 1))
    assert sorted(done.stdout.splitlines()) == [
        "printed once",
        *(
            f"rank {each}/{count} local {each}/{count} node 0 torchrun cpu sum {total} "
            f"env {each}{count}"
            for each in range(count)
        ),
    ]


def test_ranks_of_mpirun_meet_without_an_address(tmp_path: Path) -> None:
    done = ran(tmp_path, "meets", "mpirun", "-np", "2")
    assert done.returncode == 0, done.stderr
    assert "rank 1/2 local 1/2 node 0 openmpi cpu sum 3" in done.stdout


def test_one_process_alone_has_a_group_too(tmp_path: Path) -> None:
    done = ran(tmp_path, "meets", RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0, done.stderr
    assert "rank 0/1" in done.stdout


def test_all_stop_at_the_same_step_though_one_was_told(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "stops")
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"stopped at (\d+)", done.stdout)
    assert len(steps) == 2
    assert len(set(steps)) == 1
    assert 40 <= int(steps[0]) < 10_000


def test_checkpoints_are_written_once_and_found_by_all(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "saves")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["c-11.pt 11 ['c-10.pt', 'c-11.pt']"] * 2


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 4, "misses")
    assert done.returncode == 1
    assert "rank 1 of 4 did not come within 10 s" in done.stderr


def test_a_rank_that_misses_a_barrier_is_named(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, "misses_barrier")
    assert done.returncode == 1
    assert "rank 1 of 2 did not reach barrier 1 within 1 s" in done.stderr


def started(rank: int, mode: str, port: int, folder: Path) -> subprocess.Popen[str]:
    env = {**ENV, "HOME": str(folder), "RANK": str(rank), "WORLD_SIZE": "3"}
    return subprocess.Popen(
        [PYTHON, PROGRAM, mode], cwd=folder, text=True, stderr=subprocess.PIPE,
        env={**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def test_where_rank_0_is_missing_nothing_answers(tmp_path: Path) -> None:
    port = 10_000 + os.getpid() % 20_000
    env = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = ran(tmp_path, "misses", **env)
    assert done.returncode == 1
    assert f"rank 0 of 3 is missing: nothing answers at 127.0.0.1:{port}" in done.stderr


def test_two_processes_of_one_rank_are_told_so(tmp_path: Path) -> None:
    port = 10_000 + (os.getpid() + 1) % 20_000
    # Rank 1 never comes, so that rank 0 is there until both have come.
    ranks = [started(rank, "misses", port, tmp_path) for rank in (0, 2, 2)]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert sum("two processes are rank 2 of 3" in error for error in errors) == 1
