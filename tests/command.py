"""The real command in a process of its own, without the start of Python each time.

One process has imported all of Stoker. For each command line it forks, and the fork is `stoker`: with
its own folder, environment, input and output, and an end as any other.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What Python reads when it starts: a fork would not see it.
FOR_PYTHON = ("PYTHON", "LC_", "LANG")
# Not modules of ours: what the tour copies, and what goes into other processes.
APART = (".__main__", ".tour", ".inject")
PLAIN = {"PATH": "/usr/bin:/bin", "COLUMNS": "100"}

Done = subprocess.CompletedProcess[str]


class Command:
    """`stoker`, ready to run."""

    def __init__(self) -> None:
        self._source = subprocess.Popen(
            [sys.executable, __file__], env=PLAIN, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1,
        )  # fmt: skip

    def run(self, *words: str, cwd: Path, env: Mapping[str, str], stdin: str | None = None) -> Done:
        """Run a command line to its end."""
        if any(name.startswith(FOR_PYTHON) for name in env):
            return subprocess.run(
                [sys.executable, "-m", "stoker", *words], cwd=cwd, env=env, input=stdin or "",
                capture_output=True, text=True, errors="surrogateescape", check=False,
            )  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            files = [Path(name) / each for each in ("stdin", "stdout", "stderr")]
            files[0].write_text(stdin or "", errors="surrogateescape")
            order = {
                "words": words,
                "cwd": str(cwd),
                "env": dict(env),
                "files": list(map(str, files)),
            }
            code = self._ask(order)
            out, err = (each.read_text(errors="surrogateescape") for each in files[1:])
        return subprocess.CompletedProcess(["stoker", *words], code, out, err)

    def _ask(self, order: Mapping[str, object]) -> int:
        assert self._source.stdin is not None
        assert self._source.stdout is not None
        self._source.stdin.write(json.dumps(order) + "\n")
        return int(self._source.stdout.readline())

    def close(self) -> None:
        """End the process that forks."""
        self._source.communicate()


def import_all() -> None:
    """Import every module of Stoker."""
    import stoker

    for each in pkgutil.walk_packages(stoker.__path__, "stoker."):
        if not any(part in each.name for part in APART):
            importlib.import_module(each.name)


def serve() -> None:
    """Fork for each order, and tell how the fork ended. Return in the fork alone."""
    orders, answers = os.fdopen(os.dup(0)), os.dup(1)
    while line := orders.readline():
        if not (pid := os.fork()):
            orders.close()
            os.close(answers)
            become(json.loads(line))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, b"%d\n" % code)
    os._exit(0)


def become(order: dict[str, Any]) -> None:
    """Be what `python -m stoker` would be in that folder."""
    for number, path in enumerate(order["files"]):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = order["cwd"]
    sys.argv[1:] = order["words"]


def leave(code: int) -> None:
    """End without taking all modules apart, which takes longer than most commands."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import_all()
    # What is there stays: no fork need look through it.
    gc.freeze()
    serve()
    from stoker.commands import main

    try:
        leave(main())
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)
