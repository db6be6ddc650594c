"""MPI starts the ranks, mpi4py tells each its place, and PyTorch's own groups do the rest.

For sites where mpirun or srun is the way to start anything.

Here:          stoker run --procs 2 --framework mpi examples/torch_mpi.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 --framework mpi examples/torch_mpi.py
"""

import os
import socket

import torch_ddp
from mpi4py import MPI


def meet() -> None:
    """Set what `init_process_group` reads: who am I, and where is the first."""
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    meeting = None
    if world.rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            meeting = (socket.gethostname(), probe.getsockname()[1])
    host, port = world.bcast(meeting)
    os.environ |= {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(node.rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


if __name__ == "__main__":
    meet()
    torch_ddp.main()
