"""`stoker.pack` with the data sets of torchvision and Hugging Face themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests/programs"
VENV = ROOT / ".venv-objects"
# Nothing is fetched: all data are made here.
OFFLINE = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}


def tries(library: str) -> list[str]:
    text = (PROGRAMS / f"objects_{library}.py").read_text()
    return re.findall(r"^def (try_\w+)", text, re.MULTILINE)


@cache
def said(library: str) -> dict[str, str]:
    """Run all tries of a library in one process: importing it takes longer than they do."""
    with TemporaryDirectory() as work:
        done = subprocess.run(
            [VENV / "bin/python", PROGRAMS / f"objects_{library}.py", work],
            env={**os.environ, **OFFLINE, "HF_HOME": f"{work}/hub", "HOME": work},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name"),
    [(each, name) for each in ("torchvision", "hugging_face") for name in tries(each)],
)
def test_data_sets_of_others_are_packed_as_they_are(library: str, name: str) -> None:
    if not (VENV / "ready").exists():
        pytest.skip("neither torchvision nor datasets: scripts/setup-objects")
    if name == "try_fashion_mnist" and not Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("no Fashion-MNIST: scripts/setup-data")
    assert said(library)[name] == ""
