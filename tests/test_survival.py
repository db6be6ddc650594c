"""A job keeps its results, and asks to run again when its time is nearly up."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import FAKES, job_environ
from stoker.cluster.load import load_cluster
from stoker.cluster.profile import Disk
from stoker.data.loading.dataset import open as open_data
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.errors import SpecError
from stoker.plan.make import make_plan
from stoker.plan.script import render_script
from stoker.plan.spec import Spec, Staging, Survival


class Job:
    """A batch script that runs under bash with stand-ins for Slurm; signals can be sent to it."""

    def __init__(
        self, folder: Path, spec: Spec, disk: Disk | None = None, /, **environ: str
    ) -> None:
        self.folder = folder
        script = folder / "job.sh"
        cluster = load_cluster("puhti")
        if disk is not None:
            cluster = replace(cluster, disk=disk)
        script.write_text(render_script(make_plan(spec, cluster, folder)))
        self.ready = folder / "ready"
        os.mkfifo(self.ready)
        base = job_environ(folder, FAKE_READY=str(self.ready), **environ)
        path = f"{environ.get('TOOLS', '')}:{FAKES / 'signals'}:{base['PATH']}"
        self.process = subprocess.Popen(
            ["bash", str(script)], cwd=folder, env={**base, "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def wait_until_training(self) -> None:
        # Whoever ends before it trains would never open the other end.
        with os.fdopen(os.open(self.ready, os.O_RDONLY | os.O_NONBLOCK)) as ready:
            told, _, _ = select.select([ready], [], [], 300)
            assert told, "the training never began"
            assert ready.read() == "running\n"

    def end(self) -> int:
        _, self.stderr = self.process.communicate(timeout=300)
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


def test_a_job_whose_results_do_not_come_home_has_failed(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text(
        '#!/bin/bash\nprintf half > "${@: -1}"\necho "Disk quota exceeded" >&2\nexit 1\n'
    )
    (tools / "cp").chmod(0o755)
    job = Job(tmp_path, spec(tmp_path), FAKE_TRAINING="finishes", TOOLS=str(tools))
    job.wait_until_training()
    assert job.end() == 1
    assert list((tmp_path / "home results").iterdir()) == []
    assert f"1 not copied to {tmp_path}/home results" in job.stderr
    assert (tmp_path / "local disk/results-4211/model.pt").exists()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("code", [0, 7])
def test_results_that_are_home_do_not_stay_on_a_disk_that_nobody_empties(
    tmp_path: Path, kept: bool, code: int
) -> None:
    disk = Disk(exists=True, path=str(tmp_path / "disk"), kept=kept)
    environ = {"FAKE_TRAINING": "finishes", "FAKE_EXIT": str(code), "USER": "me"}
    job = Job(tmp_path, spec(tmp_path), disk, **environ)
    job.wait_until_training()
    assert job.end() == code
    assert (tmp_path / "home results" / "model.pt").exists()
    assert not list((tmp_path / "disk").rglob("*.pt"))


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


def staged_folder(tmp_path: Path) -> tuple[Path, Path, Spec]:
    """A data set of two files, where it will be on the node, and a job that takes it there."""
    data = tmp_path / "shared disk/train set"
    (data / "a class").mkdir(parents=True)
    (data / "a class/one.bin").write_bytes(b"1" * 1000)
    (data / "two\nlines.bin").write_bytes(b"2" * 2000)
    staging = Staging(data=str(data), data_gib=1.0)
    job_spec = replace(spec(tmp_path, results=False), staging=staging)
    return data, tmp_path / "local disk/data/train set", job_spec


def finish(tmp_path: Path, job_spec: Spec, disk: Disk | None = None, /, **environ: str) -> None:
    (tmp_path / "ready").unlink(missing_ok=True)
    job = Job(tmp_path, job_spec, disk, FAKE_TRAINING="finishes", **environ)
    job.wait_until_training()
    assert job.end() == 0


def weak_rm(tmp_path: Path) -> str:
    """An rm that is killed before it has removed everything."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text('#!/bin/bash\nfind "${@: -1}" -name one.bin -delete\nexit 1\n')
    (tools / "rm").chmod(0o755)
    return str(tools)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_interrupted_copy_of_a_folder_goes_on(tmp_path: Path) -> None:
    data, local, job_spec = staged_folder(tmp_path)
    part = local.with_name(f"{local.name}.part")
    (part / "a class").mkdir(parents=True)
    whole = part / "a class/one.bin"
    whole.write_bytes(b"1" * 1000)
    before = whole.stat().st_ino
    (part / "two\nlines.bin").write_bytes(b"2" * 777)
    finish(tmp_path, job_spec)
    assert contents(local) == contents(data)
    # What was there already was not copied again.
    assert (local / "a class/one.bin").stat().st_ino == before
    assert not part.exists()


def test_an_interrupted_copy_of_a_file_that_nobody_may_write_goes_on(tmp_path: Path) -> None:
    data, local, job_spec = staged_folder(tmp_path)
    half = local.with_name(f"{local.name}.part") / "a class/one.bin"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"1" * 500)
    # cp makes a file with the mode of its source, before it is whole.
    for each in (half, data / "a class/one.bin"):
        each.chmod(0o444)
    tools = tmp_path / "tools"
    tools.mkdir()
    if os.geteuid() == 0:
        # Root may write to everything, which no user of a cluster may.
        (tools / "cp").write_text(
            '#!/bin/bash\nexec setpriv --bounding-set=-dac_override /usr/bin/cp "$@"\n'
        )
        (tools / "cp").chmod(0o755)
    finish(tmp_path, job_spec, TOOLS=str(tools))
    assert contents(local) == contents(data)


def test_a_file_may_be_called_like_an_option(tmp_path: Path) -> None:
    data, local, job_spec = staged_folder(tmp_path)
    (data / "-1.npy").write_bytes(b"3" * 10)
    finish(tmp_path, job_spec)
    assert contents(local) == contents(data)


def test_an_interrupted_copy_of_a_file_goes_on_unless_the_file_has_changed(tmp_path: Path) -> None:
    data = tmp_path / "train.tar"
    local = tmp_path / "local disk/data/train.tar"
    part = local.with_name("train.tar.part")
    part.parent.mkdir(parents=True)
    job_spec = replace(spec(tmp_path, results=False), staging=Staging(data=str(data), data_gib=1.0))
    for text, begun, expected in (
        ("0123456789", "abcd", "abcd456789"),
        ("changed", "abcdefgh", "changed"),
    ):
        data.write_text(text)
        part.write_text(begun)
        newer = part.stat().st_mtime + (-10 if text == expected else 10)
        os.utime(part, (newer, newer))
        finish(tmp_path, job_spec)
        assert local.read_text() == expected
        local.unlink()


def test_a_copy_that_fails_does_not_stay_on_a_disk_that_nobody_empties(tmp_path: Path) -> None:
    data, _, job_spec = staged_folder(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text(
        '#!/bin/bash\nwhile [[ $1 != -t ]]; do shift; done\nprintf half > "$2/half"\nexit 1\n'
    )
    (tools / "cp").chmod(0o755)
    disk = Disk(exists=True, path=str(tmp_path / "disk"))
    job = Job(tmp_path, job_spec, disk, TOOLS=str(tools))
    assert job.end() == 1
    assert f"2 files of {data} were not copied whole" in job.stderr
    assert not [path for path in (tmp_path / "disk").rglob("*") if path.is_file()]


def test_old_data_that_is_half_removed_is_not_found_by_its_name(tmp_path: Path) -> None:
    """A job may be killed while it makes room, and the next one may want what it removed."""
    _, _, job_spec = staged_folder(tmp_path)
    disk = Disk(exists=True, path=str(tmp_path / "disk"), kept=True)
    kept = tmp_path / "disk/stoker-me/data"
    finish(tmp_path, job_spec, disk, USER="me")
    (old,) = kept.iterdir()
    month_ago = time.time() - 40 * 86400
    os.utime(old, (month_ago, month_ago))
    for name, environ in (("second.tar", {"TOOLS": weak_rm(tmp_path)}), ("third.tar", {})):
        (tmp_path / name).write_text(name)
        staging = Staging(data=str(tmp_path / name), data_gib=1.0)
        finish(tmp_path, replace(job_spec, staging=staging), disk, USER="me", **environ)
        assert not (old / "train set").exists()
    # What was half removed is removed by the next one that needs room.
    files = {path.name for path in kept.rglob("*") if path.is_file()}
    assert files == {"second.tar.lock", "second.tar", "third.tar.lock", "third.tar"}


def test_a_job_that_is_queued_again_does_not_find_its_data_half_removed(tmp_path: Path) -> None:
    """Slurm gives a job that ends a while, and then kills what still removes its data."""
    _, _, job_spec = staged_folder(tmp_path)
    disk = Disk(exists=True, path=str(tmp_path / "disk"))
    finish(tmp_path, job_spec, disk, TOOLS=weak_rm(tmp_path))
    assert not (tmp_path / "disk/stoker-4211/data/train set").exists()
    finish(tmp_path, job_spec, disk)
    assert not [path for path in (tmp_path / "disk").rglob("*") if path.is_file()]


def test_a_second_run_on_the_node_copies_nothing(tmp_path: Path) -> None:
    data, local, job_spec = staged_folder(tmp_path)
    finish(tmp_path, job_spec)
    before = (local / "a class/one.bin").stat().st_ino
    (data / "a class/one.bin").write_bytes(b"3" * 1000)
    finish(tmp_path, job_spec)
    assert (local / "a class/one.bin").stat().st_ino == before


def test_a_job_that_was_started_too_often_does_not_train(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(tmp_path, requeue=True), SLURM_RESTART_COUNT="11")
    assert job.end() == 1
    assert "10 restarts are enough" in job.stderr


def test_a_new_folder_for_results_is_striped_where_it_lies_on_lustre(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "stat").write_text(
        '#!/bin/bash\n[[ $1 == -f ]] && echo lustre || exec /usr/bin/stat "$@"\n'
    )
    (tools / "lfs").write_text(f'#!/bin/bash\necho "$*" >> "{tmp_path}/lfs.log"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    job = Job(tmp_path, spec(tmp_path), TOOLS=str(tools), FAKE_TRAINING="finishes")
    job.wait_until_training()
    assert job.end() == 0
    assert (
        tmp_path / "lfs.log"
    ).read_text() == f"setstripe -E 1G -c 1 -E -1 -c 4 {tmp_path}/home results\n"


# -- verified copies -----------------------------------------------------------------


def packed_folder(tmp_path: Path) -> tuple[Path, Path, Spec]:
    """A packed data set, where it will be on the node, and a job that verifies its copy."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(20):
        (images / f"{number:04d}.bin").write_bytes(bytes([number]) * 900)
    data = tmp_path / "shared disk/packed set"
    pack(images, data, Settings(shard_bytes=4000))
    staging = Staging(data=str(data), data_gib=1.0, verify=True)
    job_spec = replace(spec(tmp_path, results=False), staging=staging)
    return data, tmp_path / "local disk/data/packed set", job_spec


def stoker_on_node(tmp_path: Path) -> str:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "stoker").write_text(f'#!/bin/bash\nexec "{sys.executable}" -m stoker "$@"\n')
    (tools / "stoker").chmod(0o755)
    return str(tools)


def flip(path: Path, at: int) -> None:
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_packed_data_set_is_staged_with_its_index_and_verified(tmp_path: Path) -> None:
    data, local, job_spec = packed_folder(tmp_path)
    job = Job(tmp_path, job_spec, FAKE_TRAINING="finishes", TOOLS=stoker_on_node(tmp_path))
    job.wait_until_training()
    assert job.end() == 0, job.stderr
    assert contents(local) == contents(data)
    assert f"whole: {local}.part, 20 samples" in job.stderr
    assert bytes(open_data(local, parts="bin")[7]) == bytes([7]) * 900


@pytest.mark.parametrize("has_stoker", [True, False])
def test_a_copy_with_other_bytes_does_not_get_its_name(tmp_path: Path, has_stoker: bool) -> None:
    data, local, job_spec = packed_folder(tmp_path)
    tools = stoker_on_node(tmp_path) if has_stoker else ""
    # An interrupted copy, whose first archive has its size and not its bytes.
    part = local.with_name(f"{local.name}.part")
    part.mkdir(parents=True)
    shutil.copy2(data / "shard-00000.tar", part)
    flip(part / "shard-00000.tar", 700)
    job = Job(tmp_path, job_spec, FAKE_TRAINING="finishes", TOOLS=tools)
    assert job.end() == 1
    assert f"the copy of {data} is damaged" in job.stderr
    assert ("0000: bin: its bytes have changed" in job.stderr) == has_stoker
    # The next attempt copies it anew.
    assert not part.exists()
    assert not local.exists()
    (tmp_path / "ready").unlink()
    job = Job(tmp_path, job_spec, FAKE_TRAINING="finishes", TOOLS=tools)
    job.wait_until_training()
    assert job.end() == 0, job.stderr
    assert contents(local) == contents(data)


def test_what_is_packed_already_is_not_unpacked(tmp_path: Path) -> None:
    data, _, job_spec = packed_folder(tmp_path)
    staging = replace(job_spec.staging, verify=False, unpack=True)
    with pytest.raises(SpecError, match="is not a tar file"):
        make_plan(replace(job_spec, staging=staging), load_cluster("puhti"))
    staging = Staging(data=f"{data}.tar", data_gib=1.0, verify=True, unpack=True)
    with pytest.raises(SpecError, match="nothing to compare"):
        make_plan(replace(job_spec, staging=staging), load_cluster("puhti"))
