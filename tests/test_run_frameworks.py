"""Every framework trains with `stoker run --procs` on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import Done, run_ranks
from trained import TRAININGS, Training, check_ranks, lay_out, read_ranks

pytestmark = pytest.mark.slow


def ran(folder: Path, training: Training, procs: int | None) -> Done:
    if not training.is_there:
        pytest.skip(f"no {training.venv}")
    head = [sys.executable, "-m", "stoker", "run", "--quiet", "--python", str(training.python)]
    head += [] if procs is None else ["--procs", str(procs)]

    def run(place: Path) -> Done:
        lay_out(place)
        env = {
            "PATH": f"{training.python.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
            "HF_HUB_OFFLINE": "1",
            **training.built,
            **dict(training.env),
        }
        return subprocess.run(
            [*head, *training.words(1, procs or 1)], cwd=place, env=env,
            capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip

    return run_ranks(run, folder)[1]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_framework_trains_on_this_machine(name: str, tmp_path: Path) -> None:
    done = ran(tmp_path, TRAININGS[name], 2)
    assert done.returncode == 0, done.stderr
    check_ranks(read_ranks(done.stdout), TRAININGS[name], 2)


def test_four_ranks_end_like_one(tmp_path: Path) -> None:
    done = ran(tmp_path, TRAININGS["ddp"], 4)
    assert done.returncode == 0, done.stderr
    check_ranks(read_ranks(done.stdout), TRAININGS["ddp"], 4)


@pytest.mark.parametrize("strategy", ["mirrored", "central"])
def test_one_process_drives_two_devices(strategy: str, tmp_path: Path) -> None:
    training = Training("tf_mirrored", ".venv-tf", (strategy,), speaks_alone=True)
    done = ran(tmp_path, training, None)
    assert done.returncode == 0, done.stderr
    check_ranks(read_ranks(done.stdout), training, 2)


def test_one_process_is_what_the_others_are_measured_by(tmp_path: Path) -> None:
    done = ran(tmp_path, Training("plain"), 1)
    assert done.returncode == 0, done.stderr
    check_ranks(read_ranks(done.stdout), Training("plain"), 1)
