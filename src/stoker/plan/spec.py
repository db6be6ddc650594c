"""Spec: what the user asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

FRAMEWORKS = (
    "plain",
    "mpi",
    "ddp",
    "fsdp",
    "deepspeed",
    "horovod",
    "mirrored",
    "multiworker",
    "parameter-server",
    "lightning",
    "accelerate",
    "jax",
)


@dataclass(frozen=True)
class Staging:
    """What to copy to the node's own disk before the run, and what to bring back after it."""

    data: str | None = None
    data_gib: float | None = None
    unpack: bool = False
    verify: bool = False
    data_option: str | None = None
    results: str | None = None
    results_option: str | None = None
    disk_gb: int | None = None

    @property
    def staged_name(self) -> str:
        """What the data is called on the node: `/x/train.tar.gz`, unpacked → `train`."""
        name = self.data.rstrip("/").rsplit("/", 1)[-1] if self.data else ""
        return re.sub(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", "", name) if self.unpack else name


@dataclass(frozen=True)
class Survival:
    """What to do when the time limit comes."""

    requeue: bool = False
    signal: str = "USR1"
    grace_s: int = 120
    max_restarts: int = 10


@dataclass(frozen=True)
class Setup:
    """Where Python and the framework come from; empty means what the cluster profile says."""

    modules: tuple[str, ...] = ()
    container: str | None = None
    venv: str | None = None
    conda: str | None = None
    lines: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Spec:
    """What the user asked for; `None` leaves the choice to the planner."""

    command: tuple[str, ...]
    is_module: bool = False
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    cpus_per_task: int | None = None
    mem_gib: float | None = None
    time_s: int | None = None
    framework: str = "auto"
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    job_name: str | None = None
    test: bool = False
    staging: Staging = Staging()
    survival: Survival = Survival()
    setup: Setup = Setup()
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The training script, or the module's name."""
        return self.command[0]

    @property
    def is_python(self) -> bool:
        """Whether the command is started by Python."""
        return self.is_module or self.script.endswith(".py")
