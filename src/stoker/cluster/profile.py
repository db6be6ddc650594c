"""What there is: a cluster and its parts, as values.

A cluster profile is a TOML file with one table per class below. A key that is not
there is unknown and stays `None`; nothing in Stoker guesses it. Every table says in
`source` where its facts come from.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Literal

from stoker.units import parse_time

Status = Literal["in service", "retired", "unknown"]
Need = Literal["required", "optional", "never"]


@dataclass(frozen=True)
class Slurm:
    """How this site's Slurm wants to be asked."""

    version: str | None = None
    gpu_option: Literal["gres", "gpus-per-node", "none"] = "gres"
    gpu_type: Need = "optional"
    partition: Need = "optional"
    account: Need | None = None
    account_pattern: str | None = None
    account_example: str | None = None
    mem: Need = "optional"
    time: Need = "optional"
    default_time: str | None = None
    min_time: str | None = None
    constraint: str | None = None
    qos: Need = "optional"
    full_nodes: bool = True
    mail: bool = True
    mpirun: bool = True
    mpi: str | None = None
    login: str | None = None
    signs: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU and the node that it sits in, or a slice of one (MIG)."""

    name: str
    title: str | None = None
    vendor: Literal["nvidia", "amd"] | None = None
    type: str | None = None
    aliases: tuple[str, ...] = ()
    constraint: str | None = None
    memory_gb: float | None = None
    per_node: int | None = None
    counts: tuple[int, ...] = ()
    cpus_per_node: int | None = None
    cpus_per_gpu: float | None = None
    mem_gib_per_node: float | None = None
    mem_gib_per_gpu: float | None = None
    disk_gb: float | None = None
    nodes: int | None = None
    bf16: bool | None = None
    arch: str | None = None
    slice_of: str | None = None
    rate: float | None = None
    mem_rate: float | None = None
    cpu_rate: float | None = None
    access: str | None = None
    available: bool = True
    note: str | None = None
    source: str = ""

    @property
    def mem_share_gib(self) -> float | None:
        """The memory that goes with one GPU: as published, else the node's divided evenly."""
        if self.mem_gib_per_gpu is not None or not (self.mem_gib_per_node and self.per_node):
            return self.mem_gib_per_gpu
        return float(int(self.mem_gib_per_node / self.per_node))

    @property
    def cpu_share(self) -> float | None:
        """The CPU cores that go with one GPU: as published, else the node's divided evenly."""
        if self.cpus_per_gpu is not None or not (self.cpus_per_node and self.per_node):
            return self.cpus_per_gpu
        return self.cpus_per_node / self.per_node


@dataclass(frozen=True)
class Partition:
    """One queue: a partition, a QOS, or both, with its limits."""

    name: str
    kind: Literal["gpu", "cpu"] = "gpu"
    partition: str | None = None
    qos: str | None = None
    automatic: bool = False
    gpus: tuple[str, ...] = ()
    time: str | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    max_cpus: int | None = None
    mem_gib_per_node: float | None = None
    default_mem_gib: float | None = None
    exclusive: bool | None = None
    test: bool = False
    access: str | None = None
    disputed: bool = False
    source: str = ""

    @property
    def slurm_name(self) -> str:
        """What --partition is given; empty where the queue is a QOS alone or chosen by the site."""
        if self.automatic:
            return ""
        return self.name if self.partition is None else self.partition

    @property
    def request(self) -> str:
        """The options that ask for this queue."""
        partition = f"--partition={self.slurm_name}" if self.slurm_name else ""
        return " ".join(filter(None, [partition, f"--qos={self.qos}" if self.qos else ""]))

    @property
    def time_s(self) -> int | None:
        """The longest job it takes, in seconds."""
        return None if self.time is None else parse_time(self.time)


@dataclass(frozen=True)
class Disk:
    """The disk inside a compute node."""

    exists: bool | None = None
    gres: str | None = None
    option: str | None = None
    env: str | None = None
    path: str | None = None
    # Whether what a job leaves there is still there for the next one.
    kept: bool | None = None
    free_gb: float | None = None
    max_gb: float | None = None
    note: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Billing:
    """What a request costs, in the site's own unit."""

    unit: str | None = None
    rule: Literal["sum", "max", "slots"] = "sum"
    per_gpu_hour: float | None = None
    per_cpu_hour: float | None = None
    per_mem_gib_hour: float | None = None
    per_disk_gib_hour: float | None = None
    per_node_hour: float | None = None
    slot_cpus: float | None = None
    slot_mem_gib: float | None = None
    note: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Software:
    """How a job gets one framework: shell lines, and what stands before the command."""

    name: str
    setup: tuple[str, ...] = ()
    node_setup: tuple[str, ...] = ()
    activate: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    prefix: str | None = None
    torchrun: tuple[str, ...] = ()
    note: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Tools:
    """What this site's own environments are built with."""

    base: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    container: str | None = None
    wrapper_until: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Network:
    """What the nodes talk over, and what the communication libraries must be told."""

    title: str | None = None
    # What all links of a node carry together, in one direction.
    gbit_per_node: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Binding:
    """Which cores belong to which GPU of a full node, in the order of local ranks."""

    cpu_masks: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """One machine that jobs run on."""

    name: str
    schema: int
    title: str
    status: Status
    scheduler: Literal["slurm", "none"] = "slurm"
    operator: str | None = None
    retired: dt.date | None = None
    successor: str | None = None
    checked: dt.date | None = None
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    source: str = ""
    slurm: Slurm = Slurm()
    gpu: dict[str, Gpu] = field(default_factory=dict)
    partition: dict[str, Partition] = field(default_factory=dict)
    disk: Disk = Disk()
    billing: Billing = Billing()
    software: dict[str, Software] = field(default_factory=dict)
    tools: Tools = Tools()
    network: Network = Network()
    binding: Binding = Binding()

    @property
    def is_retired(self) -> bool:
        """Whether the machine no longer runs jobs."""
        return self.status == "retired"
