"""What the ranks of TensorFlow and JAX are told, where Stoker starts them itself on this machine."""

from __future__ import annotations

import json
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Environ = Mapping[str, str]

# One rank as ranks.py reads it: its name, its variables, and whether the training ends with it.
Told = dict[str, object]


def has_gpu() -> bool:
    """Say whether this machine shows a GPU; without asking PyTorch, which takes seconds."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


def tensorflow_workers(count: int, environ: Environ) -> list[Told]:
    """Return so many workers of one cluster."""
    return _tensorflow({"worker": count}, ("worker",), environ)


def tensorflow_servers(count: int, environ: Environ) -> list[Told]:
    """Return a chief that leads, one server, and so many workers; the chief comes first."""
    return _tensorflow({"chief": 1, "ps": 1, "worker": count}, ("chief",), environ)


def _tensorflow(tasks: Mapping[str, int], leaders: Sequence[str], environ: Environ) -> list[Told]:
    ports = iter(free_ports(sum(tasks.values())))
    cluster = {
        kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in tasks.items()
    }
    ranks: list[Told] = []
    for kind, hosts in cluster.items():
        for index in range(len(hosts)):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            env = {"TF_CONFIG": json.dumps(config)}
            if has_gpu():
                # Chief and server stay off the workers' GPUs.
                own = nth_device(environ, index) if kind == "worker" else ""
                env["CUDA_VISIBLE_DEVICES"] = own
            ranks.append({"name": f"{kind} {index}", "leads": kind in leaders, "env": env})
    return ranks


def nth_device(environ: Environ, index: int) -> str:
    """Return the GPU of one rank, out of those that we were given.

    >>> nth_device({"CUDA_VISIBLE_DEVICES": "2,3"}, 1), nth_device({}, 1)
    ('3', '1')
    """
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if not given:
        return str(index)
    devices = given.split(",")
    return devices[index % len(devices)]


def jax_processes(count: int, environ: Environ) -> list[Told]:
    """Return processes with JAX's own variables, and Open MPI's, by which `initialize()` finds them."""
    # The one after it is for stoker.context().
    port = free_ports(1)[0]
    ranks: list[Told] = []
    for rank in range(count):
        env = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": str(count),
            "JAX_PROCESS_ID": str(rank),
            "OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": str(count),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(count),
        }
        ranks.append({"name": f"process {rank}", "env": env})
    return ranks


def free_ports(count: int) -> list[int]:
    """Return ports of this machine at which nobody listens now."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
