"""`stoker submit` on a real Slurm: from a script to a run that survives what clusters do to it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import ROOT, SlurmCluster
from slurm.node import until

HELLO = "import os, sys; print(os.uname().nodename, sys.argv[1:])"
DDP = """\
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = sum(each.double().sum().item() for each in model.parameters())
print(f"rank {rank} of {dist.get_world_size()} on {os.uname().nodename}: {total:.15f}", flush=True)
dist.destroy_process_group()
"""
# Learns one number; says where it is, and stops with a checkpoint when the time limit is near.
RESUMING = """\
import json, os, pathlib, sys, time
import stoker

steps, pause = int(sys.argv[1]), float(sys.argv[2])
context, kept = stoker.context(), pathlib.Path("checkpoint.json")
if "STOKER_RESULTS" in os.environ:
    pathlib.Path(os.environ["STOKER_RESULTS"], "begun").touch()
state = json.loads(kept.read_text()) if kept.exists() else {"step": 0, "weight": 1.0}
print("begins at", state["step"], "restarts", context.restarts, flush=True)
for step in range(state["step"], steps):
    state = {"step": step + 1, "weight": state["weight"] * 0.9 + step * 0.01}
    if context.is_main:
        pathlib.Path("alive").write_text(str(state["step"]))
    time.sleep(pause)
    if context.is_main and (context.should_stop or step % 5 == 4):
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(kept)
    if context.should_stop:
        print("stops at", state["step"], flush=True)
        sys.exit(0)
print("loss", repr(state["weight"]), flush=True)
"""
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
SPREAD = ("--set", "slurm.full_nodes=false")


@pytest.fixture(scope="session", autouse=True)
def profile(slurm: SlurmCluster) -> None:
    """Detect the cluster, as a user would first."""
    slurm.stoker("cluster", "detect", "--save", "--force", cwd=slurm.shared)


@pytest.fixture
def folder(slurm: SlurmCluster, request: pytest.FixtureRequest) -> Path:
    return slurm.folder(re.sub(r"\W+", "-", request.node.name)[:40])


class Job:
    """A job that Stoker submitted."""

    def __init__(
        self, slurm: SlurmCluster, folder: Path, *words: str | Path, **options: Any
    ) -> None:
        self.slurm, self.cwd = slurm, folder
        account = ("--account", slurm.account, "--time", "5m")
        self.said = slurm.stoker("submit", *account, *words, cwd=folder, **options)
        self.id = self.said.stdout.strip()

    @property
    def folder(self) -> Path:
        for path in self.cwd.glob(".stoker/runs/*/job.json"):
            if json.loads(path.read_text())["id"] == self.id:
                return path.parent
        raise AssertionError(f"no run folder for job {self.id}")

    def wait(self, *states: str, timeout: float = 120) -> str:
        return self.slurm.wait(self.id, *(states or ("COMPLETED",)), timeout=timeout)

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.rglob("*.log")))

    def run_json(self, within: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / within / "run.json").read_text())
        return found


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


AWKWARD = [
    "",
    "two words",
    "$HOME",
    "`id`",
    'quo"te',
    "it's",
    "a\\b",
    "*",
    "tab\there",
    "a;b&c|d",
    "é",
    "-x",
    "#n",
]


def test_a_script_runs_with_every_word_as_it_was_typed(slurm: SlurmCluster, folder: Path) -> None:
    script = write(folder, "train.py", "import sys, json; print(json.dumps(sys.argv[1:]))")
    job = Job(slurm, folder, "--gpus", "1", script, *AWKWARD)
    assert job.id.isdecimal()
    assert f"next: stoker logs -f {job.id}" in job.said.stderr
    job.wait()
    assert json.loads(job.log) == AWKWARD


def test_the_run_is_watched_and_found_by_the_number_of_its_job(
    slurm: SlurmCluster, folder: Path
) -> None:
    job = Job(slurm, folder, "--gpus", "1", "--wait", write(folder, "train.py", HELLO), "a")
    assert job.said.returncode == 0
    assert f"{job.id}: COMPLETED" in job.said.stderr
    assert job.run_json()["exit"] == 0
    assert job.run_json()["environment"]["SLURM_JOB_ID"] == job.id
    report = slurm.stoker("report", job.id, cwd=folder).stdout
    assert "ended well" in report
    assert "train.py" in report


def test_waiting_ends_with_the_exit_code_of_the_training(slurm: SlurmCluster, folder: Path) -> None:
    script = write(folder, "train.py", "raise SystemExit(7)")
    job = Job(slurm, folder, "--gpus", "1", "--wait", script, check=False)
    assert job.said.returncode == 7
    assert job.run_json()["exit"] == 7


def test_without_watching_nothing_is_recorded_and_the_job_runs(
    slurm: SlurmCluster, folder: Path
) -> None:
    job = Job(slurm, folder, "--gpus", "1", "--no-watch", write(folder, "train.py", HELLO))
    job.wait()
    assert not (job.folder / "run.json").exists()
    assert "[]" in job.log


def test_nothing_is_made_or_submitted_by_a_dry_run(slurm: SlurmCluster, folder: Path) -> None:
    said = Job(slurm, folder, "--gpus", "1", "--dry-run", write(folder, "train.py", HELLO)).said
    assert said.stdout.startswith("#!/bin/bash\n")
    assert not (folder / ".stoker").exists()


def test_ranks_on_two_nodes_end_with_the_same_parameters(slurm: SlurmCluster, folder: Path) -> None:
    script = write(folder, "ddp.py", DDP)
    shape = ("--gpus", "4", "--nodes", "2", *SPREAD, *ONE_THREAD, "--venv", ROOT / ".venv-torch")
    job = Job(slurm, folder, *shape, script)
    job.wait(timeout=180)
    told = re.findall(r"\[default\d\]:rank (\d) of 4 on (\S+): (\S+)", job.log)
    assert sorted(rank for rank, _, _ in told) == ["0", "1", "2", "3"]
    assert len({node for _, node, _ in told}) == 2
    assert len({total for _, _, total in told}) == 1
    assert len(list((job.folder / "steps").glob("*.jsonl"))) == 4
    rank = slurm.stoker("logs", job.id, "--rank", "3", cwd=folder).stdout
    assert "rank 3 of 4" in rank
    assert "rank 2 of 4" not in rank


def test_one_task_for_each_gpu(slurm: SlurmCluster, folder: Path) -> None:
    text = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.uname().nodename)"
    script = write(folder, "train.py", text)
    shape = ("--gpus", "4", "--nodes", "2", *SPREAD, "--framework", "mpi")
    job = Job(slurm, folder, *shape, script)
    job.wait()
    logs = [path.read_text() for path in sorted((job.folder / "logs").glob("?.log"))]
    assert [re.findall(r"rank (\d) of 4", log) for log in logs] == [["0"], ["1"], ["2"], ["3"]]


STAGED = """\
import os, pathlib, sys
data, results = pathlib.Path(os.environ["STOKER_DATA"]), pathlib.Path(os.environ["STOKER_RESULTS"])
total = sum(len(path.read_bytes()) for path in data.rglob("*.bin"))
rank = os.environ["SLURM_PROCID"]
(results / f"total-{rank}.txt").write_text(f"{total} {os.uname().nodename} {data}")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("unpack", "code"), [(False, 0), (True, 0), (False, 3)])
def test_data_goes_to_both_nodes_and_results_come_home(
    slurm: SlurmCluster, folder: Path, unpack: bool, code: int
) -> None:
    data = folder / "a set"
    for number in range(40):
        path = data / f"class {number % 3}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 + number))
    size = sum(1000 + number for number in range(40))
    if unpack:
        slurm.on(slurm.login, "tar", "-c", "-f", folder / "set.tar", "-C", data, ".", user="root")
    source = folder / "set.tar" if unpack else data
    shape = ("--gpus", "2", "--nodes", "2", *SPREAD, "--framework", "mpi", "--nvme", "10")
    disk = ("--set", "disk.env=LOCAL_SCRATCH", "--set", "disk.exists=true")
    staged = ("--data", source, "--results", folder / "home")
    script = write(folder, "train.py", STAGED)
    words = (*(("--unpack",) if unpack else ()), script, str(code))
    job = Job(slurm, folder, *shape, *disk, *staged, *words)
    job.wait("FAILED" if code else "COMPLETED")
    found = [path.read_text().split(" ", 2) for path in sorted((folder / "home").iterdir())]
    assert [total for total, _, _ in found] == [str(size), str(size)]
    assert len({node for _, node, _ in found}) == 2
    assert not [path for path in folder.rglob("*.part*") if ".stoker" not in path.parts]


def test_data_that_stays_on_the_node_is_not_copied_again(slurm: SlurmCluster, folder: Path) -> None:
    data = folder / "set"
    data.mkdir()
    (data / "a.bin").write_bytes(b"x" * 1000)
    disk = ("--set", "disk.kept=true", "--set", "disk.path=/tmp", "--set", "disk.exists=true")
    text = "import os, pathlib; p = pathlib.Path(os.environ['STOKER_DATA']); print('made', p.stat().st_ino)"
    script = write(folder, "train.py", text)
    options = ("--gpus", "1", "--data", data, *disk, "--sbatch=--nodelist=r01g01", "--gpu", "v100")
    jobs = []
    for _ in range(2):
        jobs.append(Job(slurm, folder, *options, script))
        jobs[-1].wait()
    (data / "b.bin").write_bytes(b"y")
    jobs.append(Job(slurm, folder, *options, script))
    jobs[-1].wait()
    first, second, third = (re.findall(r"made (\d+)", job.log) for job in jobs)
    assert first == second
    assert third != first


def test_a_copy_that_is_too_large_is_refused_before_it_begins(
    slurm: SlurmCluster, folder: Path
) -> None:
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(1 << 42)
    disk = ("--set", "disk.env=LOCAL_SCRATCH", "--set", "disk.exists=true", "--nvme", "10")
    staged = ("--data", folder / "huge.bin", "--data-size", "1G")
    job = Job(slurm, folder, "--gpus", "1", *disk, *staged, write(folder, "train.py", HELLO))
    job.wait("FAILED")
    assert "the data needs 4398046511104 bytes" in job.log


def resuming(slurm: SlurmCluster, folder: Path, *options: str | Path, pause: float = 0.2) -> Job:
    script = write(folder, "train.py", RESUMING)
    source = (
        "--env",
        f"PYTHONPATH={ROOT / 'src'}",
        "--env",
        f"PATH={slurm.python.parent}:/usr/bin:/bin",
    )
    return Job(slurm, folder, "--gpus", "1", *source, *options, script, "40", str(pause))


def trains(folder: Path, steps: int = 3) -> None:
    path = folder / "alive"
    until(
        lambda: path.exists() and int(path.read_text() or 0) >= steps, "the training has begun", 60
    )


@pytest.fixture(scope="session")
def loss(slurm: SlurmCluster) -> str:
    """What the training ends with if nothing comes between."""
    job = resuming(slurm, slurm.folder("uninterrupted"), pause=0)
    job.wait()
    return str(re.findall(r"loss (\S+)", job.log)[0])


def test_before_the_time_limit_the_job_saves_is_queued_again_and_goes_on(
    slurm: SlurmCluster, folder: Path, loss: str
) -> None:
    job = resuming(slurm, folder, "--requeue", "--grace", "60")
    trains(folder)
    # What Slurm itself does so many seconds before the limit.
    slurm.on(slurm.login, "scancel", "--batch", "--signal=USR1", job.id)
    until((job.folder / "attempt-1/run.json").exists, "the second attempt", 90)
    job.wait()
    assert "stops at" in job.log
    assert re.findall(r"restarts (\d)", job.log) == ["0", "1"]
    assert re.findall(r"loss (\S+)", job.log) == [loss]
    assert job.run_json("attempt-1")["environment"]["SLURM_RESTART_COUNT"] == "1"
    assert slurm.stoker("report", job.id, "--json", cwd=folder).stdout.count('"attempt-1"') == 1


def test_the_time_limit_itself_wakes_the_job_in_time(slurm: SlurmCluster, folder: Path) -> None:
    job = resuming(
        slurm, folder, "--requeue", "--grace", "60", "--max-restarts", "0", "--time", "2m", pause=3
    )
    trains(folder)
    slurm.end_in(job.id, 50)
    job.wait("COMPLETED", "FAILED", "TIMEOUT", timeout=120)
    assert "stops at" in job.log
    assert "0 restarts are enough" in job.log


def nodes_of(slurm: SlurmCluster, job: Job) -> list[str]:
    names = slurm.on(slurm.login, "squeue", "-h", "-o", "%N", "-j", job.id).stdout.strip()
    return slurm.on(slurm.login, "scontrol", "show", "hostnames", names).stdout.split()


def test_a_job_whose_node_is_cut_off_goes_on_elsewhere(
    slurm: SlurmCluster, folder: Path, loss: str
) -> None:
    job = resuming(slurm, folder, "--requeue", "--grace", "60")
    trains(folder, 6)
    (node,) = nodes_of(slurm, job)
    slurm.cut(node)
    until((job.folder / "attempt-1/run.json").exists, "the second attempt", 120)
    job.wait()
    # The node that is cut off goes on by itself; what it says is the same.
    assert set(re.findall(r"loss (\S+)", job.log)) == {loss}
    assert job.run_json("attempt-1")["host"] != node


def test_a_job_that_loses_one_of_its_nodes_goes_on_when_it_has_two_again(
    slurm: SlurmCluster, folder: Path, loss: str
) -> None:
    shape = ("--gpus", "2", "--nodes", "2", *SPREAD, "--framework", "mpi")
    job = resuming(slurm, folder, "--requeue", "--grace", "60", *shape)
    trains(folder, 6)
    _, node = nodes_of(slurm, job)
    slurm.crash(node)
    job.wait("PENDING")
    slurm.boot(node)
    job.wait()
    assert set(re.findall(r"loss (\S+)", job.log)) == {loss}
    assert len(list((job.folder / "attempt-1/samples").glob("*.json"))) == 2


def test_a_job_that_is_cancelled_leaves_no_process_and_no_half_file(
    slurm: SlurmCluster, folder: Path
) -> None:
    disk = ("--set", "disk.env=LOCAL_SCRATCH", "--set", "disk.exists=true", "--nvme", "10")
    job = resuming(slurm, folder, *disk, "--results", folder / "home")
    trains(folder)
    (node,) = nodes_of(slurm, job)
    slurm.stoker("cancel", job.id, cwd=folder)
    job.wait("CANCELLED")
    words = ("ps", "-u", "trainee", "-o", "args=")
    gone = lambda: "train.py" not in slurm.on(node, *words, user="root", check=False).stdout  # noqa: E731
    until(gone, "no process is left", 60)
    assert (folder / "home/begun").exists()
    assert not [path for path in folder.rglob("*.part*") if ".stoker" not in path.parts]


def test_a_sweep_of_a_thousand_is_one_call(slurm: SlurmCluster, folder: Path) -> None:
    count = folder / "calls"
    wrapper = folder / "bin/sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/bash\necho call >> {count}\nexec /usr/bin/sbatch "$@"\n')
    wrapper.chmod(0o755)
    os.chown(folder, 20001, 20001)
    values = ",".join(str(number) for number in range(500))
    sweep = ("--sweep", f"lr={values}", "--sweep", "note=a b,it's")
    script = write(folder, "train.py", HELLO)
    path = {"PATH": f"{wrapper.parent}:/usr/bin:/bin"}
    job = Job(slurm, folder, "--gpus", "1", "--sbatch=--hold", *sweep, script, "--x", env=path)
    assert count.read_text() == "call\n"
    shown = slurm.on(slurm.login, "squeue", "-h", "-r", "-o", "%i", "-j", job.id).stdout.split()
    assert len(shown) == 1000
    element = f"{job.id}_999"
    slurm.on(slurm.login, "scontrol", "release", element)
    slurm.wait(element, "COMPLETED")
    assert "['--x', '--lr=499', \"--note=it's\"]" in (job.folder / "out-999.log").read_text()
    assert (job.folder / "999/run.json").exists()


def test_a_job_that_is_submitted_from_a_job_takes_nothing_of_it_along(
    slurm: SlurmCluster, folder: Path
) -> None:
    write(
        folder,
        "inner.py",
        "import os; print('tasks', os.environ['SLURM_NTASKS'], os.environ.get('SLURM_MEM_PER_CPU'))",
    )
    inner = f"{slurm.python} -m stoker submit --account {slurm.account} --gpus 1 --time 5m inner.py"
    outer = slurm.sbatch(folder, "--partition=gpu", "--gres=gpu:1", "--ntasks=3", "--mem-per-cpu=77",
                         "--output=outer.log", script=f"srun --ntasks=1 {inner}")  # fmt: skip
    slurm.wait(outer, "COMPLETED")
    number = re.findall(r"^(\d+)$", (folder / "outer.log").read_text(), re.MULTILINE)[0]
    slurm.wait(number, "COMPLETED")
    (log,) = folder.glob(".stoker/runs/*/out.log")
    assert "tasks 1 None" in log.read_text()


def test_one_job_starts_after_another_has_ended_well(slurm: SlurmCluster, folder: Path) -> None:
    script = write(folder, "train.py", HELLO)
    first = Job(slurm, folder, "--gpus", "1", "--sbatch=--hold", script)
    second = Job(slurm, folder, "--gpus", "1", "--after", first.folder.name, script)
    slurm.wait_reason(second.id, "Dependency")
    slurm.on(slurm.login, "scontrol", "release", first.id)
    second.wait()


def test_without_a_controller_the_message_is_clear_and_nothing_is_lost(
    slurm: SlurmCluster, folder: Path
) -> None:
    slurm.stop_controller()
    script = write(folder, "train.py", HELLO)
    words = ("--cluster", "tiny", "--gpus", "1", script)
    said = Job(slurm, folder, *words, check=False).said
    assert said.returncode == 1
    assert "Slurm does not answer" in said.stderr
    assert "scontrol ping" in said.stderr
    (kept,) = folder.glob(".stoker/runs/*/job.sh")
    assert kept.read_text().startswith("#!/bin/bash")
    slurm.start_controller()
    Job(slurm, folder, *words).wait()


TWO_NODES = ("--gpus", "2", "--nodes", "2", *SPREAD, "--framework", "mpi", "--preflight")


def test_preflight_lets_a_sound_job_through(slurm: SlurmCluster, folder: Path) -> None:
    venv = ("--venv", ROOT / ".venv-torch", *ONE_THREAD)
    job = Job(slurm, folder, *TWO_NODES, *venv, write(folder, "train.py", HELLO))
    job.wait(timeout=120)
    assert job.log.count("[]") == 2


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            ("--env", "GLOO_SOCKET_IFNAME=ib7"),
            "GLOO_SOCKET_IFNAME names ib7, and there is no such interface",
        ),
        (("--setup", "cd /"), "there is no train.py on this node"),
    ],
)
def test_preflight_says_what_is_wrong(
    slurm: SlurmCluster, folder: Path, options: tuple[str, ...], what: str
) -> None:
    job = Job(slurm, folder, *TWO_NODES, *options, write(folder, "train.py", HELLO))
    job.wait("FAILED")
    assert what in job.log
    assert "  why: " in job.log
    assert "  fix: " in job.log
    assert "[]" not in job.log


def test_preflight_sees_a_port_that_is_taken(slurm: SlurmCluster, folder: Path) -> None:
    program = (ROOT / "src/stoker/engine/preflight.py").read_text()
    write(folder, "preflight.py", program)
    write(
        folder,
        "taken.py",
        "import socket, sys; s = socket.create_server(('', 29777)); sys.stdin.read()",
    )
    script = f"""\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
sleep infinity | srun --overlap --nodes=1 --ntasks=1 --nodelist=$first {slurm.python} taken.py &
until (: < /dev/tcp/$first/29777) 2> /dev/null; do :; done
export MASTER_ADDR=$first MASTER_PORT=29777
srun --overlap --nodes=2 --ntasks=2 {slurm.python} preflight.py '{{"nodes": 2}}'
echo "exit $?"
scancel --full $SLURM_JOB_ID"""
    job = slurm.sbatch(
        folder, "--partition=gpu", "--gres=gpu:1", "--nodes=2", "--output=log", script=script
    )
    until(
        lambda: (folder / "log").exists() and "exit" in (folder / "log").read_text(),
        "the checks",
        60,
    )
    slurm.on(slurm.login, "scancel", job, check=False)
    assert "port 29777 of r" in (folder / "log").read_text()
    assert "is taken" in (folder / "log").read_text()
