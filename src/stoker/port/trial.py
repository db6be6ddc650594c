"""Runs inside the user's process: a script for a few steps, its losses written down.

Started as `python trial.py STEPS FILE script.py …`. It imports nothing of Stoker, because the
user's Python need not have it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def use_one_order() -> None:
    """Have a loader with a generator draw its order as the port does: by a number drawn from it."""
    torch: Any = importlib.import_module("torch")
    sampler: Any = importlib.import_module("torch.utils.data").RandomSampler
    draw: Any = sampler.__iter__

    def iterate(self: Any) -> Iterator[int]:
        given = self.generator
        if given is not None:
            seed = torch.empty((), dtype=torch.int64).random_(generator=given)
            self.generator = torch.Generator().manual_seed(seed.item())
        yield from draw(self)
        self.generator = given

    sampler.__iter__ = iterate


def write_losses(steps: int, file: str) -> None:
    """Write the loss of each `backward` to a file, and end the program after enough of them."""
    torch: Any = importlib.import_module("torch")
    backward: Any = torch.Tensor.backward
    losses: list[float] = []
    # A trial leaves no checkpoint, and overwrites none.
    torch.save = lambda *args, **options: None
    atexit.register(lambda: Path(file).write_text(json.dumps(losses)))

    def record(self: Any, *args: Any, **options: Any) -> None:
        losses.append(float(self.detach()))
        backward(self, *args, **options)
        if len(losses) >= steps:
            Path(file).write_text(json.dumps(losses))
            sys.stdout.flush()
            os._exit(0)

    torch.Tensor.backward = record


def main() -> None:
    """Run the script that the command line names."""
    steps, file, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    # First of all: beside this file are modules with names of others, such as `accelerate`.
    sys.path[0] = str(Path(script).resolve().parent)
    use_one_order()
    write_losses(steps, file)
    sys.argv = sys.argv[3:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
