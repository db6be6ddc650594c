"""Combinations that start and are wrong, or cannot work: known before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from stoker.errors import SpecError
from stoker.plan.deepspeed import check_config, find_config, refuse_without_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.plan.plan import Notice, Plan
    from stoker.plan.source import Source

# Lines of a job that bring no compiler with them.
_NO_COMPILER = re.compile(r"source \S+/bin/activate$|module purge$")
_KERAS_2 = "set TF_USE_LEGACY_KERAS=1 and install tf_keras, or write the loop yourself"


def refuse_combinations(plan: Plan, source: Source, folder: Path) -> None:
    """Raise for what is known to run and be wrong, where it can be known from here."""
    venv = plan.spec.setup.venv
    refuse_keras(source, plan.framework, keras_version(folder / venv) if venv else None)
    refuse_accelerate(plan.spec.command)
    _refuse_hidden_gpus(plan)
    # The Trainer of Hugging Face takes such a file as well, and is started as DDP.
    config = find_config(plan.spec.command) or source.deepspeed_config
    if config is not None:
        world = plan.launch.processes_per_node * plan.shape.nodes
        # The folder may be on another machine, where the file is.
        check_config(config, folder, world, must_exist=False)


def refuse_here(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raise for what this shell lacks and the job, which inherits it, will lack too."""
    environment = plan.environment
    brings_more = environment.prefix or environment.node_setup or plan.spec.setup.lines
    if brings_more or not all(_NO_COMPILER.match(line) for line in environment.setup):
        return
    if plan.framework == "deepspeed" and plan.shape.gpu is None:
        refuse_without_compiler(environ)


def _refuse_hidden_gpus(plan: Plan) -> None:
    """Raise where each task would see fewer GPUs than its node has for the job."""
    options = dict(plan.directives)
    asked = options.get("gpus-per-task")
    found = re.fullmatch(r"(?:[\w.-]+:)?(\d+)", asked or "")
    if found is None or int(found[1]) >= plan.shape.gpus_per_node:
        return
    if "allow-task-sharing" in (options.get("gres-flags") or ""):
        return
    raise SpecError(
        f"--gpus-per-task={asked} where a node has {plan.shape.gpus_per_node} GPUs for the job",
        why="each task sees its own GPUs only: NCCL then copies through the host's memory, "
        "without a word",
        fix="leave it out: --gpus asks for all, and each rank takes its own by its local rank",
    )


def keras_notice(source: Source, framework: str) -> Notice | None:
    """Return what is wrong with `fit` of Keras 3 under this framework."""
    if source.keras_fit is None or source.asks_keras_2:
        return None
    # `stoker run` starts without the planner: only what it needs is imported.
    from stoker.plan.plan import Notice

    where = source.keras_fit
    if framework == "horovod" and source.horovod_optimizer:
        return Notice(
            f"Keras 3 `fit` with Horovod ({where})",
            "Keras 3 never calls what averages the gradients: the loss falls, "
            "and the ranks drift apart without a word",
            f"{_KERAS_2} with hvd.DistributedGradientTape",
        )
    if source.central_storage:
        return Notice(
            f"Keras 3 `fit` with CentralStorageStrategy ({where})",
            "the loss that it reports is wrong",
            f"{_KERAS_2}, or take MirroredStrategy",
        )
    if framework in ("multiworker", "parameter-server"):
        name = "MultiWorkerMirrored" if framework == "multiworker" else "ParameterServer"
        return Notice(
            f"Keras 3 `fit` with {name}Strategy ({where})",
            "Keras 3 cannot: it ends with an error in its first step",
            _KERAS_2,
        )
    return None


def keras_notices(source: Source, framework: str) -> list[Notice]:
    """Return the same for where the version of Keras is not known."""
    notice = keras_notice(source, framework)
    return [] if notice is None else [notice]


def refuse_keras(source: Source, framework: str, version: int | None) -> None:
    """Raise for what Keras of this version gets wrong."""
    notice = keras_notice(source, framework)
    if notice is not None and version is not None and version >= 3:
        raise SpecError(notice.what, why=notice.why, fix=notice.fix)


def keras_version(prefix: Path) -> int | None:
    """Return the first number of the version of Keras below a virtual environment, if it is there.

    >>> keras_version(Path("/nowhere")) is None
    True
    """
    for folder in sorted(prefix.glob("lib/python3*/site-packages/keras-*.dist-info")):
        first = folder.name.removeprefix("keras-").split(".")[0]
        if first.isdecimal():
            return int(first)
    return None


def refuse_accelerate(words: Sequence[str]) -> None:
    """Raise for `accelerate launch --cpu --num_processes 2`, which starts one process.

    What follows the script belongs to the script.

    >>> refuse_accelerate(["accelerate", "launch", "--num_processes=2", "train.py", "--cpu"])
    """
    if len(words) < 3 or (Path(words[0]).name, words[1]) != ("accelerate", "launch"):
        return
    own = takewhile(lambda word: not word.endswith(".py"), words[2:])
    options = " ".join(own).replace("=", " ").split()
    if "--cpu" not in options or any(word.startswith("--mpirun") for word in options):
        return
    for name, value in pairwise(options):
        if name in ("--num_processes", "--num-processes") and value.isdecimal() and int(value) > 1:
            raise SpecError(
                f"`accelerate launch --cpu` with {value} processes",
                why="it starts one process, and says nothing",
                fix=f"stoker run --procs {value} SCRIPT, or "
                f"ACCELERATE_USE_CPU=true torchrun --nproc_per_node={value} SCRIPT",
            )
