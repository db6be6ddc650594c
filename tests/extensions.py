"""The part of itself that DeepSpeed compiles when it first starts: minutes, once for all tests.

It lies in the user's cache. What it was made of and where its headers are stand in its name, so
that neither another version nor another checkout makes it anew for the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

TORCH = Path(__file__).parents[1] / ".venv-torch"
PYTHON = TORCH / "bin/python"
LIMIT_S = 1200
NAME = """
import sys
from importlib.metadata import version
print(sys.implementation.cache_tag, version("torch"), version("deepspeed"), sep="-")
"""
BUILD = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"


@cache
def torch_extensions() -> Path:
    """Return the folder for TORCH_EXTENSIONS_DIR, with everything in it built."""
    name = subprocess.check_output([str(PYTHON), "-c", NAME], text=True).strip()
    place = hashlib.sha256(str(TORCH).encode()).hexdigest()[:8]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "stoker/torch_extensions" / f"{name}-{place}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as lock:
        # Goes with the process, however that ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            _build(folder)
            (folder / "built").touch()
    return folder


def _build(folder: Path) -> None:
    # PyTorch's own lock stays behind when a build is killed, and the next would wait for ever.
    for left in folder.glob("*/lock"):
        left.unlink()
    # Ninja builds anew what another Ninja has built: that of the environment comes first.
    path = f"{PYTHON.parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder)}
    done = subprocess.run(
        [str(PYTHON), "-c", BUILD],
        env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
