"""The context of a training under a real srun, on two nodes."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from slurm.cluster import ROOT, SlurmCluster

PROGRAM = ROOT / "tests/programs/context_ranks.py"
ASKED = ("--account=project_2001234", "--partition=gpu", "--nodes=2", "--gres=gpu:1", "--mem=8G")


def srun(
    slurm: SlurmCluster, tasks: int, *words: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    if not slurm.torch.exists():
        pytest.skip("no PyTorch in .venv-torch")
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return slurm.on(
        slurm.login, "srun", *ASKED, f"--ntasks-per-node={tasks}", *words, cwd=slurm.folder("srun"),
        env=env, check=check, timeout=150,
    )  # fmt: skip


def test_ranks_of_srun_meet_over_two_nodes(slurm: SlurmCluster) -> None:
    done = srun(slurm, 2, str(slurm.torch), str(PROGRAM), "meets")
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [
        f"rank {rank}/4 local {rank % 2}/2 node {rank // 2} slurm cpu sum 10 env {rank}4"
        for rank in range(4)
    ]


def test_all_nodes_stop_at_the_same_step(slurm: SlurmCluster) -> None:
    done = srun(slurm, 2, str(slurm.torch), str(PROGRAM), "stops")
    steps = re.findall(r"stopped at (\d+)", done.stdout)
    assert len(steps) == 4
    assert len(set(steps)) == 1


def test_a_missing_rank_of_srun_is_named(slurm: SlurmCluster) -> None:
    done = srun(slurm, 2, str(slurm.torch), str(PROGRAM), "misses", check=False)
    assert done.returncode == 1
    assert "rank 1 of 4 did not come within 10 s" in done.stderr


def test_communication_is_measured_between_nodes(slurm: SlurmCluster) -> None:
    words = ("-m", "stoker", "bench", "comm", "--sizes", "4K", "--json")
    done = srun(slurm, 1, str(slurm.python), *words, "--python", str(slurm.torch))
    told = json.loads(done.stdout)
    assert (told["ranks"], told["nodes"], told["backend"]) == (2, 2, "gloo")
