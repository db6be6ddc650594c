"""Ported scripts on 2 and 4 ranks print what the original prints on one process.

Ports draw the samples in the order that one process draws, so whole runs are compared, figure by
figure. Numbers may differ by 1e-3 of themselves: sums of 32-bit floats in another order differ by
less, after these few steps by far; gradients that are not averaged, or another batch, differ by
more than 1e-2.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from extensions import torch_extensions
from patience import Done, run_ranks
from stoker.port.rewrite import port_script

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-torch/bin/python"
HOROVOD = HERE.parent / ".venv-horovod"
SCRIPTS = sorted((HERE / "ported").glob("*.py"))
LIMIT_S = 900
# One of each shape: functions, a class, no main, accumulation, meters, a summed loss, a checkpoint read
# again, early stopping, several loaders, frozen parts.
FEW = ("with_main", "trainer_class", "plain_module", "accumulation", "images_main", "vae", "plateau_stop",
       "phases", "frozen", "language_model")  # fmt: skip
# A main, a class that counts steps, nested functions with two groups of parameters, an iterator, a
# summed loss, the best checkpoint read again. DeepSpeed takes seconds to start: a few are enough.
LEAST = ("with_main", "step_trainer", "nested_functions", "steps_only", "summed", "reloaded")
# What is of no other shape for Horovod: resumed optimizers, weight decay, gradients set to None.
HOROVODS = (
    *LEAST,
    "full_resume",
    "late_device",
    "numpy_metrics",
    "transformer",
    "phases",
    "vae",
    "meters",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch is not there"),
]
Alone = Callable[[Sequence[str]], dict[str, list[float]]]


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]


def ported_jobs(target: str, ranks: int, names: Sequence[str], folder: Path) -> list[Any]:
    """Return the ports of these scripts, each in a folder of its own."""
    jobs = []
    for name in names:
        found = port_script((HERE / f"ported/{name}.py").read_text(), target, f"{name}.py")
        assert not found.refusals, name
        place = folder / f"{name}-{ranks}"
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text(found.after)
        jobs.append(job(name, place / f"{name}.py", ranks, place))
    return jobs


def job(name: str, script: Path, ranks: int, place: Path) -> dict[str, Any]:
    return {"name": name, "script": str(script), "ranks": ranks, "folder": str(place),
            "log": str(place / "log")}  # fmt: skip


def run_forked(jobs: list[Any], folder: Path, *preload: str, **env: str) -> None:
    """Run each job in ranks that are forked from one process."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [str(PYTHON), str(HERE / "port_ranks.py"), str(folder / "jobs.json"), *preload],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{PYTHON.parent}:{os.environ['PATH']}", **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    for each, code in zip(jobs, codes, strict=True):
        errors = "".join(log.read_text() for log in Path(each["folder"]).glob("log.*"))
        assert code == 0, f"{each['name']} on {each['ranks']}: {errors[-2000:]}"


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What the originals print: each is run once, for all targets and numbers of ranks."""
    folder = tmp_path_factory.mktemp("originals")
    known: dict[str, list[float]] = {}

    def read(names: Sequence[str]) -> dict[str, list[float]]:
        missing = [each for each in names if each not in known]
        for name in missing:
            (folder / name).mkdir()
        jobs = [job(each, HERE / f"ported/{each}.py", 1, folder / each) for each in missing]
        run_forked(jobs, folder)
        known.update({each["name"]: numbers(Path(each["log"]).read_text()) for each in jobs})
        return {name: known[name] for name in names}

    return read


def compare(jobs: list[Any], alone: Alone) -> None:
    wanted = alone(list(dict.fromkeys(each["name"] for each in jobs)))
    for each in jobs:
        assert wanted[each["name"]], each["name"]
        text = Path(each["log"]).read_text()
        assert numbers(text) == pytest.approx(wanted[each["name"]], rel=1e-3, abs=2e-4), (
            f"{each['name']} on {each['ranks']}: {text}"
        )


@pytest.mark.parametrize(
    ("target", "ranks", "names"),
    [
        ("ddp", [2], [each.stem for each in SCRIPTS]),
        ("ddp", [4], FEW),
        ("accelerate", [2, 4], FEW),
        ("fsdp", [2, 4], [each for each in FEW if each != "images_main"]),
    ],
    ids=["ddp-2", "ddp-4", "accelerate", "fsdp"],
)
def test_ranks_lose_what_one_process_loses(
    target: str, ranks: list[int], names: Sequence[str], alone: Alone, tmp_path: Path
) -> None:
    jobs = [each for count in ranks for each in ported_jobs(target, count, names, tmp_path)]
    run_forked(jobs, tmp_path)
    compare(jobs, alone)


def test_ranks_of_deepspeed_lose_what_one_process_loses(alone: Alone, tmp_path: Path) -> None:
    jobs = [each for count in (2, 4) for each in ported_jobs("deepspeed", count, LEAST, tmp_path)]
    env = {"TORCH_EXTENSIONS_DIR": str(torch_extensions()), "DS_ACCELERATOR": "cpu"}
    run_forked(jobs, tmp_path, "deepspeed", **env)
    compare(jobs, alone)


@pytest.mark.skipif(not (HOROVOD / "ready").exists(), reason="Horovod is not there")
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_horovod_lose_what_one_process_loses(
    ranks: int, alone: Alone, tmp_path: Path
) -> None:
    jobs: list[Any] = []

    def run(place: Path) -> Done:
        jobs[:] = ported_jobs("horovod", ranks, HOROVODS, place)
        (place / "jobs.json").write_text(json.dumps(jobs))
        return subprocess.run(
            [sys.executable, "-m", "stoker", "run", "--quiet", "-o", str(place / "run"), "--procs", str(ranks),
             "--framework", "horovod", "--python", str(HOROVOD / "bin/python"),
             str(HERE / "port_mpi.py"), str(place / "jobs.json")],
            cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    _, done = run_ranks(run, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    compare(jobs, alone)


def test_the_check_runs_both_and_compares(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((HERE / "ported/with_main.py").read_text())
    words = [
        "--to",
        "ddp",
        "--check",
        "--steps",
        "4",
        "--python",
        str(PYTHON),
        "--json",
        "train.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "port", *words, "--", "--batch-size", "64"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["check"]
    assert found["same"]
    assert len(found["alone"]) == len(found["ported"]) == 4
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]
