"""`stoker submit` without a cluster: scripts, sweeps, refusals, and what sbatch may answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command import Command, Done
from stoker.cluster.load import load_cluster
from stoker.cluster.profile import Disk
from stoker.engine.output import filled
from stoker.engine.submit import scrubbed
from stoker.errors import UsageError
from stoker.plan.make import make_plan
from stoker.plan.preflight import render_preflight
from stoker.plan.quote import quote
from stoker.plan.script import render_script
from stoker.plan.spec import Spec, Staging, Survival
from stoker.plan.submission import Submission, log_words, render_folder
from stoker.plan.sweep import parse_sweep, render_points
from stoker.watch.folder import RunFolder

Stoker = Callable[..., Done]
PUHTI = ("--cluster", "puhti", "--account", "project_2001234", "--gpus", "1", "--time", "1h")


@pytest.fixture
def sbatch(tmp_path: Path) -> Path:
    """A stand-in that says what it is told to, and notes each call."""
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\necho "$@" >> "$CALLS"\nenv > "$CALLS.env"\neval "$ANSWER"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def submit(tmp_path: Path, sbatch: Path, command: Command) -> Stoker:
    """Run `stoker submit` in a folder with a script."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")

    def run(*words: str, answer: str = "echo 1234", **environ: str) -> Done:
        env = {"PATH": f"{sbatch.parent}:/usr/bin:/bin", "HOME": str(tmp_path), **environ}
        env |= {"CALLS": str(tmp_path / "calls"), "ANSWER": answer}
        return command.run("submit", *words, cwd=folder, env=env)

    return run


def job_json(tmp_path: Path) -> dict[str, object]:
    (path,) = tmp_path.glob("work/.stoker/runs/*/job.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_the_number_is_data_and_the_rest_is_talk(submit: Stoker, tmp_path: Path) -> None:
    done = submit(*PUHTI, "train.py", "--epochs", "3")
    assert (done.returncode, done.stdout) == (0, "1234\n")
    assert done.stderr.endswith("next: stoker logs -f 1234\n")
    assert job_json(tmp_path)["id"] == "1234"
    assert (tmp_path / "calls").read_text().count("--parsable") == 1


def test_with_several_clusters_sbatch_names_one(submit: Stoker) -> None:
    assert submit(*PUHTI, "train.py", answer="echo 'a note'; echo '1234;mahti'").stdout == "1234\n"


def test_nothing_of_a_job_around_it_goes_along(submit: Stoker, tmp_path: Path) -> None:
    outer = {
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_CPU": "9",
        "SLURM_CONF": "/etc/s",
        "STOKER_RUN": "/x",
    }
    submit(*PUHTI, "train.py", **outer)
    names = {line.partition("=")[0] for line in (tmp_path / "calls.env").read_text().splitlines()}
    assert {name for name in names if name.startswith(("SLURM", "STOKER"))} == {"SLURM_CONF"}


@pytest.mark.parametrize(
    ("answer", "what", "why"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1", "`sbatch` refuses", "Invalid account"),
        ("echo welcome", "sbatch gave no job number", "welcome"),
        ("echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1", "but no cluster", "no slurm.conf"),
        ("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1", "Slurm does not answer", "Socket timed out"),
    ],
)  # fmt: skip
def test_what_slurm_complains_of_is_told_and_the_script_is_kept(
    submit: Stoker, tmp_path: Path, answer: str, what: str, why: str
) -> None:
    done = submit(*PUHTI, "train.py", answer=answer)
    assert (done.returncode, done.stdout) == (1, "")
    assert what in done.stderr
    assert why in done.stderr
    assert job_json(tmp_path)["id"] is None
    # What may have arrived is not sent twice.
    assert (tmp_path / "calls").read_text().count("\n") == 1
    assert list(tmp_path.glob("work/.stoker/runs/*/job.sh"))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--sweep", "lr=1", "--array", "0-3", "train.py"), "a sweep and an array"),
        (("--sweep", "lr", "train.py"), "`lr` is no sweep"),
        (("--sweep", "lr=1", "--sweep=--lr=2", "train.py"), "--lr is swept twice"),
        (("--after", "nothing", "train.py"), "`nothing` is no job"),
        (("--throttle", "0", "train.py"), "--throttle"),
        (("trian.py",), "did you mean train.py?"),
        ((), "no training script was given"),
    ],
)
def test_what_cannot_be_submitted_is_refused_before_anything_is_made(
    submit: Stoker, tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    done = submit(*PUHTI, *words)
    assert done.returncode in (1, 2)
    assert what in done.stderr
    assert not (tmp_path / "work/.stoker").exists()
    assert not (tmp_path / "calls").exists()


def test_a_machine_without_slurm_is_told_so(submit: Stoker, tmp_path: Path, sbatch: Path) -> None:
    assert "stoker run train.py" in submit("--cluster", "local", "train.py").stderr
    sbatch.unlink()
    if not shutil.which("sbatch", path="/usr/bin:/bin"):
        assert "there is no `sbatch` here" in submit(*PUHTI, "train.py").stderr


def test_an_account_must_be_named_where_jobs_are_billed(submit: Stoker) -> None:
    assert "no account was given" in submit("--cluster", "puhti", "--gpus", "1", "train.py").stderr


def test_a_folder_that_cannot_be_made_is_told(submit: Stoker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = submit(*PUHTI, "-o", str(tmp_path / "file/run"), "train.py")
    assert done.returncode == 1
    assert "the run folder cannot be made" in done.stderr


def test_the_folder_of_a_job_that_waits_is_not_given_to_another(
    submit: Stoker, tmp_path: Path
) -> None:
    words = (*PUHTI, "-o", "my run", "train.py")
    assert submit(*words, answer="echo no >&2; exit 1").returncode == 1
    assert submit(*words).stdout == "1234\n"
    done = submit(*words, answer="echo 1235")
    assert (done.returncode, done.stdout) == (1, "")
    assert "`my run` already holds a job\n  why: job 1234 " in done.stderr
    assert "  fix: -o 'my run-2'" in done.stderr
    assert json.loads((tmp_path / "work/my run/job.json").read_text())["id"] == "1234"


def test_a_percent_sign_in_a_folder_is_no_mark_of_slurms(submit: Stoker, tmp_path: Path) -> None:
    folder = tmp_path / "100%test/50%%/run%j"
    assert submit(*PUHTI, "-o", str(folder), "train.py").returncode == 0
    log = json.loads((folder / "job.json").read_text())["log"]
    assert f"#SBATCH --output={log}\n" in (folder / "job.sh").read_text()
    # As Slurm fills it in, for the job and for each of its tasks.
    assert filled(log, "1234", "train", "1234") == f"{folder}/out.log"
    (option, _) = log_words(Submission(str(folder), has_task_logs=True))
    shell = f"job_folder={quote(str(folder))}; printf %s {option}"
    said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
    log = said.removeprefix("--output=")
    assert filled(log, "1234", "train", "1234") == f"{folder}/logs/0.log"


def test_a_script_that_is_submitted_again_by_hand_records_beside_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "it's"

    def record(**environ: str) -> str:
        shell = render_folder(Submission(str(folder))) + '\nprintf %s "$run_folder"'
        done = subprocess.run(["bash", "-c", shell], env=environ, capture_output=True, check=True)
        run = Path(done.stdout.decode())
        run.mkdir(parents=True, exist_ok=True)
        (run / "run.json").touch(exist_ok=False)
        return str(run.relative_to(folder))

    assert record() == "."
    assert record(SLURM_RESTART_COUNT="1") == "attempt-1"
    assert record() == "attempt-2"
    assert record(SLURM_RESTART_COUNT="1") == "attempt-3"
    assert record(SLURM_ARRAY_TASK_ID="7") == "7"
    assert record(SLURM_ARRAY_TASK_ID="7") == "7/attempt-1"
    assert RunFolder(folder).latest().path == folder / "attempt-3"


WORDS = st.text(st.characters(exclude_characters="\0,", codec="utf-8"), max_size=8)


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, min_size=1, max_size=2))
def test_every_point_arrives_as_it_was_written(first: list[str], second: list[str]) -> None:
    points = parse_sweep([f"lr={','.join(first)}", f"note={','.join(second)}"])
    assert points == [(f"--lr={a}", f"--note={b}") for a in first for b in second]
    text = render_points(points)
    assert text.count("\n") == len(points)
    script = (
        'while IFS= read -r line; do declare -a point="($line)"; printf "%s\\0" "${point[@]}"; done'
    )
    done = subprocess.run(
        ["bash", "-c", script], input=text.encode(), capture_output=True, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == [word for point in points for word in point]


def test_a_sweep_too_large_is_refused() -> None:
    many = ",".join(map(str, range(400)))
    with pytest.raises(UsageError, match="160,000 points"):
        parse_sweep([f"a={many}", f"b={many}"])


@pytest.mark.parametrize(
    "framework",
    ["plain", "ddp", "mpi", "accelerate", "deepspeed", "multiworker", "parameter-server"],
)
@pytest.mark.parametrize("requeue", [False, True])
def test_submitted_scripts_are_sound(framework: str, requeue: bool, tmp_path: Path) -> None:
    spec = Spec(
        ("train it.py", "a b"), gpus=8, framework=framework, account="project_2001234", time_s=3600,
        staging=Staging(data="/scratch/a b", data_gib=1.0, results="out"),
        survival=Survival(requeue=requeue),
    )  # fmt: skip
    plan = make_plan(spec, load_cluster("puhti"), tmp_path)
    submitted = Submission(
        "/runs/it's", "/opt/st oker", "/runs/points", "/runs/pre flight.py", True
    )
    script = render_script(plan, submitted)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [shellcheck, "-"], input=script, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert '"${watch[@]}"' in script
    assert '"${point[@]}"' in script


def test_what_says_where_slurm_is_stays() -> None:
    env = {"SLURM_CONF": "a", "SLURM_JOB_ID": "1", "PYTHONPATH": "/s/stoker/watch/inject:/own"}
    assert scrubbed(env) == {"SLURM_CONF": "a", "PYTHONPATH": "/own"}


@pytest.mark.parametrize(("kept", "looked_for"), [(None, 2**30), (True, 0)])
def test_where_the_data_may_lie_already_no_room_is_asked_for(
    kept: bool | None, looked_for: int, tmp_path: Path
) -> None:
    disk = Disk(exists=True, path="/local", kept=kept)
    cluster = replace(load_cluster("puhti"), disk=disk)
    staging = Staging(data="/scratch/set", data_gib=1.0)
    spec = Spec(("train.py",), gpus=1, framework="plain", time_s=3600, staging=staging)
    text = render_preflight(make_plan(spec, cluster, tmp_path), Submission("/run", preflight="/p"))
    assert f'"local": "/local", "local_bytes": {looked_for}' in text


def preflight(wanted: dict[str, object], **environ: str) -> subprocess.CompletedProcess[str]:
    import stoker.engine.preflight as program

    env = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run(
        [sys.executable, program.__file__, json.dumps(wanted)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "environ", "what"),
    [
        ({"script": "no/such.py"}, {}, "there is no no/such.py on this node"),
        ({"gpus": 4}, {"CUDA_VISIBLE_DEVICES": "0,1"}, "2 of 4 GPUs are visible"),
        ({"local": "/tmp", "local_bytes": 1 << 60}, {}, "the data needs"),
        ({"compiler": True}, {"PATH": "/nowhere"}, "there is no C++ compiler on this node"),
        ({}, {"NCCL_SOCKET_IFNAME": "ib7"}, "NCCL_SOCKET_IFNAME names ib7"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_a_node_is_said(
    wanted: dict[str, object], environ: dict[str, str], what: str
) -> None:
    done = preflight(wanted, **environ)
    assert done.returncode == 1
    assert what in done.stderr
    assert "  fix: " in done.stderr


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("", 0)) as door:
        port = str(door.getsockname()[1])
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_NODEID": "0"}
        done = preflight({"nodes": 2}, **where)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr


def test_a_node_that_came_does_not_blame_the_first_for_one_that_did_not() -> None:
    def give_up(door: socket.socket) -> None:
        friend, _ = door.accept()
        with friend:
            friend.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
        pool.submit(give_up, door)
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(door.getsockname()[1])}
        done = preflight({"nodes": 3}, **where, SLURM_NODEID="1")
    assert done.returncode == 1
    assert "127.0.0.1 did not hear from all nodes" in done.stderr
    assert "somebody else" not in done.stderr


def test_a_sound_node_says_nothing() -> None:
    environ = {"NCCL_SOCKET_IFNAME": "l", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "^docker"}
    done = preflight({"script": __file__, "cpus": 1, "local": "/tmp", "local_bytes": 1}, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
