"""The examples run, and several ranks lose what one process loses.

All PyTorch examples have the model, the data and the order of examples/torch_single.py, and share
out its batches: their losses must be its losses, step by step. Those of TensorFlow follow
examples/tf_loop.py in the same way.

The tolerance: sums of 32-bit floats in another order differ by some 1e-7 of themselves, and
training widens that; over these 20 steps 1e-6 is the most that was seen. Gradients that are
summed in place of averaged come to differ by 0.4, another order of the samples by 0.09. 1e-4 lies
between, far from both.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from extensions import torch_extensions
from patience import Done, run_ranks

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TOLERANCE = 1e-4
# Two epochs of ten whole batches: an order that is repeated or another one in a rank is seen.
FIT = ("--images", "1280", "--epochs", "2")
SMALL = (*FIT, "--every", "1")
LIMIT_S = 600
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "fashion_mnist.py")
PLAIN = ("torch_single", "torch_model_parallel", "tf_loop", "keras_fit")
HEADER = re.compile(r"^(Here|On a cluster): +(stoker .*)$", re.MULTILINE)


# What an example imports, by words of its name: the first that fits.
VENVS = {
    "torch_horovod": ".venv-horovod/ready",
    "torch_mpi": ".venv-horovod/ready",
    "keras_horovod": ".venv-horovod-tf/ready",
    "torch": ".venv-torch/more-ready",
    "jax": ".venv-jax/jax-ready",
    "": ".venv-tf/tf-ready",
}


def python_of(script: str) -> Path:
    """Return the Python that has what this example imports."""
    ready = ROOT / next(venv for name, venv in VENVS.items() if script.startswith(name))
    if not ready.exists():
        pytest.skip(f"{ready.parent.name} is not there: scripts/setup-frameworks, setup-horovod")
    return ready.parent / "bin/python"


def run(script: str, procs: int | None, folder: Path, words: tuple[str, ...]) -> str:
    """Return what the example prints, started as its header says."""
    several = [] if procs is None else ["--procs", str(procs)]
    if "mpi" in script:
        several += ["--framework", "mpi"]
    python = python_of(script)
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "JAX_PLATFORMS": "cpu",
    }
    if script == "torch_deepspeed.py":
        env |= {
            "TORCH_EXTENSIONS_DIR": str(torch_extensions()),
            "PATH": f"{python.parent}:{env['PATH']}",
        }

    def start(place: Path) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "stoker", "run", "--quiet", "-o", str(place / "run"),
             "--python", str(python), *several, str(EXAMPLES / script), *words],
            cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    _, done = run_ranks(start, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(text: str) -> list[float]:
    """Return the losses in order, and see that none is missing."""
    rows = re.findall(r"(?:step|epoch) (\d+) loss (\d+\.\d+)", text)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1)), text
    return [float(loss) for _, loss in rows]


@cache
def alone(script: str, folder: Path) -> tuple[float, ...]:
    """Return what one process loses in each step."""
    return tuple(losses(run(script, None, folder, SMALL)))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run alone, once for all tests."""
    return tmp_path_factory.mktemp("alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "procs", "words"),
    [
        ("torch_ddp.py", 2, ()),
        ("torch_ddp.py", 4, ()),
        ("torch_fsdp.py", 2, ()),
        ("torch_fsdp.py", 4, ()),
        ("torch_lightning.py", 2, ()),
        ("torch_lightning.py", 4, ()),
        ("torch_accelerate.py", 2, ()),
        ("torch_accelerate.py", 4, ()),
        # These divide the model, not the batch: into two parts.
        ("torch_pipeline.py", 2, ()),
        ("torch_model_parallel.py", None, ()),
        ("torch_horovod.py", 2, ()),
        ("torch_horovod.py", 4, ()),
        ("torch_mpi.py", 2, ()),
        ("torch_mpi.py", 4, ()),
        ("tf_mirrored.py", None, ("--copies", "2")),
        ("tf_mirrored.py", None, ("--copies", "4")),
        ("tf_multiworker.py", 2, ()),
        ("tf_multiworker.py", 4, ()),
        # Several workers do not wait for each other: one is the comparison.
        ("tf_parameter_server.py", 1, ()),
    ],
)
def test_several_lose_what_one_loses(
    script: str, procs: int | None, words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    first = "torch_single.py" if script.startswith("torch") else "tf_loop.py"
    wanted = alone(first, folder / first)
    assert len(wanted) == 20
    # The network learns: all losses equal would be easy otherwise.
    assert wanted[-1] < 0.9 * wanted[0]
    saved = tmp_path / "saved.keras"
    can_save = "--save" in (EXAMPLES / script).read_text() or script == "torch_mpi.py"
    words = (*SMALL, *words, *(("--save", str(saved)) if can_save else ()))
    said = run(script, procs, tmp_path, words)
    assert losses(said) == pytest.approx(list(wanted), rel=TOLERANCE)
    assert re.search(r"accuracy 0\.\d{4}", said)
    assert saved.exists() == can_save


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "procs"), [(1, 2), (2, 2), (3, 2), (1, 4), (2, 4), (3, 4)])
def test_deepspeed_loses_the_same_in_every_stage(
    stage: int, procs: int, folder: Path, tmp_path: Path
) -> None:
    config = json.loads((EXAMPLES / "deepspeed.json").read_text())
    config["zero_optimization"]["stage"] = stage
    changed = tmp_path / "deepspeed.json"
    changed.write_text(json.dumps(config))
    words = ("--deepspeed_config", str(changed), *SMALL)
    said = run("torch_deepspeed.py", procs, tmp_path, words)
    wanted = alone("torch_single.py", folder / "torch_single.py")
    assert losses(said) == pytest.approx(list(wanted), rel=TOLERANCE)


@pytest.mark.slow
def test_keras_loses_what_the_loop_loses(folder: Path, tmp_path: Path) -> None:
    steps = alone("tf_loop.py", folder / "tf_loop.py")
    epochs = losses(run("keras_fit.py", None, tmp_path, FIT))
    # In its second epoch Keras draws another order.
    assert epochs[0] == pytest.approx(sum(steps[:10]) / 10, rel=TOLERANCE)
    assert epochs[1] < epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"), [("keras_horovod.py", FIT), ("jax_data_parallel.py", SMALL)]
)
def test_what_has_no_twin_loses_the_same_on_one_rank_two_and_four(
    script: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    one = losses(run(script, 1, tmp_path / "1", words))
    assert one[-1] < 0.9 * one[0]
    for procs in (2, 4):
        several = losses(run(script, procs, tmp_path / str(procs), words))
        assert several == pytest.approx(one, rel=TOLERANCE)


@pytest.mark.slow
def test_two_workers_of_a_parameter_server_learn(tmp_path: Path) -> None:
    said = losses(run("tf_parameter_server.py", 2, tmp_path, SMALL))
    assert len(said) == 20
    assert sum(said[-5:]) / 5 < 0.9 * said[0]


@pytest.mark.slow
def test_resnet_50_is_resnet_50_and_trains_on_two_ranks(tmp_path: Path) -> None:
    code = (
        "import torch_resnet50 as r; print(sum(p.numel() for p in r.make_resnet50().parameters()))"
    )
    done = subprocess.run(
        [str(python_of("torch_resnet50.py")), "-c", code],
        cwd=EXAMPLES, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout == "25557032\n"
    words = ("--batch", "2", "--size", "32", "--steps", "1")
    assert "images/s on 2 ranks" in run("torch_resnet50.py", 2, tmp_path, words)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_header_says_how_to_run_it_and_the_plan_accepts_it(script: Path) -> None:
    commands = dict(HEADER.findall(script.read_text()))
    assert list(commands) == ["Here", "On a cluster"]
    assert f"examples/{script.name}" in commands["Here"]
    words = shlex.split(commands["On a cluster"])
    assert words[1] == "submit"
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "plan", "--json", *words[2:]],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    framework = json.loads(done.stdout)["framework"]
    assert (framework == "plain") == (script.stem in PLAIN)
    assert ("--procs" in commands["Here"]) == (framework not in ("plain", "mirrored"))


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs/examples.md").read_text()
    assert [path.name for path in SCRIPTS if f"(../examples/{path.name})" not in page] == []
