"""How N processes of a training start on this machine: each framework in its own way."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from stoker.engine.command import PYTHON_FILES
from stoker.engine.rank_variables import (
    has_gpu,
    jax_processes,
    tensorflow_servers,
    tensorflow_workers,
)
from stoker.engine.task import read_task
from stoker.errors import ScriptError, SpecError, UsageError, nearest
from stoker.plan.combinations import keras_version, refuse_keras
from stoker.plan.deepspeed import check_config, find_config, refuse_without_compiler
from stoker.plan.source import Source, read_source
from stoker.plan.spec import FRAMEWORKS
from stoker.units import plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stoker.engine.rank_variables import Told

    Starter = Callable[["Wanted", Mapping[str, str]], "Start"]

RANKS = Path(__file__).parent / "ranks.py"


class Start(NamedTuple):
    """A command that starts all processes, and what it needs in the environment."""

    command: tuple[str, ...]
    env: dict[str, str]


class Wanted(NamedTuple):
    """What the user asks for: so many processes of this program."""

    procs: int
    words: tuple[str, ...]
    python: str
    is_module: bool = False
    framework: str = "auto"
    runner: tuple[str, ...] = ()

    @property
    def program(self) -> tuple[str, ...]:
        """What Python is given: the script or module, and its arguments."""
        return (*self.runner, *(("-m",) if self.is_module else ()), *self.words)

    @property
    def bin(self) -> Path:
        """Where the programs of this Python's environment are."""
        return Path(self.python).absolute().parent


def make_start(wanted: Wanted, env: Mapping[str, str]) -> Start:
    """Return how the processes start, or raise for what cannot work."""
    wanted = _without_python(wanted, env)
    if not wanted.is_module and Path(wanted.words[0]).suffix not in PYTHON_FILES:
        _refuse_command(wanted.procs)
    source = _read(wanted)
    framework = _framework(wanted, source)
    refuse_keras(source, framework, keras_version(wanted.bin.parent))
    start = _STARTS.get(framework)
    if start is None:
        _refuse_several(wanted.procs, framework, source)
        return Start((wanted.python, *wanted.program), {})
    made = start(wanted, env)
    # The Trainer of Hugging Face is told to use DeepSpeed by such a configuration.
    named = find_config(wanted.words)
    config = named or source.deepspeed_config
    if config is not None:
        check_config(config, Path.cwd(), wanted.procs, must_exist=named is not None)
    if config is not None or framework == "deepspeed":
        made = _with_compiler(made, wanted, env)
    return made._replace(env={**_threads(wanted.procs, env), **made.env})


def refuse_launch(procs: int, env: Mapping[str, str], *, is_command: bool) -> None:
    """Raise where somebody else starts the processes already."""
    if is_command:
        _refuse_command(procs)
    task = read_task(env)
    if task is not None:
        raise SpecError(
            f"--procs {procs} in each of {task.world} tasks",
            why=f"the launcher has started {task.world} tasks; each would start {procs} processes "
            "that know nothing of the others",
            fix="leave --procs out, or start one task: srun --ntasks=1 stoker run --procs …",
        )


def _refuse_command(procs: int) -> None:
    raise UsageError(
        f"--procs {procs} with a command of your own",
        why="a whole command starts its processes itself; --procs starts those of a Python script",
        fix=f"stoker run --procs {procs} train.py, or leave --procs out",
    )


def _without_python(wanted: Wanted, env: Mapping[str, str]) -> Wanted:
    """Take `python train.py` and `python -m package` for what they are."""
    name, *words = wanted.words
    python = _which(name, env) if re.fullmatch(r"python[\d.]*", Path(name).name) else None
    if wanted.is_module or python is None or not words:
        return wanted
    is_module = words[0] == "-m" and len(words) > 1
    words = words[1:] if is_module else words
    return wanted._replace(python=python, words=tuple(words), is_module=is_module)


def _read(wanted: Wanted) -> Source:
    here = Path.cwd()
    if not wanted.is_module:
        return read_source(Path(wanted.words[0]))
    inner = here.joinpath(*wanted.words[0].split("."))
    main = inner / "__main__.py"
    return read_source(main if main.exists() else inner.with_suffix(".py"), root=here)


def _framework(wanted: Wanted, source: Source) -> str:
    if wanted.framework == "auto":
        return source.framework
    if wanted.framework not in FRAMEWORKS:
        match = nearest(wanted.framework, FRAMEWORKS)
        raise UsageError(
            f"unknown framework `{wanted.framework}`",
            why="known are: auto, " + ", ".join(FRAMEWORKS),
            fix=f"--framework {match or 'auto'}",
        )
    return wanted.framework


def _threads(procs: int, env: Mapping[str, str]) -> dict[str, str]:
    """Share the cores: torchrun would give each rank one thread, MPI all of them."""
    if procs == 1 or env.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // procs))}


def _torchrun(wanted: Wanted, env: Mapping[str, str]) -> Start:
    """Start what meets in a process group of PyTorch."""
    module = ("-m",) if wanted.is_module and not wanted.runner else ()
    program = wanted.program if wanted.runner else wanted.words
    head = (wanted.python, "-m", "torch.distributed.run", "--standalone")
    # Without the dashes torchrun takes the script's own `--log` for a part of its `--log-dir`.
    return Start((*head, f"--nproc_per_node={wanted.procs}", *module, "--", *program), {})


def _with_compiler(start: Start, wanted: Wanted, env: Mapping[str, str]) -> Start:
    """Let DeepSpeed build its extension, which on CPUs it must."""
    if not has_gpu():
        refuse_without_compiler(env)
    # Two versions of ninja by turns would build it each time.
    return start._replace(env={**start.env, **_first_on_path(wanted, env)})


def _accelerate(wanted: Wanted, env: Mapping[str, str]) -> Start:
    start = _torchrun(wanted, env)
    on_cpus = {} if has_gpu() else {"ACCELERATE_USE_CPU": "true"}
    return start._replace(env={**start.env, **on_cpus})


def _horovod(wanted: Wanted, env: Mapping[str, str]) -> Start:
    """Prefer Horovod's own launcher: it knows whether it was built with MPI or with Gloo."""
    launcher = wanted.bin / "horovodrun"
    if not launcher.exists():
        return _mpi(wanted, env)
    gloo = () if _which("mpirun", env) else ("--gloo",)
    words = ("-np", str(wanted.procs), *gloo, wanted.python, *wanted.program)
    return Start((str(launcher), *words), {**_mpi_variables(), **_first_on_path(wanted, env)})


def _mpi(wanted: Wanted, env: Mapping[str, str]) -> Start:
    mpirun = _which("mpirun", env) or _which("mpiexec", env)
    if mpirun is None:
        raise SpecError(
            "there is no mpirun on this machine",
            why="MPI starts the processes of this script",
            fix="module load openmpi, or install openmpi-bin",
        )
    words = ("-np", str(wanted.procs), wanted.python, *wanted.program)
    return Start((mpirun, *words), _mpi_variables())


def _first_on_path(wanted: Wanted, env: Mapping[str, str]) -> dict[str, str]:
    """Let programs of the script's own environment be found before others of their name."""
    return {"PATH": f"{wanted.bin}{os.pathsep}{env.get('PATH', '')}"}


def _mpi_variables() -> dict[str, str]:
    """Let Open MPI start more ranks than cores, on all cores, and in containers as root."""
    allowed = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if os.geteuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


def _which(name: str, env: Mapping[str, str]) -> str | None:
    from shutil import which

    return which(name, path=env.get("PATH"))


def _refuse_several(procs: int, framework: str, source: Source) -> None:
    """Raise where one process is all that a script can use."""
    if procs == 1:
        return
    if framework == "mirrored":
        raise SpecError(
            f"{procs} processes of a script with one strategy for one process",
            why=f"{source.evidence}: one process drives all GPUs of the machine",
            fix="leave --procs out, or take MultiWorkerMirroredStrategy in the script",
        )
    if not source.was_read:
        raise ScriptError(
            "the script cannot be read to see how its processes start",
            why=source.evidence,
            fix="say it: --framework ddp",
        )
    if source.spawns:
        raise SpecError(
            f"{procs} processes of a script that starts its own",
            why=source.evidence,
            fix="leave --procs out, and tell the script how many",
        )
    raise SpecError(
        f"{procs} processes of a script that knows of one",
        why=f"{source.evidence}: {plural(procs, 'process', 'processes')} would each do all the work",
        fix="stoker port SCRIPT --to ddp, or say what it uses: --framework ddp",
    )


def _ourselves(tell: Callable[[int, Mapping[str, str]], list[Told]]) -> Starter:
    """Return how ranks start whose variables nobody else sets."""

    def start(wanted: Wanted, env: Mapping[str, str]) -> Start:
        ranks = tell(wanted.procs, env)
        told = {"command": [wanted.python, *wanted.program], "ranks": ranks}
        return Start((sys.executable, "-I", str(RANKS), json.dumps(told)), {})

    return start


# What is not here is one process, whatever it does inside.
_STARTS: dict[str, Starter] = {
    "ddp": _torchrun,
    "fsdp": _torchrun,
    # Lightning sees torchrun and leaves the starting to it.
    "lightning": _torchrun,
    "deepspeed": _torchrun,
    "accelerate": _accelerate,
    "horovod": _horovod,
    "mpi": _mpi,
    "multiworker": _ourselves(tensorflow_workers),
    "parameter-server": _ourselves(tensorflow_servers),
    "jax": _ourselves(jax_processes),
}
