"""The cluster itself: what other tests rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.cluster import SlurmCluster
from slurm.node import until

GPU = ("--partition=gpu", "--gres=gpu:1")


def srun(slurm: SlurmCluster, *words: str) -> list[str]:
    account = f"--account={slurm.account}"
    return sorted(slurm.on(slurm.login, "srun", account, *words).stdout.splitlines())


def test_each_node_has_a_name_and_an_address_of_its_own(slurm: SlurmCluster) -> None:
    shown = "echo $(hostname) $(hostname --all-ip-addresses)"
    assert srun(slurm, "--partition=gpu", "--nodes=4", "bash", "-c", shown) == [
        "r01g01 10.99.0.11",
        "r01g02 10.99.0.12",
        "r02g01 10.99.0.21",
        "r02g02 10.99.0.22",
    ]


def test_each_node_has_a_tmp_of_its_own_and_a_folder_that_all_share(slurm: SlurmCluster) -> None:
    folder = slurm.folder("shared-and-own")
    for node in slurm.nodes:
        slurm.on(node, "touch", f"/tmp/{node}", folder / node)
    assert {path.name for path in folder.iterdir()} == set(slurm.nodes)
    for node in slurm.nodes:
        assert (
            slurm.on(node, "find", "/tmp", "-name", "r0?g0?", "-maxdepth", "1").stdout
            == f"/tmp/{node}\n"
        )
        slurm.on(node, "rm", f"/tmp/{node}")


def test_a_job_that_asks_for_nvme_gets_a_folder_on_each_node_that_is_gone_after_it(
    slurm: SlurmCluster,
) -> None:
    asked = ("--partition=gpu", "--nodes=2", "--gres=gpu:1,nvme:100")
    write = 'hostname > "$LOCAL_SCRATCH/name" && cat "$LOCAL_SCRATCH/name" && echo "$LOCAL_SCRATCH"'
    *nodes, scratch, again = sorted(
        srun(slurm, *asked, "bash", "-c", write), key=lambda s: s[0] == "/"
    )
    assert len(set(nodes)) == 2
    assert scratch == again
    assert srun(slurm, *GPU, "bash", "-c", 'echo "${LOCAL_SCRATCH-none}"') == ["none"]
    for node in nodes:
        assert slurm.on(node, "ls", "/run/nvme").stdout == ""


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--partition=gpu", "--gres=gpu:5"), "Requested node configuration is not available"),
        (("--partition=gpu", "--gres=gpu:h100:1"), "Requested node configuration is not available"),
        (("--partition=gpumedium", "--gres=gpu:v100:1"), "Requested node configuration is not available"),
        (("--partition=cpu", "--gres=gpu:1"), "Requested node configuration is not available"),
        (("--partition=gpu", "--gres=gpu:1,nvme:9000"), "Requested node configuration is not available"),
        (("--partition=gpu", "--mem=900G"), "Memory specification can not be satisfied"),
        (("--partition=gputest", "--gres=gpu:1", "--time=16"), "Requested time limit is invalid"),
        (("--partition=gpusmall", "--gres=gpu:a100:3"), "Job violates accounting/QOS policy"),
        (("--partition=nowhere",), "invalid partition specified"),
        (("--account=project_2005678",), "Invalid account"),
    ],
)  # fmt: skip
def test_slurm_itself_refuses_what_the_site_does_not_have(
    slurm: SlurmCluster, options: tuple[str, ...], complaint: str
) -> None:
    words = ("sbatch", f"--account={slurm.account}", *options, "--wrap=true")
    done = slurm.on(slurm.login, *words, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_a_job_without_an_account_is_refused(slurm: SlurmCluster) -> None:
    done = slurm.on(slurm.login, "sbatch", "--wrap=true", check=False)
    assert done.returncode == 1
    assert "add --account=PROJECT" in done.stderr


def test_tasks_see_the_gpus_they_were_given(slurm: SlurmCluster) -> None:
    shown = "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    asked = ("--partition=gpu", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:v100:2")
    assert srun(slurm, *asked, "bash", "-c", shown) == ["r01g01 0,1"] * 2 + ["r01g02 0,1"] * 2
    each = ("--partition=gpu", "--ntasks=2", "--gpus-per-task=1", "--nodes=1")
    assert [line.split()[1] for line in srun(slurm, *each, "bash", "-c", shown)] == ["0", "1"]


def test_the_user_can_run_stoker_on_the_login_node(slurm: SlurmCluster) -> None:
    assert "stoker" in slurm.stoker("--version", cwd=slurm.folder("version")).stdout


def test_accounting_keeps_how_a_job_ended(slurm: SlurmCluster) -> None:
    folder = slurm.folder("ended")
    job = slurm.sbatch(folder, script="srun true; exit 3")
    assert slurm.wait(job, "FAILED") == "FAILED"
    words = ("sacct", "--noheader", "--parsable2", "--format=JobID,State,ExitCode", "--jobs", job)
    expected = {f"{job}|FAILED|3:0", f"{job}.batch|FAILED|3:0", f"{job}.0|COMPLETED|0:0"}
    until(
        lambda: set(slurm.on(slurm.login, *words).stdout.splitlines()) == expected,
        "sacct has the job and its steps",
    )


def test_jobs_go_on_while_the_controller_is_down(slurm: SlurmCluster) -> None:
    folder = slurm.folder("no-controller")
    job = slurm.sbatch(folder, script="until [[ -e go ]]; do sleep 0.1; done")
    slurm.wait(job, "RUNNING")
    slurm.stop_controller()
    asked = slurm.on(slurm.login, "squeue", check=False)
    assert asked.returncode == 1
    assert "Unable to contact slurm controller" in asked.stderr
    (folder / "go").touch()
    slurm.start_controller()
    assert slurm.wait(job, "COMPLETED") == "COMPLETED"


def test_jobs_run_while_the_accounting_is_down(slurm: SlurmCluster) -> None:
    slurm.stop_accounting()
    asked = slurm.on(slurm.login, "sacct", check=False)
    assert asked.returncode == 1
    assert "Connection refused" in asked.stderr
    job = slurm.sbatch(slurm.folder("no-accounting"), script="true")
    assert slurm.wait(job, "COMPLETED") == "COMPLETED"


def test_a_site_without_accounting_can_be_made(slurm: SlurmCluster) -> None:
    with slurm.without_accounting():
        asked = slurm.on(slurm.login, "sacct", check=False)
        assert asked.returncode == 1
        assert "accounting storage is disabled" in asked.stderr
        job = slurm.sbatch(slurm.folder("without-accounting"), script="true")
        assert slurm.wait(job, "COMPLETED") == "COMPLETED"
    assert slurm.on(slurm.login, "sacct").stdout


def test_a_job_in_the_low_partition_makes_room_and_waits_to_start_again(
    slurm: SlurmCluster,
) -> None:
    folder = slurm.folder("preempted")
    low = slurm.sbatch(
        folder,
        "--partition=preempt", "--nodes=4", "--exclusive", "--requeue", "--output=low.log",
        script="trap 'echo told; exit 0' TERM; sleep 600 & wait",
    )  # fmt: skip
    slurm.wait(low, "RUNNING")
    high = slurm.sbatch(folder, *GPU, script="sleep 600")
    slurm.wait(high, "RUNNING")
    assert slurm.wait(low, "PENDING") == "PENDING"


def test_a_job_that_would_run_into_a_maintenance_waits(slurm: SlurmCluster) -> None:
    slurm.update(
        "create", "reservation", "ReservationName=service", "StartTime=now+10minutes",
        "Duration=60", "Users=root", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
    try:
        job = slurm.sbatch(slurm.folder("service"), *GPU, "--time=30", script="true")
        reason = slurm.wait_reason(job, "ReqNodeNotAvail, Reserved for maintenance", "Resources")
        assert reason.startswith("ReqNodeNotAvail")
        short = slurm.sbatch(slurm.folder("service"), *GPU, "--time=2", script="true")
        assert slurm.wait(short, "COMPLETED") == "COMPLETED"
    finally:
        slurm.cancel_all()
        slurm.update("delete", "ReservationName=service")


def test_the_end_of_a_job_can_be_moved_so_that_its_warning_comes_soon(slurm: SlurmCluster) -> None:
    folder = slurm.folder("limit")
    script = "trap 'touch warned' USR1; touch ready; sleep 600 & wait; wait"
    job = slurm.sbatch(folder, "--signal=B:USR1@20", "--time=9", script=script)
    until((folder / "ready").exists, "the trap is set")
    slurm.end_in(job, 45)
    until((folder / "warned").exists, "the warning came")
    slurm.cancel_all()


def test_a_job_that_takes_more_memory_than_it_asked_for_is_stopped(slurm: SlurmCluster) -> None:
    if not slurm.has_cages:
        pytest.skip("no control groups of version 1 here: Slurm does not see what ran out")
    fill = f"{slurm.python} -c 'held = bytes(1) * (300 << 20)'"
    job = slurm.sbatch(slurm.folder("memory"), "--mem=100M", script=fill)
    assert slurm.wait(job, "OUT_OF_MEMORY") == "OUT_OF_MEMORY"


def test_the_end_of_a_job_finds_processes_that_have_left_it(slurm: SlurmCluster) -> None:
    if not slurm.has_cages:
        pytest.skip("no control groups of version 1 here: Slurm finds children only")
    folder = slurm.folder("left")
    script = "(setsid bash -c 'echo $$ > pid; sleep 600' &); sleep 600"
    job = slurm.sbatch(folder, "--nodelist=r03c01", script=script)
    until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "it has left")
    pid = (folder / "pid").read_text().strip()
    assert slurm.on("r03c01", "test", "-e", f"/proc/{pid}", check=False).returncode == 0
    slurm.on(slurm.login, "scancel", job)
    slurm.wait(job, "CANCELLED")
    words = ("test", "-e", f"/proc/{pid}")
    until(lambda: slurm.on("r03c01", *words, check=False).returncode == 1, "it is gone")


ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(number)
print(f"{dist.get_rank()} of {dist.get_world_size()}: {number.item():.0f}", flush=True)
dist.destroy_process_group()
"""


def test_torch_reduces_over_two_nodes_with_two_tasks_each(slurm: SlurmCluster) -> None:
    folder = slurm.folder("all-reduce")
    (folder / "reduce.py").write_text(ALL_REDUCE)
    script = f"""
    export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export MASTER_PORT=29517 WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=1
    srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec {slurm.torch} reduce.py'
    """
    asked = ("--partition=gpu", "--gres=gpu:2", "--nodes=2", "--ntasks-per-node=2", "--mem=8G")
    job = slurm.sbatch(folder, *asked, "--output=out.log", script=script)
    slurm.wait(job, "COMPLETED", timeout=120)
    lines = re.findall(r"(?m)^\d of .*$", (folder / "out.log").read_text())
    assert sorted(lines) == [f"{rank} of 4: 10" for rank in range(4)]


def test_a_second_cluster_stands_beside_it_and_dies_with_who_started_it(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    second = SlurmCluster(tmp_path / "second")
    words: list[str | Path] = [
        sys.executable,
        Path(__file__).parent,
        "--state",
        second.state,
        "shell",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as starter:
        assert starter.stderr is not None
        assert any(line.startswith(b"up in") for line in starter.stderr)
        processes = second.processes()
        assert len(processes) == 6
        starter.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "they are gone")
    second.down()
    assert not second.state.exists()
    assert slurm.on(slurm.login, "scontrol", "ping").returncode == 0
