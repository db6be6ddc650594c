"""A profile is learnt from a real Slurm, and what is planned with it a real Slurm accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import SlurmCluster

SCRIPT = "import torch.distributed as dist\ndist.init_process_group()\n"


@pytest.fixture(scope="module")
def detected(slurm: SlurmCluster) -> Path:
    """A folder whose stoker.toml is the detected cluster."""
    folder = slurm.folder("detected")
    (folder / "train.py").write_text(SCRIPT)
    slurm.stoker("cluster", "detect", "-o", "stoker.toml", cwd=folder)
    return folder


def facts(slurm: SlurmCluster, folder: Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(
        slurm.stoker("cluster", "show", "tiny", "--json", cwd=folder).stdout
    )
    return shown


def test_the_cluster_is_learnt_as_it_is(slurm: SlurmCluster, detected: Path) -> None:
    tiny = facts(slurm, detected)
    nodes = {
        name: (gpu["per_node"], gpu["cpus_per_node"], gpu["mem_gib_per_node"], gpu["nodes"])
        for name, gpu in tiny["gpu"].items()
    }
    assert nodes == {"v100": (4, 40, 373, 2), "a100": (4, 128, 478, 2)}
    queues = {name: queue["time"] for name, queue in tiny["partition"].items()}
    assert queues["gpu"] == "3-00:00:00"
    assert queues["gpusmall"] == "1-12:00:00"
    assert tiny["partition"]["gputest"]["test"]
    assert tiny["partition"]["cpu"]["kind"] == "cpu"
    # The QOS of the partition, not the partition itself, says so.
    assert tiny["partition"]["gpusmall"]["max_gpus"] == 2
    assert (tiny["disk"]["gres"], tiny["disk"]["max_gb"]) == ("nvme", 3800)
    assert tiny["slurm"]["account"] == "required"
    assert tiny["slurm"]["account_example"] == slurm.account


@pytest.mark.parametrize(
    ("partition", "gpu", "gpus"),
    [
        ("gpu", "v100", 1), ("gpu", "v100", 8), ("gpu", "a100", 2), ("gpu", "a100", 8),
        ("gputest", "v100", 8), ("gputest", "a100", 4), ("gpusmall", "a100", 2), ("gpumedium", "a100", 8),
        ("preempt", "v100", 4), ("cpu", None, 0),
    ],
)  # fmt: skip
def test_slurm_accepts_a_plan_for_every_partition(
    slurm: SlurmCluster, detected: Path, partition: str, gpu: str | None, gpus: int
) -> None:
    kind = ("--gpu", gpu) if gpu else ()
    words = ("--partition", partition, *kind, "--gpus", str(gpus), "--account", slurm.account)
    plan = slurm.stoker(
        "plan", "--cluster", "tiny", *words, "--time", "10m", "--script", "train.py", cwd=detected
    )
    done = slurm.on(slurm.login, "sbatch", "--test-only", cwd=detected, stdin=plan.stdout)
    assert f"in partition {partition}" in done.stderr


@pytest.mark.parametrize(
    ("partition", "gpu", "gpus"),
    [("gpu", "v100", 12), ("gpusmall", "a100", 4), ("gpu", "a100", 12)],
)
def test_what_slurm_would_refuse_is_refused_before(
    slurm: SlurmCluster, detected: Path, partition: str, gpu: str, gpus: int
) -> None:
    words = ("--partition", partition, "--gpu", gpu, "--gpus", str(gpus))
    done = slurm.stoker("plan", "--cluster", "tiny", *words, "train.py", cwd=detected, check=False)
    assert done.returncode == 1
    assert "fix:" in done.stderr


def test_a_kept_profile_is_found_by_its_name_and_not_overwritten_by_accident(
    slurm: SlurmCluster,
) -> None:
    folder = slurm.folder("kept")
    home = {"XDG_CONFIG_HOME": str(folder)}
    kept = folder / "stoker/clusters/tiny.toml"
    done = slurm.stoker("cluster", "detect", "--save", cwd=folder, env=home)
    assert f"wrote {kept}" in done.stderr
    assert done.stderr.endswith("next: stoker plan --cluster tiny --gpus 1 train.py\n")
    (folder / "train.py").write_text(SCRIPT)
    plan = slurm.stoker("plan", "--cluster", "tiny", "train.py", cwd=folder, env=home)
    assert "sinfo, scontrol show node" in plan.stdout
    kept.write_text(kept.read_text() + "# mine\n")
    again = slurm.stoker("cluster", "detect", "--save", cwd=folder, env=home, check=False)
    assert (again.returncode, kept.read_text().endswith("# mine\n")) == (1, True)
    slurm.stoker("cluster", "detect", "--save", "--force", cwd=folder, env=home)
    assert "# mine" not in kept.read_text()


def test_while_the_accounting_is_down_the_limits_of_the_qos_are_unknown(
    slurm: SlurmCluster,
) -> None:
    folder = slurm.folder("no-limits")
    slurm.stop_accounting()
    done = slurm.stoker("cluster", "detect", "--json", cwd=folder)
    told = json.loads(done.stdout)
    unknown = {each["fact"] for each in told["unknown"]}
    assert {"slurm.account_example", "partition.gpusmall.max_gpus"} <= unknown
    assert told["cluster"]["partition"]["gpusmall"]["max_gpus"] == 4


def test_a_node_that_is_down_is_still_counted(slurm: SlurmCluster) -> None:
    folder = slurm.folder("one-down")
    slurm.update("update", "NodeName=r01g02", "State=DOWN", "Reason=a test")
    try:
        told = json.loads(slurm.stoker("cluster", "detect", "--json", cwd=folder).stdout)
    finally:
        slurm.update("update", "NodeName=r01g02", "State=RESUME")
    assert told["cluster"]["gpu"]["v100"]["nodes"] == 2
