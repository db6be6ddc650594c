"""`stoker demo`: a tour of what Stoker does, on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stoker.commands import main
from stoker.commands.arguments import Parser

DESCRIPTION = """\
Show on this machine what Stoker does: plan a training script for two clusters, write the
batch script, and check a script that has several things wrong with it. Nothing is submitted.
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


def run(words: list[str]) -> int:
    """Walk through the tour in a folder of its own."""
    Parser("demo", DESCRIPTION).parse_args(words)
    folder = Path(tempfile.mkdtemp(prefix="stoker-demo-"))
    for name in ("train.py", "job.sh"):
        (folder / name).write_text((TOUR / name).read_text())
    with _inside(folder):
        for number, (title, command) in enumerate(STEPS, 1):
            print(f"\n{number}. {title}\n\n$ stoker {command}\n", flush=True)
            main(shlex.split(command))
    sys.stdout.flush()
    print(
        f"\nLook at {folder / 'job-lumi.sh'} (the script that was written)\n"
        f"    and {folder / 'job.sh'} (the one that was checked).\n"
        "next: stoker plan --cluster YOURS --gpus 1 YOUR_SCRIPT.py; stoker cluster list has the names"
    )
    return 0


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
