"""Where a process stands among the ranks of a training, from whatever launcher started it."""

from __future__ import annotations

import json
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Env = Mapping[str, str]

LOOPBACK = "127.0.0.1"
# Below the ports that Linux gives out by itself; the same as in our batch scripts.
FIRST_PORT, PORTS = 10000, 20000


class Place(NamedTuple):
    """One rank: which of how many, on which machine, and where rank 0 is."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    # None where the launcher does not say it.
    master_addr: str | None = None
    master_port: int | None = None
    # Who started us: torchrun, horovod, openmpi, slurm, mpich, jax, tensorflow, or none.
    launcher: str = "none"


def read_place(env: Env) -> Place:
    """Return where this process stands; whatever else is in the environment, it never fails.

    >>> read_place({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
    ...             "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})[:5]
    (3, 4, 1, 2, 1)
    """
    for read in _READERS:
        place = read(env)
        if place is not None:
            return _at_master(place, env)
    return _at_master(Place(), env)


def _at_master(place: Place, env: Env) -> Place:
    """Add the address that the environment gives, which beats what the launcher knows."""
    addr = env.get("MASTER_ADDR") or place.master_addr
    if addr is None and place.local_size >= place.world_size:
        addr = LOOPBACK
    port = number(env, "MASTER_PORT") or place.master_port
    return place._replace(master_addr=addr, master_port=port)


def number(env: Env, *names: str) -> int | None:
    """Return the first of these variables that is a number.

    >>> number({"A": "", "B": "7"}, "A", "B", "C")
    7
    """
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdecimal():
            return int(text)
    return None


def _make(env: Env, launcher: str, names: tuple[str, str, str, str], **more: Any) -> Place | None:
    """Return a place from the variables of rank, size, local rank and local size."""
    rank, size = number(env, names[0]), number(env, names[1])
    if rank is None or not size or rank >= size:
        return None
    local_size = number(env, names[3]) or size
    local_rank = number(env, names[2])
    if local_rank is None:
        local_rank = rank % local_size
    node = more.pop("node", None)
    if node is None:
        node = rank // local_size
    return Place(rank, size, local_rank, local_size, node, launcher=launcher, **more)


def _variables(env: Env) -> Place | None:
    """Read what torchrun, deepspeed and accelerate set, and our own scripts."""
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "variables"
    # Of these two, DeepSpeed sets the second.
    local = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in env else "LOCAL_SIZE"
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", local)
    node = number(env, "GROUP_RANK", "NODE_RANK", "CROSS_RANK")
    place = _make(env, launcher, names, node=node)
    if place is None or number(env, local) is not None:
        return place
    # Of those who set RANK alone, Slurm may know how many are on this machine.
    inner = _slurm(env) or _open_mpi(env)
    if inner is not None and (inner.rank, inner.world_size) == place[:2]:
        return inner._replace(local_rank=place.local_rank, launcher=launcher)
    return place


def _horovod(env: Env) -> Place | None:
    names = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
    return _make(
        env,
        "horovod",
        names,
        node=number(env, "HOROVOD_CROSS_RANK"),
        master_addr=env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    )


def _open_mpi(env: Env) -> Place | None:
    names = ("COMM_WORLD_RANK", "COMM_WORLD_SIZE", "COMM_WORLD_LOCAL_RANK", "COMM_WORLD_LOCAL_SIZE")
    rank, size, local_rank, local_size = (f"OMPI_{name}" for name in names)
    job = number(env, "OMPI_MCA_ess_base_jobid")
    return _make(
        env,
        "openmpi",
        (rank, size, local_rank, local_size),
        # Under Slurm, mpirun begins with the first node of the job.
        master_addr=first_host(env.get("SLURM_JOB_NODELIST", "")),
        master_port=job and _port(job >> 16),
    )


def _slurm(env: Env) -> Place | None:
    # In a batch script itself SLURM_PROCID is set as well, but no step id.
    step = number(env, "SLURM_STEP_ID")
    if step is None:
        return None
    node = number(env, "SLURM_NODEID")
    sizes = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
    job = number(env, "SLURM_JOB_ID")
    place = _make(
        env,
        "slurm",
        names,
        node=node,
        master_addr=first_host(env.get("SLURM_STEP_NODELIST", "")),
        # Two steps of one job may run side by side.
        master_port=None if job is None else _port(job + 1009 * step),
    )
    if place is not None and node is not None and node < len(sizes):
        return place._replace(local_size=sizes[node])
    return place


def _mpich(env: Env) -> Place | None:
    """Read what MPICH, Intel MPI and Cray's aprun set."""
    for local, size in (
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ):
        place = _make(env, "mpich", ("PMI_RANK", "PMI_SIZE", local, size))
        if place is None or local in env:
            return place
    return place


def _jax(env: Env) -> Place | None:
    addr, _, port = env.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")
    return _make(
        env,
        "jax",
        # Whoever starts processes of JAX on several machines says the rest as MPI does.
        (
            "JAX_PROCESS_ID",
            "JAX_NUM_PROCESSES",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        master_addr=addr or None,
        # The next one: JAX itself listens at its own.
        master_port=int(port) + 1 if port.isdecimal() else None,
    )


def _tensorflow(env: Env) -> Place | None:
    """Read TF_CONFIG: the chief comes first, then the workers; servers are no ranks of the training."""
    try:
        told = json.loads(env.get("TF_CONFIG", ""))
        cluster, task = told["cluster"], told["task"]
        kind, index = str(task["type"]), int(task["index"])
        trains = [(each, place, str(host)) for each in ("chief", "master", "worker")
                  for place, host in enumerate(cluster.get(each, ()))]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    hosts = [host.rpartition(":")[0] for _, _, host in trains]
    where = [each[:2] for each in trains]
    if (kind, index) not in where:
        return (
            Place(len(trains) + index, len(trains) or 1, launcher="tensorflow") if trains else None
        )
    rank = where.index((kind, index))
    nodes = list(dict.fromkeys(hosts))
    port = trains[0][2].rpartition(":")[2]
    return Place(
        rank,
        len(trains),
        hosts[:rank].count(hosts[rank]),
        hosts.count(hosts[rank]),
        nodes.index(hosts[rank]),
        hosts[0],
        # TensorFlow itself listens at the one that is told.
        _port(int(port) + 1) if port.isdecimal() else None,
        "tensorflow",
    )


# mpirun in a Slurm job starts its daemons with srun: what it sets itself is nearer to us.
_READERS: tuple[Callable[[Env], Place | None], ...] = (
    _variables, _horovod, _jax, _open_mpi, _slurm, _mpich, _tensorflow,
)  # fmt: skip


def _port(seed: int) -> int:
    return FIRST_PORT + seed % PORTS


def first_host(names: str) -> str | None:
    """Return the first host of a list as Slurm writes it.

    >>> first_host("n[007-012,20],login1"), first_host("r1c[3,5]-ib"), first_host("")
    ('n007', 'r1c3-ib', None)
    """
    text = ""
    depth, skips = 0, False
    for letter in names:
        if letter == "[":
            depth, skips = depth + 1, False
        elif letter == "]":
            depth, skips = depth - 1, False
        elif letter == "," and not depth:
            break
        elif depth and (letter in ",-" or skips):
            skips = True
        else:
            text += letter
    return text or None


def tasks_per_node(text: str) -> list[int]:
    """Return how many tasks each node has, from Slurm's short form.

    >>> tasks_per_node("4(x2),3"), tasks_per_node("many")
    ([4, 4, 3], [])
    """
    sizes: list[int] = []
    for part in text.split(","):
        size, _, times = part.rstrip(")").partition("(x")
        if not size.isdecimal() or not (times or "1").isdecimal():
            return []
        sizes += [int(size)] * min(int(times or "1"), 100_000)
    return sizes
