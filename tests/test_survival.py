"""A job keeps its results, and asks to run again when its time is nearly up."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import FAKES, job_environ
from stoker.cluster.load import load_cluster
from stoker.plan.make import make_plan
from stoker.plan.script import render_script
from stoker.plan.spec import Spec, Staging, Survival


class Job:
    """A batch script that runs under bash with stand-ins for Slurm; signals can be sent to it."""

    def __init__(self, folder: Path, spec: Spec, **environ: str) -> None:
        self.folder = folder
        script = folder / "job.sh"
        script.write_text(render_script(make_plan(spec, load_cluster("puhti"), folder)))
        self.ready = folder / "ready"
        os.mkfifo(self.ready)
        base = job_environ(folder, FAKE_READY=str(self.ready), **environ)
        path = f"{FAKES / 'signals'}:{base['PATH']}"
        self.process = subprocess.Popen(
            ["bash", str(script)], cwd=folder, env={**base, "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def wait_until_training(self) -> None:
        assert self.ready.read_text() == "running\n"

    def end(self) -> int:
        _, self.stderr = self.process.communicate(timeout=60)
        return self.process.returncode

    @property
    def requeued(self) -> str:
        log = self.folder / "argv.log.scontrol"
        return log.read_text() if log.exists() else ""


def spec(folder: Path, *, requeue: bool = False, results: bool = True) -> Spec:
    return Spec(
        ("train.py",), gpus=1, time_s=3600, framework="plain",
        staging=Staging(results=str(folder / "home results")) if results else Staging(),
        survival=Survival(requeue=requeue),
    )  # fmt: skip


def test_results_come_home_at_the_end(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path), FAKE_TRAINING="finishes")
    job.wait_until_training()
    assert job.end() == 0
    assert (tmp_path / "home results" / "model.pt").read_text() == "half trained"


def test_results_come_home_on_failure_and_the_exit_code_stays(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path), FAKE_TRAINING="finishes", FAKE_EXIT="7")
    job.wait_until_training()
    assert job.end() == 7
    assert (tmp_path / "home results" / "model.pt").exists()


def test_results_come_home_before_the_time_limit_while_the_training_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path), FAKE_TRAINING="deaf")
    job.wait_until_training()
    job.process.send_signal(signal.SIGUSR1)
    home = tmp_path / "home results" / "model.pt"
    while not home.exists():
        assert job.process.poll() is None
        os.sched_yield()
    os.killpg(job.process.pid, signal.SIGTERM)  # as Slurm does: every process of the job
    assert job.end() == 143


def test_the_training_is_told_and_the_job_is_queued_again(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path, requeue=True))
    job.wait_until_training()
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 0
    assert job.requeued == "scontrol requeue 4211\n"
    assert (tmp_path / "home results" / "checkpoint.pt").read_text() == "saved"


def test_workers_of_a_launcher_are_told_though_they_have_a_session_of_their_own(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, replace(spec(tmp_path, requeue=True), framework="ddp"))
    job.wait_until_training()
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 0
    assert job.requeued == "scontrol requeue 4211\n"
    assert (tmp_path / "home results" / "checkpoint.pt").read_text() == "saved"


def test_one_task_of_an_array_requeues_itself_alone(tmp_path: Path) -> None:
    environ = {"SLURM_ARRAY_JOB_ID": "4200", "SLURM_ARRAY_TASK_ID": "3"}
    job = Job(tmp_path, spec(tmp_path, requeue=True, results=False), **environ)
    job.wait_until_training()
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 0
    assert job.requeued == "scontrol requeue 4200_3\n"


def test_restarts_are_counted_and_end(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path, requeue=True), SLURM_RESTART_COUNT="10")
    job.wait_until_training()
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == 0
    assert job.requeued == ""
    assert "10 restarts are enough" in job.stderr


@pytest.mark.parametrize("unpack", [False, True])
def test_data_is_staged_once_and_a_half_copy_is_not_used(tmp_path: Path, unpack: bool) -> None:
    data = tmp_path / "shared disk" / "train set.tar"
    data.parent.mkdir()
    (tmp_path / "digits.txt").write_text("1 2 3")
    subprocess.run(["tar", "-c", "-f", data, "-C", tmp_path, "digits.txt"], check=True)
    local = tmp_path / "local disk" / "data"
    name = "train set" if unpack else "train set.tar"
    (local / f"{name}.part").mkdir(parents=True)
    job_spec = replace(
        spec(tmp_path, results=False),
        staging=Staging(data=str(data), data_gib=1.0, unpack=unpack, data_option="--data"),
    )
    job = Job(tmp_path, job_spec, FAKE_TRAINING="finishes")
    job.wait_until_training()
    assert job.end() == 0
    staged = local / name
    text = (staged / "digits.txt").read_text() if unpack else staged.read_bytes()
    assert text == ("1 2 3" if unpack else data.read_bytes())
    assert not (local / f"{name}.part").exists()


def test_a_relative_folder_for_results_is_where_the_job_started(tmp_path: Path) -> None:
    job_spec = replace(spec(tmp_path), staging=Staging(results="out here"))
    job = Job(tmp_path, job_spec, FAKE_TRAINING="finishes")
    job.wait_until_training()
    assert job.end() == 0
    assert (tmp_path / "out here" / "model.pt").exists()


def test_data_behind_a_link_is_copied_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "real.tar").write_text("data")
    (tmp_path / "link.tar").symlink_to(tmp_path / "real.tar")
    staging = Staging(data=str(tmp_path / "link.tar"), data_gib=1.0)
    job = Job(
        tmp_path, replace(spec(tmp_path, results=False), staging=staging), FAKE_TRAINING="finishes"
    )
    job.wait_until_training()
    assert job.end() == 0
    staged = tmp_path / "local disk" / "data" / "link.tar"
    assert staged.read_text() == "data"
    assert not staged.is_symlink()


def test_data_that_is_missing_stops_the_job_before_training(tmp_path: Path) -> None:
    job_spec = replace(
        spec(tmp_path, results=False), staging=Staging(data="/no/such/data.tar", data_gib=1.0)
    )
    job = Job(tmp_path, job_spec)
    assert job.end() == 1
    assert "/no/such/data.tar" in job.stderr
