"""From the words after `stoker run` to the command that is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.errors import ScriptError, UsageError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What Python sets LC_CTYPE to in a C locale, for itself and whatever it starts (PEP 538).
COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
PYTHON_FILES = (".py", ".pyc", ".pyz", ".pyw")


def given_environment() -> dict[str, str]:
    """Return the environment that we were started with, without what Python has made of it."""
    env = dict(os.environ)
    if env.get("LC_CTYPE") not in COERCED:
        return env
    try:
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return env
    del env["LC_CTYPE"]
    for word in words:
        if word.startswith(b"LC_CTYPE="):
            env["LC_CTYPE"] = os.fsdecode(word.partition(b"=")[2])
    return env


def find_python(wanted: str | None, env: Mapping[str, str]) -> str:
    """Return the interpreter: the one asked for, the active environment's, or our own.

    Stoker may be installed apart from torch, so an environment that is active comes first.
    """
    if wanted is not None:
        from shutil import which

        found = which(wanted)
        if found is None:
            raise UsageError(
                f"there is no interpreter `{wanted}`",
                why="it is neither a program on PATH nor an executable file",
                fix="--python python3, or the path of one",
            )
        return found
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = env.get(name)
        if not prefix:
            continue
        if Path(prefix).resolve() == Path(sys.prefix).resolve():
            return sys.executable
        python = Path(prefix) / "bin/python"
        if os.access(python, os.X_OK):
            return str(python)
    return sys.executable


def make_command(
    words: Sequence[str],
    *,
    is_module: bool,
    is_command: bool,
    python: str,
    runner: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return what to start: a Python script or module, or any other command.

    A runner is a Python program that runs scripts and modules in place of Python itself.
    """
    if not words:
        raise UsageError(
            "there is nothing to run",
            why="the script and its arguments come last",
            fix="stoker run train.py --epochs 3",
        )
    if is_module:
        return (python, *runner, "-m", *words)
    if is_command:
        return (_found(words[0]), *words[1:])
    path = Path(words[0])
    if path.suffix in PYTHON_FILES or path.is_dir():
        refuse_script(path)
        return (python, *runner, *words)
    if not path.exists() or os.access(path, os.X_OK):
        return (_found(words[0]), *words[1:])
    if path.suffix in (".sh", ".bash", ".slurm", ".sbatch"):
        raise ScriptError(
            f"`{path}` is not Python",
            why="without an interpreter before it, a script is run by Python",
            fix=f"stoker run -- bash {_word(path)}",
        )
    return (python, *runner, *words)


def refuse_script(path: Path) -> None:
    """Raise if Python could not run the script."""
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ScriptError(
            f"`{path}` is a folder",
            why="Python can run a folder only if it has a __main__.py",
            fix=f"stoker run {_word(path / 'train.py')}, or stoker run -m for a module",
        )
    if not path.exists():
        near = nearest(path.name, [each.name for each in _siblings(path)])
        raise ScriptError(
            f"there is no script `{path}`",
            why=f"no such file in {path.parent.absolute()}",
            fix=f"did you mean {_word(path.parent / near)}?" if near else "check the path",
        )
    if not os.access(path, os.R_OK):
        raise ScriptError(
            f"`{path}` cannot be read", why="permission is denied", fix=f"chmod u+r {_word(path)}"
        )


def _word(path: Path) -> str:
    """Return a path as it can be pasted."""
    from stoker.plan.quote import quote  # not at every start

    return quote(str(path))


def _siblings(path: Path) -> list[Path]:
    try:
        return [each for each in path.parent.iterdir() if each.suffix in PYTHON_FILES]
    except OSError:
        return []


def _found(word: str) -> str:
    from shutil import which

    if which(word) is not None:
        return word
    if Path(word).is_dir():
        what, why = f"`{word}` is a folder", "only programs and scripts can be run"
    elif Path(word).exists():
        what, why = f"`{word}` cannot be run", "it is not executable"
    else:
        what, why = f"there is no command `{word}`", "it is not a file, and not on PATH"
    raise ScriptError(what, why=why, fix="check the name, or stoker run -- python3 FILE")
