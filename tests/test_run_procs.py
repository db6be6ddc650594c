"""`stoker run --procs N`: each framework starts in its own way; what cannot work is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import Stoker
from patience import Done, run_ranks
from stoker.cluster.load import load_cluster
from stoker.engine import rank_variables
from stoker.engine.processes import RANKS, Wanted, make_start
from stoker.engine.rank_variables import has_gpu
from stoker.errors import SpecError, StokerError, UsageError
from stoker.plan.combinations import (
    keras_notice,
    refuse_accelerate,
    refuse_here,
    refuse_keras,
)
from stoker.plan.deepspeed import check_config
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.plan.script import render_script
from stoker.plan.source import read_source
from stoker.plan.spec import Setup, Spec

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
TORCH = HERE.parent / ".venv-torch/bin/python"
# Whatever CXX names counts as a compiler: a machine without one runs these tests too.
PATH = {"PATH": "/usr/bin:/bin", "CXX": sys.executable}

DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
ACCELERATE = "from accelerate import Accelerator\na = Accelerator()\n"
LIGHTNING = "import lightning as L\nL.Trainer(devices=2).fit(1)\n"
MIRRORED = "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
SPAWN = "import torch.multiprocessing as mp\nmp.spawn(print)\n" + DDP
KERAS = "model.compile(o)\nmodel.fit(x)\n"
WORKERS = "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n"
CENTRAL = "import tensorflow as tf\ns = tf.distribute.experimental.CentralStorageStrategy()\n"
HOROVOD = "import horovod.tensorflow.keras as hvd\nhvd.init()\no = hvd.DistributedOptimizer(1)\n"


def start(text: str, procs: int, folder: Path, **options: str) -> tuple[list[str], dict[str, str]]:
    script = folder / "train.py"
    script.write_text(text)
    made = make_start(Wanted(procs, (str(script), "--x"), sys.executable, **options), PATH)  # type: ignore[arg-type]
    return list(made.command), made.env


@pytest.mark.parametrize("text", [DDP, LIGHTNING, ACCELERATE])
def test_pytorch_starts_by_torchrun(text: str, tmp_path: Path) -> None:
    command, env = start(text, 4, tmp_path)
    assert command[1:] == ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4",
                           "--", str(tmp_path / "train.py"), "--x"]  # fmt: skip
    assert int(env["OMP_NUM_THREADS"]) >= 1
    assert ("ACCELERATE_USE_CPU" in env) == (text == ACCELERATE and not has_gpu())


def test_a_module_stays_a_module_and_lines_can_be_counted() -> None:
    wanted = Wanted(2, ("pkg.train", "-x"), "python", is_module=True, framework="ddp")
    assert make_start(wanted, PATH).command[-3:] == ("--", "pkg.train", "-x")
    assert make_start(wanted, PATH).command[-4] == "-m"
    counted = wanted._replace(runner=("exact.py",))
    assert make_start(counted, PATH).command[-4:] == ("exact.py", "-m", "pkg.train", "-x")


def test_python_before_the_script_is_understood(tmp_path: Path) -> None:
    wanted = Wanted(2, (sys.executable, "train.py", "-x"), "other", framework="ddp")
    command = make_start(wanted, PATH).command
    assert (command[0], command[-2:]) == (sys.executable, ("train.py", "-x"))
    module = wanted._replace(words=(sys.executable, "-m", "pkg"))
    assert make_start(module, PATH).command[-3:] == ("-m", "--", "pkg")
    with pytest.raises(UsageError, match="a command of your own"):
        make_start(wanted._replace(words=("torchrun", "train.py")), PATH)


def test_threads_that_were_chosen_stay(tmp_path: Path) -> None:
    wanted = Wanted(2, ("train.py",), "python", framework="ddp")
    assert "OMP_NUM_THREADS" not in make_start(wanted, {**PATH, "OMP_NUM_THREADS": "3"}).env


def test_what_is_worth_typing_next_starts_as_many_processes(stoker: Stoker, tmp_path: Path) -> None:
    """And not what stands behind it: addresses of this once, and none of our threads."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    options = ["--procs", "2", "--framework", "jax", "--python", sys.executable]
    done = stoker("run", *options, "-o", "first", "train.py", "a b", "-x")
    assert done.returncode == 3
    again = f"--python {sys.executable} --procs 2 --framework jax train.py 'a b' -x"
    assert done.stderr.splitlines()[-1] == f"next: stoker run {again}"


def test_tensorflow_workers_know_each_other(tmp_path: Path) -> None:
    command, _ = start(WORKERS, 3, tmp_path)
    told = json.loads(command[-1])
    configs = [json.loads(rank["env"]["TF_CONFIG"]) for rank in told["ranks"]]
    assert len({json.dumps(config["cluster"]) for config in configs}) == 1
    assert len(set(configs[0]["cluster"]["worker"])) == 3
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]


def test_each_worker_has_one_of_the_gpus_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_variables, "has_gpu", lambda: True)
    told = rank_variables.tensorflow_servers(3, {"CUDA_VISIBLE_DEVICES": "2,3"})
    devices = [cast("dict[str, str]", each["env"])["CUDA_VISIBLE_DEVICES"] for each in told]
    assert devices == ["", "", "2", "3", "2"]


def test_beside_the_workers_of_a_server_stand_server_and_chief(tmp_path: Path) -> None:
    command, _ = start("", 2, tmp_path, framework="parameter-server")
    ranks = json.loads(command[-1])["ranks"]
    assert [(rank["name"], rank["leads"]) for rank in ranks] == [
        ("chief 0", True), ("ps 0", False), ("worker 0", False), ("worker 1", False)
    ]  # fmt: skip


def test_horovod_takes_mpi_where_it_is_and_gloo_where_it_is_not(tmp_path: Path) -> None:
    for name in ("mpirun", "python"):
        program = tmp_path / name / name
        program.parent.mkdir()
        program.touch(0o755)
    (tmp_path / "python/horovodrun").touch(0o755)
    wanted = Wanted(2, ("t.py",), str(tmp_path / "python/python"), framework="horovod")
    mpi = make_start(wanted, {"PATH": str(tmp_path / "mpirun")})
    assert mpi.command[0].endswith("python/horovodrun")
    assert mpi.command[1:3] == ("-np", "2")
    assert mpi.env["PATH"].startswith(f"{tmp_path}/python:")
    gloo = make_start(wanted, {"PATH": str(tmp_path)})
    assert gloo.command[1:4] == ("-np", "2", "--gloo")
    (tmp_path / "python/horovodrun").unlink()
    assert make_start(wanted, {"PATH": str(tmp_path / "mpirun")}).command[0].endswith("/mpirun")
    with pytest.raises(SpecError, match="there is no mpirun"):
        make_start(wanted, {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("print(1)\n", "knows of one"),
        (MIRRORED, "one strategy for one process"),
        (CENTRAL, "one strategy for one process"),
        (SPAWN, "starts its own"),
        ("this is no Python", "cannot be read"),
    ],
)
def test_what_can_use_one_process_is_refused_more(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(StokerError, match=what):
        start(text, 2, tmp_path)
    assert start(text, 1, tmp_path)[0] == [sys.executable, str(tmp_path / "train.py"), "--x"]


@pytest.mark.parametrize("text", [HOROVOD, CENTRAL, WORKERS])
def test_fit_of_keras_3_is_refused_where_it_is_wrong(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text + KERAS)
    source = read_source(script)
    with pytest.raises(SpecError, match="Keras 3 `fit`"):
        refuse_keras(source, source.framework, 3)
    refuse_keras(source, source.framework, 2)
    refuse_keras(source, source.framework, None)
    for right in (
        text + "scaler.fit(x)\n",
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + text + KERAS,
        MIRRORED + KERAS,
    ):
        script.write_text(right)
        source = read_source(script)
        assert keras_notice(source, source.framework) is None


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import stoker\njob = stoker.context().init()\n", "ddp"),
        ("from stoker import context\nwith_us = context()\nwith_us.init(timeout_s=60)\n", "ddp"),
        ("import stoker\njob: object = stoker.context()\njob.barrier()\n", "ddp"),
        (
            "import stoker\nclass T:\n def f(self):\n  self.job = stoker.context()\n"
            "  self.job.init()\n",
            "ddp",
        ),
        ("y = x.f()" + ".a(1)" * 600 + "\n", "plain"),
        ("import stoker\nif stoker.context().should_stop:\n    exit()\n", "plain"),
        ("job = scheduler.context()\njob.init()\n", "plain"),
    ],
)
def test_a_script_that_joins_our_ranks_knows_of_several(
    text: str, framework: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert read_source(script).framework == framework


def test_accelerate_on_cpus_would_start_one_process(stoker: Stoker) -> None:
    for words in (["--cpu", "--num_processes", "2"], ["--num_processes=2", "--cpu"]):
        with pytest.raises(SpecError, match="2 processes"):
            refuse_accelerate(["/x/bin/accelerate", "launch", *words, "train.py"])
    refuse_accelerate(["accelerate", "launch", "--num_processes", "2", "train.py"])
    refuse_accelerate(["accelerate", "config"])


def test_deepspeed_needs_a_compiler_on_cpus(tmp_path: Path) -> None:
    if has_gpu():
        pytest.skip("with a GPU it does not always")
    with pytest.raises(SpecError, match="without a C\\+\\+ compiler"):
        make_start(Wanted(2, ("t.py",), "python", framework="deepspeed"), {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("config", "is_right"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
          "gradient_accumulation_steps": 2}, True),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
          "gradient_accumulation_steps": 4}, False),
        ({"train_batch_size": 64}, True),
        ({"train_batch_size": 30}, False),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3}, True),
        ({"train_micro_batch_size_per_gpu": 3}, True),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 4}}, False),
        ([], True),
    ],
)  # fmt: skip
def test_batch_sizes_of_deepspeed_fit_the_ranks(
    config: object, is_right: bool, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(config))
    if is_right:
        check_config("ds.json", tmp_path, 4)
        return
    with pytest.raises(SpecError):
        check_config("ds.json", tmp_path, 4)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("deepspeed.initialize(config={'train_batch_size': 30})", False),
        ("deepspeed.initialize(config={'train_batch_size': 32})", True),
        ("C = {'train_batch_size': 30}\ndeepspeed.initialize(config_params=C)", False),
        ("C = {'train_batch_size': 30}\nC = other()\ndeepspeed.initialize(config=C)", True),
        ("deepspeed.initialize(config={**other, 'train_batch_size': 30})", True),
        ("deepspeed.initialize(config={'train_batch_size': args.size})", True),
        ("n = {'train_batch_size': 30, 'train_micro_batch_size_per_gpu': args.n}\n"
         "deepspeed.initialize(config=n)", True),
        ("deepspeed.initialize(config={'zero_optimization': {'stage': 5}, 'x': f()})", False),
        ("deepspeed.initialize(config='ds.json')", False),
        ("deepspeed.initialize(config='not/there.json')", True),
        ("deepspeed.initialize(config=read())", True),
        ("from transformers import TrainingArguments as T, Trainer\n"
         "Trainer(args=T('out', deepspeed='ds.json'))", False),
    ],
)  # fmt: skip
def test_what_a_script_tells_deepspeed_fits_the_ranks(
    text: str, is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 30}')
    if is_right:
        start(f"import deepspeed\n{text}\n", 4, tmp_path)
        return
    with pytest.raises(SpecError, match=r"does not fit 4 ranks|ZeRO stage 5"):
        start(f"import deepspeed\n{text}\n", 4, tmp_path)


def test_the_file_of_a_trainer_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 30}')
    words = ("t.py", "--deepspeed", str(tmp_path / "ds.json"))
    with pytest.raises(SpecError, match="does not fit 4 ranks"):
        make_start(Wanted(4, words, "python", framework="ddp"), PATH)


def test_a_plan_for_the_queue_is_refused_alike(tmp_path: Path) -> None:
    spec = Spec(("train.py", "--deepspeed_config", "ds.json"), gpus=8, framework="deepspeed")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 64}')
    make_plan(spec, load_cluster("puhti"), tmp_path)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 60}')
    with pytest.raises(SpecError, match="does not fit 8 ranks"):
        make_plan(spec, load_cluster("puhti"), tmp_path)


@pytest.mark.parametrize(
    ("add", "is_right"),
    [
        (("--gpus-per-task=1",), False),
        (("--gpus-per-task=v100:1",), False),
        (("--gpus-per-task=4",), True),
        (("--gpus-per-task=1", "--gres-flags=allow-task-sharing"), True),
        ((), True),
    ],
)
def test_gpus_that_nccl_would_not_see_are_refused(
    add: tuple[str, ...], is_right: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(DDP)
    spec = Spec(("train.py",), gpus=8, add=add)
    if is_right:
        make_plan(spec, load_cluster("puhti"), tmp_path)
        return
    with pytest.raises(SpecError, match="where a node has 4 GPUs"):
        make_plan(spec, load_cluster("puhti"), tmp_path)


def test_accelerate_on_cpus_is_not_submitted_as_one_process(tmp_path: Path) -> None:
    words = ("accelerate", "launch", "--cpu", "--num_processes", "2", "train.py")
    with pytest.raises(SpecError, match="2 processes"):
        make_plan(Spec(words, gpus=0), load_cluster("puhti"), tmp_path)
    (tmp_path / "train.py").write_text(ACCELERATE)
    plan = make_plan(Spec(("train.py",), gpus=0, nodes=2), load_cluster("puhti"), tmp_path)
    assert plan.launch.form == "c10d"
    assert "export ACCELERATE_USE_CPU=true\n" in render_script(plan)


def test_a_shell_without_a_compiler_submits_no_deepspeed_on_cpus(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    nothing = {"PATH": str(tmp_path)}

    def plan(**asked: Any) -> Plan:
        spec = Spec(("train.py",), framework="deepspeed", **asked)
        return make_plan(spec, load_cluster("puhti"), tmp_path)

    alone = plan(gpus=0, setup=Setup(venv="venv"))
    with pytest.raises(SpecError, match="without a C\\+\\+ compiler"):
        refuse_here(alone, nothing)
    refuse_here(alone, PATH)
    # What a module or a line of the user's brings is not known here; a GPU needs none.
    refuse_here(plan(gpus=0, setup=Setup(modules=("pytorch",))), nothing)
    refuse_here(plan(gpus=0, setup=Setup(venv="venv", lines=("source tools.sh",))), nothing)
    refuse_here(plan(gpus=4, setup=Setup(venv="venv")), nothing)


def test_a_plan_knows_keras_only_where_it_can_see_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS + KERAS)
    (tmp_path / "venv/lib/python3.11/site-packages/keras-3.15.1.dist-info").mkdir(parents=True)
    spec = Spec(("train.py",), gpus=8, setup=Setup(venv="venv"))
    with pytest.raises(SpecError, match="Keras 3 `fit`"):
        make_plan(spec, load_cluster("puhti"), tmp_path)
    plan = make_plan(Spec(("train.py",), gpus=8), load_cluster("puhti"), tmp_path)
    assert any("Keras 3 `fit`" in notice.what for notice in plan.notices)


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no DeepSpeed configuration"):
        check_config("ds.json", tmp_path, 2)
    check_config("ds.json", tmp_path, 2, must_exist=False)
    (tmp_path / "ds.json").write_text("{")
    with pytest.raises(SpecError, match="cannot be read"):
        check_config("ds.json", tmp_path, 2)


def test_several_in_each_of_several_is_refused(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    task = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = stoker("run", "--procs", "2", "train.py", **task)
    assert done.returncode == 1
    assert "--procs 2 in each of 2 tasks" in done.stderr
    done = stoker("run", "--procs", "2", "--", "echo", "train.py")
    assert done.returncode == 2
    done = stoker("run", "--procs", "0", "train.py")
    assert done.returncode == 2


def test_an_unknown_framework_is_named() -> None:
    with pytest.raises(UsageError, match="unknown framework `dpp`"):
        make_start(Wanted(2, ("t.py",), "python", framework="dpp"), PATH)


# -- ranks that Stoker starts itself -------------------------------------------------------------

SHELL = {
    "fine": "echo out $N; echo err $N >&2",
    "second fails": '[ $N = 0 ] && exec sleep 600; echo "bad $N" >&2; exit 7',
    "second is killed": "[ $N = 0 ] && exec sleep 600; kill -9 $$",
    "first leads": "[ $N = 0 ] || exec sleep 600",
    "no newline": "printf %s half$N >&2",
}


def ranks_of(name: str, leads: bool = True) -> list[str]:
    ranks = [
        {"name": f"rank {number}", "env": {"N": str(number)}, "leads": leads or number == 0}
        for number in range(2)
    ]
    told = {"command": ["bash", "-c", SHELL[name]], "ranks": ranks}
    return [sys.executable, "-I", str(RANKS), json.dumps(told)]


def ran(name: str, leads: bool = True) -> Done:
    return subprocess.run(
        ranks_of(name, leads), capture_output=True, text=True, check=False, timeout=300
    )


def test_all_that_ranks_say_is_passed_on() -> None:
    done = ran("fine")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]
    assert ran("no newline").stderr in ("half0half1", "half1half0")


def test_a_rank_that_fails_is_named_and_ends_the_whole() -> None:
    done = ran("second fails")
    assert done.returncode == 7
    assert "rank 1 ended with exit code 7" in done.stderr
    assert "    bad 1" in done.stderr


def test_a_rank_that_is_killed_ends_the_whole_in_the_same_way() -> None:
    done = ran("second is killed")
    assert done.returncode == -signal.SIGKILL
    assert "rank 1 ended with signal SIGKILL" in done.stderr


def test_those_that_wait_end_with_the_leader() -> None:
    assert ran("first leads", leads=False).returncode == 0


def test_a_signal_reaches_every_rank() -> None:
    line = "trap 'echo heard; exit 0' TERM; echo ready; while :; do read -t 0.05 < <(:); done"
    ranks = [{"name": str(number), "env": {}} for number in range(2)]
    told = json.dumps({"command": ["bash", "-c", line], "ranks": ranks})
    with subprocess.Popen(
        [sys.executable, "-I", RANKS, told], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "heard\nheard\n"
    assert process.returncode == 0


# -- real trainings ------------------------------------------------------------------------------


def trained(folder: Path, python: Path, *words: str) -> Done:
    if not python.exists():
        pytest.skip(f"no {python.parent.parent.name}")
    head = [sys.executable, "-m", "stoker", "run", "--quiet", "--python", str(python)]
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": os.environ.get("HOME", str(folder))}

    def run(place: Path) -> Done:
        return subprocess.run(
            [*head, *words], cwd=place, env=env, capture_output=True, text=True, check=False,
            timeout=280,
        )  # fmt: skip

    return run_ranks(run, folder)[1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp", "mpi"])
def test_ranks_meet_whoever_starts_them(launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    source = str(HERE.parent / "src")
    text = (PROGRAMS / "context_ranks.py").read_text()
    program.write_text(f"import sys\nsys.path.append({source!r})\n{text}")
    words = ("--procs", "2", "--framework", launcher, str(program), "meets")
    done = trained(tmp_path, TORCH, *words)
    assert done.returncode == 0, done.stderr
    assert "rank 1/2" in done.stdout
    assert "sum 3" in done.stdout


@pytest.mark.slow
def test_a_rank_that_fails_gives_its_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\nimport torch.distributed as dist\n"
        "if os.environ['RANK'] == '1':\n    sys.exit('no data')\ndist.init_process_group('gloo')\n"
    )
    done = trained(tmp_path, TORCH, "--procs", "2", str(program))
    assert done.returncode == 1
    assert "no data" in done.stderr
