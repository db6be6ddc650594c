"""Jobs of a real cluster: listed, followed over a requeue, and cancelled."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import SlurmCluster
from slurm.node import until

GPU = ("--partition=gpu", "--gres=gpu:v100:1", "--time=30")
LONG = "sleep 600"
# Two runs of it are two attempts: each says which one it is, and the second ends.
TWICE = """\
echo "attempt ${SLURM_RESTART_COUNT:-0}"
[[ ${SLURM_RESTART_COUNT:-0} == 0 ]] && sleep 600
echo "last words"
"""


@pytest.fixture
def folder(slurm: SlurmCluster) -> Iterator[Path]:
    yield slurm.folder("jobs")
    slurm.cancel_all()


def listed(slurm: SlurmCluster, folder: Path) -> dict[str, dict[str, Any]]:
    value = json.loads(slurm.stoker("jobs", "--json", cwd=folder).stdout)
    return {job["id"]: job for job in value["jobs"]}


def make_run(
    slurm: SlurmCluster, folder: Path, job: str, *, tasks: int, processes: int = 1
) -> Path:
    """Leave a run folder as `stoker submit` does."""
    run = folder / ".stoker/runs/20261115-100000-train"
    run.joinpath("logs").mkdir(parents=True)
    facts = {"id": job, "name": "train", "tasks": tasks, "processes_per_task": processes}
    run.joinpath("job.json").write_text(json.dumps({**facts, "log": str(run / "out.log")}))
    slurm.on(slurm.login, "chown", "-R", "trainee", folder / ".stoker", user="root")
    return run


class Following:
    """`stoker logs -f` in a terminal of its own, with what it has printed."""

    def __init__(self, slurm: SlurmCluster, folder: Path, *words: str) -> None:
        self.out, self.err = folder / "followed.out", folder / "followed.err"
        line = slurm.words(
            slurm.login, slurm.python, "-m", "stoker", "logs", "-f", *words, cwd=folder
        )
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(line, stdout=out, stderr=err)

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.out.read_text(), f"`{text}` is followed")

    def end(self) -> str:
        """Wait for its end, and return what it said of the job."""
        try:
            assert self.process.wait(90) == 0
        finally:
            self.process.kill()
        return self.err.read_text()


def test_a_waiting_a_running_and_an_ended_job_are_listed_with_their_facts(
    slurm: SlurmCluster, folder: Path
) -> None:
    ended = slurm.sbatch(folder, *GPU, "--job-name=ended | it's", script="exit 7")
    slurm.wait(ended, "FAILED")
    running = slurm.sbatch(folder, *GPU, "--array=1-4%1", script=LONG)
    slurm.wait(f"{running}_1", "RUNNING")
    held = slurm.sbatch(folder, *GPU, "--hold", "--job-name=held", script=LONG)
    until(lambda: ended in listed(slurm, folder), "the accounting has the ended one")
    jobs = listed(slurm, folder)
    assert jobs[ended]["name"] == "ended | it's"
    assert (jobs[ended]["state"], jobs[ended]["exit_code"]) == ("FAILED", 7)
    assert jobs[f"{running}_1"]["nodes"].startswith("r0")
    assert (jobs[f"{running}_1"]["gpus"], jobs[f"{running}_1"]["limit_s"]) == (1, 1800)
    assert jobs[f"{running}_[2-4%1]"]["reason"] == "JobArrayTaskLimit"
    assert jobs[held]["reason"] == "JobHeldUser"
    done = slurm.stoker("jobs", cwd=folder)
    assert "exit code 7" in done.stdout
    assert "next: stoker why" in done.stderr


def test_only_two_calls_are_made_whatever_is_in_the_queue(
    slurm: SlurmCluster, folder: Path
) -> None:
    tools = folder / "tools"
    tools.mkdir()
    for name in ("squeue", "sacct", "scontrol", "sstat", "sinfo", "sacctmgr"):
        tool = tools / name
        tool.write_text(
            f'#!/bin/bash\necho {name} >> "{folder}/calls"\nexec /usr/bin/{name} "$@"\n'
        )
        tool.chmod(0o755)
    slurm.sbatch(folder, *GPU, "--array=0-999", "--hold", script=LONG)
    slurm.on(slurm.login, "chmod", "777", folder, user="root")
    slurm.stoker("jobs", cwd=folder, env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert (folder / "calls").read_text().split() == ["squeue", "sacct"]


def test_without_accounting_the_queue_is_shown_with_a_note(
    slurm: SlurmCluster, folder: Path
) -> None:
    job = slurm.sbatch(folder, *GPU, script=LONG)
    slurm.wait(job, "RUNNING")
    slurm.stop_accounting()
    done = slurm.stoker("jobs", cwd=folder)
    assert job in done.stdout
    assert "note: ended jobs are unknown: there is no accounting here" in done.stderr
    slurm.on(slurm.login, "scancel", job)
    slurm.wait(job, "CANCELLED")
    assert "has ended: CANCELLED" in slurm.stoker("why", job, cwd=folder).stdout


def test_a_log_is_followed_over_a_requeue_to_the_end(slurm: SlurmCluster, folder: Path) -> None:
    options = ("--requeue", "--open-mode=append", "--job-name=twice", "--output=my-%x-%j.log")
    job = slurm.sbatch(folder, *GPU, *options, script=TWICE)
    following = Following(slurm, folder, job)
    following.wait_for("attempt 0")
    slurm.on(slurm.login, "scontrol", "requeue", job)
    said = following.end()
    printed = following.out.read_text()
    assert printed.count("attempt 0") == 1
    assert printed.endswith("attempt 1\nlast words\n")
    assert f"job {job}: COMPLETED" in said
    assert "attempt 2" in said
    assert listed(slurm, folder)[job]["attempt"] == 2


def test_a_log_that_a_requeue_cuts_is_followed_from_its_new_start(
    slurm: SlurmCluster, folder: Path
) -> None:
    options = ("--requeue", "--open-mode=truncate", "--output=cut.log")
    script = "for i in {1..50}; do echo first; done\n" + TWICE
    job = slurm.sbatch(folder, *GPU, *options, script=script)
    following = Following(slurm, folder, job)
    following.wait_for("attempt 0")
    slurm.on(slurm.login, "scontrol", "requeue", job)
    following.end()
    assert following.out.read_text().endswith("attempt 1\nlast words\n")


def test_the_log_of_a_waiting_job_is_waited_for(slurm: SlurmCluster, folder: Path) -> None:
    job = slurm.sbatch(folder, *GPU, "--hold", script="echo now")
    done = slurm.stoker("logs", job, cwd=folder)
    assert done.stdout == ""
    assert "nothing is written yet" in done.stderr
    following = Following(slurm, folder, job)
    slurm.on(slurm.login, "scontrol", "release", job)
    assert f"job {job}: COMPLETED" in following.end()
    assert following.out.read_text() == "now\n"


def test_ranks_of_several_tasks_are_merged_or_one_is_chosen(
    slurm: SlurmCluster, folder: Path
) -> None:
    run = folder / ".stoker/runs/20261115-100000-train"
    script = f"echo begins; srun --output={run}/logs/%t.log bash -c 'echo hello of $SLURM_PROCID'"
    options = ("--partition=gpu", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:v100:2")
    job = slurm.sbatch(folder, *options, f"--output={run}/out.log", "--hold", script=script)
    make_run(slurm, folder, job, tasks=4)
    slurm.on(slurm.login, "scontrol", "release", job)
    slurm.wait(job, "COMPLETED")
    ranks = "".join(f"rank {rank} | hello of {rank}\n" for rank in range(4))
    for name in (job, run.name, ()):
        words = (name,) if name else ()
        assert slurm.stoker("logs", *words, cwd=folder).stdout == f"script | begins\n{ranks}"
    assert slurm.stoker("logs", job, "--rank", "2", cwd=folder).stdout == "hello of 2\n"


def test_the_log_of_an_element_is_its_own(slurm: SlurmCluster, folder: Path) -> None:
    job = slurm.sbatch(folder, *GPU, "--array=3-4", script="echo element $SLURM_ARRAY_TASK_ID")
    for element in (3, 4):
        slurm.wait(f"{job}_{element}", "COMPLETED")
        assert slurm.stoker("logs", f"{job}_{element}", cwd=folder).stdout == f"element {element}\n"


def test_one_job_is_cancelled_at_once_and_several_after_a_yes(
    slurm: SlurmCluster, folder: Path
) -> None:
    one, two, three = (slurm.sbatch(folder, *GPU, "--hold", script=LONG) for _ in range(3))
    done = slurm.stoker("cancel", one, cwd=folder)
    assert f"cancelled: {one} sbatch (PENDING)" in done.stdout
    assert slurm.state_of(one) == "CANCELLED"
    done = slurm.stoker("cancel", two, three, cwd=folder, check=False)
    assert done.returncode == 2
    assert "2 jobs would be cancelled" in done.stderr
    assert slurm.state_of(two) == slurm.state_of(three) == "PENDING"
    slurm.stoker("cancel", two, three, "--yes", cwd=folder)
    assert slurm.state_of(two) == slurm.state_of(three) == "CANCELLED"
    assert "has ended already" in slurm.stoker("cancel", two, cwd=folder).stderr


def test_one_element_of_an_array_is_cancelled_and_the_others_stay(
    slurm: SlurmCluster, folder: Path
) -> None:
    job = slurm.sbatch(folder, *GPU, "--array=0-3", "--hold", script=LONG)
    slurm.stoker("cancel", f"{job}_2", cwd=folder)

    def waiting() -> list[str]:
        jobs = listed(slurm, folder).values()
        return [each["id"] for each in jobs if each["state"] == "PENDING"]

    until(lambda: waiting() == [f"{job}_[0-1,3]"], "three elements are left")
    slurm.stoker("cancel", job, cwd=folder)
    until(lambda: not waiting(), "none is left")


def test_somebody_elses_job_is_never_cancelled(slurm: SlurmCluster, folder: Path) -> None:
    home = slurm.folder("colleague", user="colleague")
    theirs = slurm.sbatch(home, *GPU, "--hold", script=LONG, user="colleague")
    mine = slurm.sbatch(folder, *GPU, "--hold", script=LONG)
    done = slurm.stoker("cancel", mine, theirs, "--yes", cwd=folder, check=False)
    assert done.returncode == 1
    assert f"job {theirs} is not yours" in done.stderr
    assert slurm.state_of(mine) == slurm.state_of(theirs) == "PENDING"


def test_a_controller_that_is_away_is_told_in_bounded_time(
    slurm: SlurmCluster, folder: Path
) -> None:
    slurm.stop_controller()
    done = slurm.stoker("jobs", cwd=folder, check=False, timeout=300)
    slurm.start_controller()
    assert done.returncode == 1
    assert "error: Slurm does not answer" in done.stderr
