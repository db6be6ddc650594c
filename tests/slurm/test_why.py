"""Why jobs wait: every reason here is Slurm's own, of a job that really waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import SlurmCluster
from slurm.node import until

GPU = ("--partition=gpu", "--gres=gpu:v100:1", "--time=60")
WHOLE = ("--partition=gpu", "--nodes=2", "--gres=gpu:v100:4", "--time=60")
LONG = "sleep 600"

Submit = Callable[..., str]


@pytest.fixture
def folder(slurm: SlurmCluster) -> Path:
    return slurm.folder("why")


@pytest.fixture
def submit(slurm: SlurmCluster, folder: Path) -> Iterator[Submit]:
    """Submit a job that runs until it is cancelled; every one is, at the end."""

    def send(*options: str, script: str = LONG, user: str = "trainee") -> str:
        return slurm.sbatch(folder, *options, script=script, user=user)

    yield send
    slurm.cancel_all()


def why(slurm: SlurmCluster, folder: Path, job: str, *options: str) -> tuple[str, dict[str, Any]]:
    """Return what is said of a job, as text on one line and as JSON."""
    text = slurm.stoker("why", job, *options, cwd=folder).stdout
    value = json.loads(slurm.stoker("why", job, "--json", *options, cwd=folder).stdout)
    return " ".join(text.split()), value


def wait_unavailable(slurm: SlurmCluster, job: str) -> None:
    """Wait until Slurm says that a node is not available; it adds which, or for what."""
    until(
        lambda: slurm.reason_of(job).startswith("ReqNodeNotAvail"),
        f"job {job} waits for ReqNodeNotAvail",
    )


def wait_accounted(slurm: SlurmCluster, job: str, state: str) -> None:
    """Wait until the accounting has a job's end, which comes some seconds after the controller's."""
    words = ("sacct", "-n", "-P", "--allocations", "--format=State", "--jobs", job)
    until(
        lambda: slurm.on(slurm.login, *words).stdout.startswith(state),
        f"the accounting has the end of {job}",
    )


@contextmanager
def limited(slurm: SlurmCluster, *words: str, undone: str) -> Iterator[None]:
    """Set a limit for a while: `user trainee set MaxJobs=1`; -1 takes it away."""
    *where, _ = words
    slurm.manage("modify", *words)
    try:
        yield
    finally:
        slurm.manage("modify", *where, undone)


def test_resources_and_priority_come_with_what_is_free_and_who_is_ahead(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.wait(submit(*WHOLE), "RUNNING")
    first, second = submit(*WHOLE, "--nice=0"), submit(*WHOLE, "--nice=500")
    slurm.wait_reason(first, "Resources")
    slurm.wait_reason(second, "Priority")
    text, value = why(slurm, folder, first)
    assert "it is the first in line" in text
    assert "asks 2 nodes, 2 tasks, 8 GPUs" in text
    assert value["room"] == {"what": "v100 GPU", "total": 8, "free": 0, "out": 0}
    text, value = why(slurm, folder, second)
    assert value["reason"] == "Priority"
    assert value["ahead"] == 1
    assert "1 job in gpu, which asks for 8 GPUs" in text


def test_a_smaller_request_that_would_start_at_once_is_found_by_asking_slurm(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.wait(submit(*GPU), "RUNNING")
    job = submit(*WHOLE)
    slurm.wait_reason(job, "Resources")
    text, value = why(slurm, folder, job)
    assert [each["change"] for each in value["earlier"]] == ["1 node"]
    assert "with 1 node it would start at" in text
    assert ": --nodes=1 --ntasks=1" in text
    assert value["tried"] <= 5
    assert why(slurm, folder, job, "--no-try")[1]["tried"] == 0


def test_a_dependency_names_the_job_and_how_it_stands(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    before = submit(*GPU)
    slurm.wait(before, "RUNNING")
    job = submit(*GPU, f"--dependency=afterok:{before}")
    slurm.wait_reason(job, "Dependency")
    text, _ = why(slurm, folder, job)
    assert f"afterok job {before}, which is RUNNING (unfulfilled)" in text
    slurm.on(slurm.login, "scancel", before)
    slurm.wait_reason(job, "DependencyNeverSatisfied")
    text, value = why(slurm, folder, job)
    assert value["is_never"]
    assert "it will never start" in text
    assert f"afterok job {before}, which is CANCELLED" in text


def test_held_jobs_say_who_held_them(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    mine, theirs = submit(*GPU, "--hold"), submit(*GPU, "--begin=now+1hour")
    slurm.update("hold", theirs)
    slurm.wait_reason(mine, "JobHeldUser")
    slurm.wait_reason(theirs, "JobHeldAdmin")
    text, _ = why(slurm, folder, mine)
    assert "you held it (JobHeldUser) asks 1 node, 1 task, 1 GPU" in text
    assert text.endswith(f"fix scontrol release {mine}")
    text, _ = why(slurm, folder, theirs)
    assert "an administrator held it" in text


def test_a_job_for_later_says_when(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    job = submit(*GPU, "--begin=now+1hour")
    slurm.wait_reason(job, "BeginTime")
    text, _ = why(slurm, folder, job)
    assert "it is not to begin before a time that was set" in text
    assert "it begins at 20" in text


def test_elements_of_an_array_wait_for_their_own_limit(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    job = submit(*GPU, "--array=0-5%2")
    slurm.wait_reason(f"{job}_5", "JobArrayTaskLimit")
    for asked in (job, f"{job}_5"):
        text, value = why(slurm, folder, asked)
        assert value["reason"] == "JobArrayTaskLimit"
        assert "2 at once are allowed" in text


def test_a_drained_node_that_the_job_insists_on_is_named(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.update("update", "NodeName=r01g02", "State=DRAIN", "Reason=test")
    job = submit(*GPU, "--nodelist=r01g02")
    wait_unavailable(slurm, job)
    text, value = why(slurm, folder, job)
    assert "is down, drained, or kept for a reservation" in text
    assert "r01g02 is drained" in text
    assert value["room"]["out"] == 4


def test_maintenance_that_begins_before_the_job_could_end_is_told(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.update(
        "create", "reservation", "ReservationName=service", "StartTime=now+30minutes",
        "Duration=60", "Flags=MAINT,IGNORE_JOBS", "Nodes=ALL", "Users=root",
    )  # fmt: skip
    try:
        job = submit(*GPU)
        wait_unavailable(slurm, job)
        text, value = why(slurm, folder, job)
    finally:
        slurm.update("delete", "ReservationName=service")
    assert "for maintenance (service) from 20" in text
    assert value["reservations"][0]["is_maintenance"]
    assert value["earlier"][0]["change"] == "a time limit that ends before the reservation"
    assert "it would start at" in text


def test_a_limit_of_the_association_comes_with_its_number(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    with limited(slurm, "user", "trainee", "set", "MaxJobs=1", undone="MaxJobs=-1"):
        slurm.wait(submit(*GPU), "RUNNING")
        job = submit(*GPU)
        slurm.wait_reason(job, "AssocMaxJobsLimit")
        text, _ = why(slurm, folder, job)
    assert "a limit of its account holds it back (AssocMaxJobsLimit)" in text
    assert f"MaxJobs 1 of user trainee in account {slurm.account}; under it run 1 job" in text


def test_a_limit_of_the_account_on_gpus_comes_with_its_number_and_what_is_used(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    where = ("account", slurm.account, "set")
    with limited(slurm, *where, "GrpTRES=gres/gpu=2", undone="GrpTRES=gres/gpu=-1"):
        slurm.wait(submit("--partition=gpu", "--gres=gpu:v100:2", "--time=9"), "RUNNING")
        job = submit(*GPU)
        slurm.wait_reason(job, "AssocGrpGRES")
        text, value = why(slurm, folder, job)
    assert value["limits"][0]["value"] == "gres/gpu=2"
    assert f"GrpTRES gres/gpu=2 of account {slurm.account}" in text
    assert "1 job with 2 GPUs" in text


@pytest.mark.parametrize(
    ("limit", "undone", "reason", "told"),
    [
        ("MaxJobsPerUser=1", "MaxJobsPerUser=-1", "QOSMaxJobsPerUserLimit", "MaxJobsPU 1"),
        ("MaxTRESPerUser=gres/gpu=1", "MaxTRESPerUser=gres/gpu=-1", "QOSMaxGRESPerUser", "MaxTRESPU gres/gpu=1"),
        ("GrpTRES=cpu=1", "GrpTRES=cpu=-1", "QOSGrpCpuLimit", "GrpTRES cpu=1"),
    ],
)  # fmt: skip
def test_a_limit_of_the_qos_comes_with_its_number(
    slurm: SlurmCluster, folder: Path, submit: Submit, limit: str, undone: str, reason: str, told: str
) -> None:  # fmt: skip
    with limited(slurm, "qos", "normal", "set", limit, undone=undone):
        slurm.wait(submit(*GPU), "RUNNING")
        job = submit(*GPU)
        slurm.wait_reason(job, reason)
        text, _ = why(slurm, folder, job)
    assert f"a limit of its QOS holds it back ({reason})" in text
    assert f"{told} of QOS normal; under it run 1 job with 1 GPU and 1 CPU" in text


def test_a_partition_that_starts_nothing_is_told(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.update("update", "PartitionName=gpumedium", "State=DOWN")
    try:
        job = submit("--partition=gpumedium", "--gres=gpu:a100:1")
        slurm.wait_reason(job, "PartitionDown")
        text, _ = why(slurm, folder, job)
    finally:
        slurm.update("update", "PartitionName=gpumedium", "State=UP")
    assert "starts none for now" in text
    assert "gpumedium: State DOWN" in text


def test_a_partition_whose_limit_was_lowered_says_both_times(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    job = submit("--partition=gpumedium", "--gres=gpu:a100:1", "--time=120", "--hold")
    slurm.update("update", "PartitionName=gpumedium", "MaxTime=60")
    try:
        slurm.on(slurm.login, "scontrol", "release", job)
        slurm.wait_reason(job, "PartitionTimeLimit")
        text, value = why(slurm, folder, job)
    finally:
        slurm.update("update", "PartitionName=gpumedium", "MaxTime=1-12:00:00")
    assert "it asks for 02:00:00, and gpumedium allows 1:00:00" in text
    assert value["is_never"]


def test_a_partition_whose_nodes_are_too_few_is_told(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    job = submit("--partition=gpumedium", "--nodes=2", "--gres=gpu:a100:1", "--hold")
    slurm.update("update", "PartitionName=gpumedium", "MaxNodes=1")
    try:
        slurm.on(slurm.login, "scontrol", "release", job)
        slurm.wait_reason(job, "PartitionNodeLimit")
        text, value = why(slurm, folder, job)
    finally:
        slurm.update("update", "PartitionName=gpumedium", "MaxNodes=2")
    assert "gpumedium: State UP, MaxNodes 1" in text
    assert value["is_never"]


def test_licences_say_how_many_are_taken(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    slurm.wait(submit(*GPU, "--licenses=solver:2"), "RUNNING")
    job = submit(*GPU, "--licenses=solver:1")
    slurm.wait_reason(job, "Licenses")
    text, _ = why(slurm, folder, job)
    assert "it asks for solver:1" in text
    assert "solver: 2 of 2 taken" in text


def test_a_reservation_that_has_not_begun_is_told(
    slurm: SlurmCluster, folder: Path, submit: Submit
) -> None:
    slurm.update(
        "create", "reservation", "ReservationName=course", "StartTime=now+2hours",
        "Duration=60", "Nodes=r01g01", "Users=trainee",
    )  # fmt: skip
    try:
        job = submit(*GPU, "--reservation=course")
        slurm.wait_reason(job, "Reservation")
        text, _ = why(slurm, folder, job)
    finally:
        slurm.cancel_all()
        slurm.update("delete", "ReservationName=course")
    assert "its reservation has not begun yet" in text
    assert "it asks for the reservation course" in text


def test_a_running_job_does_not_wait(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    job = submit(*GPU)
    slurm.wait(job, "RUNNING")
    text, value = why(slurm, folder, job)
    assert f"job {job} sbatch does not wait: it is RUNNING since 20" in text
    assert value["state"] == "RUNNING"


def test_an_ended_job_says_how(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    failed, good, lost = (
        submit(*GPU, script="exit 3"),
        submit(*GPU, script="true"),
        submit(*GPU, script="no-such-command-here"),
    )
    slurm.wait(failed, "FAILED")
    slurm.wait(good, "COMPLETED")
    slurm.wait(lost, "FAILED")
    text, value = why(slurm, folder, failed)
    assert "has ended: FAILED, exit code 3" in text
    assert value["exit_code"] == 3
    assert "it ended well" in why(slurm, folder, good)[0]
    assert "a command of the script was not found" in why(slurm, folder, lost)[0]


def test_a_cancelled_job_says_who_did_it(slurm: SlurmCluster, folder: Path, submit: Submit) -> None:
    mine, theirs = submit(*GPU), submit(*GPU)
    slurm.wait(mine, "RUNNING")
    slurm.wait(theirs, "RUNNING")
    slurm.on(slurm.login, "scancel", mine)
    slurm.on(slurm.login, "scancel", theirs, user="root")
    for job, who in ((mine, "you"), (theirs, "root")):
        slurm.wait(job, "CANCELLED")
        wait_accounted(slurm, job, "CANCELLED")
        assert f"it was cancelled by {who}" in why(slurm, folder, job)[0]


def test_a_job_that_nobody_knows_is_an_error_with_a_fix(slurm: SlurmCluster, folder: Path) -> None:
    done = slurm.stoker("why", "999999", cwd=folder, check=False)
    assert done.returncode == 1
    assert "there is no job 999999" in done.stderr
    assert "fix: stoker jobs --all" in done.stderr
