"""`stoker demo`: a tour of what Stoker does, on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stoker.commands import main
from stoker.commands.parser import Parser
from stoker.engine.command import find_python

DESCRIPTION = """\
Show on this machine what Stoker does: plan a training script for two clusters, write the
batch script, check a script that has several things wrong with it, then train a small network
on Fashion-MNIST under watch and say where its time went. Nothing is submitted.
"""

TOUR = Path(__file__).parent / "tour"

STEPS = (
    ("What should I ask for? Each number has its reason.",
     "plan --cluster lumi --gpus 16 --time 12h --account project_462000123 train.py --epochs 3"),
    ("The same training elsewhere: other words, another shape, another unit.",
     "plan --cluster fir --gpus 8 --time 12h --account def-prof train.py --epochs 3"),
    ("What cannot be had is refused, with the nearest request that can.",
     "plan --cluster roihu --gpus 2 --time 40h train.py"),
    ("The batch script: plain bash that runs without Stoker.",
     "plan --cluster lumi --gpus 16 --time 12h --account project_462000123 -o job-lumi.sh "
     "train.py --epochs 3"),
    ("What is wrong with the script I have?", "check job.sh"),
    ("And what can be mended by itself?", "check job.sh --fix"),
)  # fmt: skip
TRAINING = "Now a real training, unchanged, on this machine: where does its time go?"
NO_TORCH = """
A training under watch would come here, but this Python has no torch:
  {python}
make demo installs it; or give one that has it: stoker demo --python PYTHON"""


def run(words: list[str]) -> int:
    """Walk through the tour in a folder of its own."""
    parser = Parser("demo", DESCRIPTION)
    parser.add_argument("--python", metavar="P", help="a Python that has torch (default: this one)")
    parser.add_argument("--epochs", metavar="N", default="2", help="how long to train (default 2)")
    args = parser.parse_args(words)
    python = str(Path(find_python(args.python, os.environ)).absolute())
    folder = Path(tempfile.mkdtemp(prefix="stoker-demo-"))
    for name in ("train.py", "job.sh", "fashion.py"):
        (folder / name).write_text((TOUR / name).read_text())
    code = 0
    with _inside(folder):
        for number, (title, command) in enumerate(STEPS, 1):
            print(f"\n{number}. {title}\n\n$ stoker {command}\n", flush=True)
            main(shlex.split(command))
        if _has_torch(python):
            command = f"run fashion.py --epochs {shlex.quote(args.epochs)}"
            print(f"\n{len(STEPS) + 1}. {TRAINING}\n\n$ stoker {command}\n", flush=True)
            code = _train(python, shlex.split(command))
        else:
            print(NO_TORCH.format(python=python))
    sys.stdout.flush()
    print(
        f"\nLook at {folder / 'job-lumi.sh'} (the script that was written),\n"
        f"   {folder / 'job.sh'} (the one that was checked)\n"
        f"   and {folder / 'fashion.py'} (the one that was trained).\n"
        "next: stoker run YOUR_SCRIPT.py, and stoker plan --cluster YOURS --gpus 1 YOUR_SCRIPT.py; "
        "stoker cluster list has the names"
    )
    return code


def _has_torch(python: str) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def _train(python: str, words: list[str]) -> int:
    command = [sys.executable, "-m", "stoker", "run", "--python", python, *words[1:]]
    return subprocess.run(command, check=False).returncode


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
