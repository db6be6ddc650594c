"""`stoker pack --slurm` on a real Slurm: shares on nodes, a job that joins them, one that is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm.cluster import USERS, SlurmCluster


@pytest.fixture(scope="module", autouse=True)
def profile(slurm: SlurmCluster) -> None:
    """Detect the cluster, as a user would first."""
    slurm.stoker("cluster", "detect", "--save", "--force", cwd=slurm.shared)


def make(folder: Path, count: int = 30) -> Path:
    source = folder / "src"
    source.mkdir()
    for each in range(count):
        (source / f"{each:02d}.txt").write_bytes(b"%d" % each * 50 * each)
    for path in (source, *source.iterdir()):
        os.chown(path, USERS["trainee"], USERS["trainee"])
    return source


def test_an_array_of_three_packs_and_the_last_job_joins(slurm: SlurmCluster) -> None:
    folder = slurm.folder("pack")
    make(folder)
    words = ("--slurm", "3", "--time", "10m", "--account", slurm.account, "--json")
    done = slurm.stoker("pack", "src", "out", *words, cwd=folder)
    jobs = json.loads(done.stdout)
    slurm.wait(jobs["join"], "COMPLETED", timeout=120)
    assert slurm.stoker("verify", "out", cwd=folder).stdout == "whole: out, 30 samples\n"
    assert not (folder / "out/.stoker-pack").exists()


def test_a_share_that_failed_is_packed_later(slurm: SlurmCluster) -> None:
    folder = slurm.folder("pack-lost")
    source = make(folder)
    lost = source / "29.txt"
    words = (
        "--slurm",
        "3",
        "--time",
        "10m",
        "--account",
        slurm.account,
        "--json",
        "--shuffle",
        "1",
    )
    slurm.on("login1", "chmod", "000", lost, cwd=folder)
    jobs = json.loads(slurm.stoker("pack", "src", "out", *words, cwd=folder).stdout)
    slurm.wait(jobs["array"], "FAILED", "COMPLETED", timeout=120)
    assert not (folder / "out/index.stoker").exists()
    slurm.on("login1", "chmod", "644", lost, cwd=folder)
    slurm.cancel_all()
    jobs = json.loads(slurm.stoker("pack", "src", "out", *words, cwd=folder).stdout)
    slurm.wait(jobs["join"], "COMPLETED", timeout=120)
    assert slurm.stoker("verify", "out", cwd=folder).stdout == "whole: out, 30 samples\n"
