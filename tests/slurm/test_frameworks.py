"""Every framework trains over two nodes of a real Slurm, started by `stoker submit`."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from extensions import torch_extensions
from patience import OUTLIVED, TRIES
from slurm.cluster import ROOT, SlurmCluster
from trained import TRAININGS, TRAINS, Training, check_ranks, lay_out, read_ranks

# Nodes are shared here, and the GPUs are not real: the programs train on CPUs.
TWO_NODES = ("--nodes", "2", "--set", "slurm.full_nodes=false")
# One process a node has all its GPUs; the others are one for each GPU.
GPUS_EACH = {
    "ddp": 2,
    "lightning": 2,
    "accelerate": 2,
    "horovod": 2,
    "horovod, tensorflow": 2,
    "mpi4py": 2,
    "jax": 2,
}


@pytest.fixture(scope="module", autouse=True)
def profile(slurm: SlurmCluster) -> None:
    """Detect the cluster, as a user would first."""
    slurm.stoker("cluster", "detect", "--save", "--force", cwd=slurm.shared)


@pytest.fixture(scope="module")
def programs(slurm: SlurmCluster) -> Path:
    """The programs in a folder of the user's."""
    folder = slurm.folder("trains")
    lay_out(folder)
    if TRAININGS["zero1"].is_there:
        # The user of the jobs may not write where it was built, and need not build it again.
        shutil.copytree(torch_extensions(), folder / "extensions")
    owner = folder.stat()
    for path in folder.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)
    return folder


def submitted(
    slurm: SlurmCluster, programs: Path, training: Training, *shape: str, each: int = 1
) -> tuple[int, str]:
    """Submit, wait, and return the exit code and all that was said."""
    if not training.is_there:
        pytest.skip(f"no {training.venv}")
    env = {name: str(programs / "extensions") for name in training.built}
    env["OMP_NUM_THREADS"] = "1"
    env |= dict(training.env)
    words = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    head = ("submit", "--wait", "--account", slurm.account, "--time", "10m", *shape)
    venv = ("--venv", training.python.parents[1])
    script = training.words(2 if "--nodes" in shape else 1, each)
    for number in range(TRIES):
        run = programs / f"{script[0]}-{len(list(programs.iterdir()))}-{number}"
        done = slurm.stoker(
            *head, "-o", run, *words, *venv, *script, cwd=programs, check=False, timeout=550
        )
        said = done.stderr + "".join(path.read_text() for path in sorted(run.rglob("*.log")))
        if OUTLIVED not in said:
            break
    return done.returncode, said


@pytest.mark.parametrize("name", TRAININGS)
def test_a_framework_trains_over_two_nodes(name: str, slurm: SlurmCluster, programs: Path) -> None:
    training, each = TRAININGS[name], GPUS_EACH.get(name, 1)
    shape = ("--gpus", str(2 * each), *TWO_NODES)
    code, said = submitted(slurm, programs, training, *shape, each=each)
    assert code == 0, said
    ranks = read_ranks(said)
    check_ranks(ranks, training, 2 * each)
    assert len({rank.host for rank in ranks}) == min(2, len(ranks))


@pytest.mark.parametrize("strategy", ["mirrored", "central"])
def test_one_process_has_all_devices_of_its_node(
    strategy: str, slurm: SlurmCluster, programs: Path
) -> None:
    training = Training("tf_mirrored", ".venv-tf", (strategy,), speaks_alone=True)
    code, said = submitted(slurm, programs, training, "--gpus", "2")
    assert code == 0, said
    check_ranks(read_ranks(said), training, 2)


def test_accelerate_without_gpus_is_more_than_one_process(
    slurm: SlurmCluster, programs: Path
) -> None:
    training = Training("accelerated")
    shape = ("--gpus", "0", "--nodes", "2", "--partition", "gpu")
    code, said = submitted(slurm, programs, training, *shape)
    assert code == 0, said
    check_ranks(read_ranks(said), training, 2)


def test_a_rank_that_dies_ends_the_job_of_all(slurm: SlurmCluster, programs: Path) -> None:
    text = (TRAINS / "ddp.py").read_text()
    dies = text.replace("x, y =", "assert rank != 1, 'no data here'\nx, y =")
    (programs / "dies.py").write_text(dies)
    code, said = submitted(slurm, programs, Training("dies"), "--gpus", "2", *TWO_NODES)
    # srun ends with 1, or with the signal by which it stopped the other.
    assert code != 0
    assert re.search(r"\d+: FAILED", said)
    assert "no data here" in said


def test_batch_sizes_that_do_not_fit_never_reach_the_queue(
    slurm: SlurmCluster, programs: Path
) -> None:
    script = ("zero.py", "--deepspeed_config", "zero1.json")
    head = ("submit", "--account", slurm.account, "--gpus", "6", *TWO_NODES)
    done = slurm.stoker(*head, "--venv", ROOT / ".venv-torch", *script, cwd=programs, check=False)
    assert done.returncode == 1
    assert "does not fit 6 ranks" in done.stderr
