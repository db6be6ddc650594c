"""Each task of a rendered script knows its place."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from conftest import job_environ, words
from stoker.cluster.load import load_cluster
from stoker.plan.make import make_plan
from stoker.plan.script import render_script
from stoker.plan.spec import Spec


def environments(framework: str, folder: Path, **environ: str) -> tuple[int, list[dict[str, str]]]:
    """Run a script for two nodes under stand-ins; return its exit code and what each task saw."""
    spec = Spec(("train.py",), gpus=8, time_s=3600, framework=framework)
    script = folder / "job.sh"
    script.write_text(render_script(make_plan(spec, load_cluster("puhti"), folder)))
    done = subprocess.run(
        ["bash", str(script)], cwd=folder, env=job_environ(folder, **environ), check=False, capture_output=True
    )  # fmt: skip
    seen = (folder / "argv.log.env").read_text().splitlines()
    pattern = (
        r"RANK=(?P<rank>.*) LOCAL_RANK=(?P<local>.*) WORLD_SIZE=(?P<size>.*) TF_CONFIG=(?P<tf>.*)"
    )
    return done.returncode, [
        match.groupdict() for line in seen if (match := re.fullmatch(pattern, line))
    ]


@pytest.mark.parametrize("framework", ["mpi", "deepspeed"])
def test_every_task_gets_a_rank_of_its_own(framework: str, tmp_path: Path) -> None:
    code, tasks = environments(framework, tmp_path)
    assert code == 0
    assert [(each["rank"], each["local"], each["size"]) for each in tasks] == [
        (str(rank), str(rank), "4") for rank in range(4)
    ]


@pytest.mark.parametrize("framework", ["lightning", "horovod", "jax"])
def test_frameworks_that_read_slurm_are_left_alone(framework: str, tmp_path: Path) -> None:
    code, tasks = environments(framework, tmp_path)
    assert code == 0
    assert [each["rank"] for each in tasks] == [""] * 4


def test_workers_of_tensorflow_get_their_cluster(tmp_path: Path) -> None:
    _, tasks = environments("multiworker", tmp_path)
    port = 10000 + 4211
    assert json.loads(tasks[0]["tf"]) == {
        "cluster": {"worker": [f"n1:{port}", f"n2:{port}"]},
        "task": {"type": "worker", "index": 0},
    }


def test_a_parameter_server_job_has_all_its_roles(tmp_path: Path) -> None:
    code, tasks = environments("parameter-server", tmp_path)
    configs = [json.loads(each["tf"]) for each in tasks]
    assert code == 0
    assert {each["task"]["type"] for each in configs} == {"chief", "ps", "worker"}
    assert configs[0]["cluster"] == {
        "chief": ["n1:14211"],
        "ps": ["n1:14212"],
        "worker": ["n1:14213", "n2:14213"],
    }


def test_the_exit_code_of_the_training_is_the_jobs(tmp_path: Path) -> None:
    assert environments("ddp", tmp_path, FAKE_EXIT="9")[0] == 9


def test_a_header_that_was_edited_alone_stops_the_job(tmp_path: Path) -> None:
    spec = Spec(("train.py",), gpus=8, time_s=3600, framework="ddp")
    script = tmp_path / "job.sh"
    script.write_text(render_script(make_plan(spec, load_cluster("puhti"), tmp_path)))
    environ = job_environ(tmp_path, SLURM_NNODES="2", SLURM_GPUS_ON_NODE="2")
    done = subprocess.run(
        ["bash", str(script)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "for 2 nodes with 4 GPUs, not 2 with 2" in done.stderr
    assert words(tmp_path / "argv.log") == []


def test_variables_of_an_outer_job_are_forgotten(tmp_path: Path) -> None:
    spec = Spec(("train.py",), gpus=1, time_s=3600, framework="plain")
    script = tmp_path / "job.sh"
    text = render_script(make_plan(spec, load_cluster("puhti"), tmp_path))
    script.write_text(text + 'echo "left: ${!SLURM_CPU_BIND@}$SLURM_MEM_PER_CPU"\n')
    environ = job_environ(
        tmp_path, SLURM_CPU_BIND="x", SLURM_CPU_BIND_LIST="y", SLURM_MEM_PER_CPU="1"
    )
    done = subprocess.run(
        ["bash", str(script)], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("left: \n")
