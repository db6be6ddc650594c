"""Plan: what we ask the scheduler for, with a reason for each number."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.cluster.profile import Cluster, Gpu, Partition
from stoker.plan.spec import Spec


@dataclass(frozen=True)
class Choice:
    """One number of the plan, why it is that, and the fact behind it."""

    name: str
    value: str
    reason: str
    source: str | None = None


@dataclass(frozen=True)
class Notice:
    """Something the user should know before submitting."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True)
class Shape:
    """How many nodes, with how many GPUs each, from which queue."""

    nodes: int
    gpus_per_node: int
    gpu: Gpu | None
    partition: Partition | None

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def is_full(self) -> bool:
        """Whether every node is taken whole, so that nobody else shares it."""
        if self.partition is not None and self.partition.exclusive:
            return True
        return bool(
            self.gpu and self.gpu.slice_of is None and self.gpu.per_node == self.gpus_per_node
        )


@dataclass(frozen=True)
class Launch:
    """How the processes are started."""

    form: str
    tasks_per_node: int
    processes_per_node: int
    reason: str
    has_rendezvous: bool = False
    has_rank_variables: bool = False


@dataclass(frozen=True)
class Environment:
    """The shell lines that give the job its Python, and what stands before the command."""

    title: str
    reason: str
    source: str | None = None
    setup: tuple[str, ...] = ()
    node_setup: tuple[str, ...] = ()
    activate: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    prefix: str | None = None
    torchrun: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What the request costs in the site's own unit."""

    unit: str
    per_hour: float
    total: float
    formula: str
    source: str


@dataclass(frozen=True)
class Plan:
    """What we ask the scheduler for, with a reason for each number."""

    spec: Spec
    cluster: Cluster
    framework: str
    shape: Shape
    launch: Launch
    environment: Environment
    cpus_per_task: int
    mem_gib: float | None
    disk_gb: int | None
    time_s: int
    threads: int
    cost: Cost | None
    directives: tuple[tuple[str, str | None], ...]
    choices: tuple[Choice, ...]
    notices: tuple[Notice, ...]
    makes_tf_config: bool = False
