"""The checks that every node makes before the training starts. Run on the nodes, by the job's Python.

Standard library only, and torch if the job has it. What it is to check comes as JSON in its one
argument; what is wrong is said as what / why / fix on stderr, and the exit code is 1.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Wanted = Mapping[str, Any]

HELLO_S = 20.0
REDUCE_S = 60.0
REDUCE_BYTES = 4 << 20


class Wrong(Exception):
    """Something that would have made the training fail, or hang."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix


def check_script(wanted: Wanted) -> None:
    """The script is there, as seen from this node."""
    path = wanted.get("script")
    if path and not Path(path).is_file():
        raise Wrong(
            f"there is no {path} on this node",
            f"the job runs in {Path.cwd()}, which may not be shared by all nodes",
            "submit from a folder that every node sees, or name the script with its whole path",
        )


def check_gpus(wanted: Wanted) -> None:
    """The node gave as many GPUs as the launcher will use."""
    count = wanted.get("gpus", 0)
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    told = next((os.environ[name] for name in names if os.environ.get(name)), None)
    if not count or told is None:
        return
    seen = len([each for each in told.split(",") if each])
    if seen < count:
        raise Wrong(
            f"{seen} of {count} GPUs are visible",
            f"Slurm gave {told!r} to this node",
            "ask for them by --gpus-per-node, and not with --gpus-per-task, which hides them from each other",
        )


def check_cpus(wanted: Wanted) -> None:
    """The cores of the task are really its own."""
    count = min(wanted.get("cpus", 0), os.cpu_count() or 1)
    seen = len(os.sched_getaffinity(0))
    if seen < count:
        raise Wrong(
            f"the task may run on {seen} of its {count} cores",
            "since Slurm 22.05, srun does not take --cpus-per-task from sbatch",
            'give it again: srun --cpus-per-task="$SLURM_CPUS_PER_TASK"',
        )


def check_disk(wanted: Wanted) -> None:
    """There is room on the node's own disk for what will be copied to it."""
    need, folder = wanted.get("local_bytes", 0), os.path.expandvars(wanted.get("local") or "")
    if not need or not folder.startswith("/"):
        return
    path = next(each for each in (Path(folder), *Path(folder).parents) if each.is_dir())
    free = shutil.disk_usage(path).free
    if free < need:
        raise Wrong(
            f"{path} has {free / 1e9:.1f} GB free, the data needs {need / 1e9:.1f}",
            "the data is copied to every node's own disk",
            "ask for more local disk (--nvme), or read the data in place",
        )


def check_compiler(wanted: Wanted) -> None:
    """There is a compiler where the framework builds a part of itself when it starts."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    if wanted.get("compiler") and not any(shutil.which(name) for name in names if name):
        raise Wrong(
            "there is no C++ compiler on this node",
            "on CPUs DeepSpeed builds its communication when it first starts",
            "--module gcc, or CXX with the path of one",
        )


def check_interfaces(_: Wanted) -> None:
    """The network interfaces that the libraries are told to use exist."""
    here = [name for _, name in socket.if_nameindex()]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        told = os.environ.get(variable, "")
        if not told or told.startswith("^"):
            continue
        exact = told.startswith("=") or variable != "NCCL_SOCKET_IFNAME"
        for name in told.lstrip("=").split(","):
            fits = name in here if exact else any(each.startswith(name) for each in here)
            if not fits:
                raise Wrong(
                    f"{variable} names {name}, and there is no such interface",
                    f"this node has {', '.join(here)}",
                    f"--env {variable}=NAME with one of them, or leave it out",
                )


def check_meeting(wanted: Wanted) -> None:
    """All nodes reach the first one, at the port where the ranks will meet."""
    nodes, node = wanted.get("nodes", 1), int(os.environ.get("SLURM_NODEID", "0"))
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if nodes < 2 or not address or not port:
        return
    token = f"stoker {os.environ.get('SLURM_JOB_ID', '')}".encode()
    if node == 0:
        store = receive(address, int(port), token, nodes)
    else:
        store = greet(address, int(port), token, node)
    reduce_all(address, store, node, nodes)


def receive(address: str, port: int, token: bytes, nodes: int) -> int:
    """Wait for a word of every other node; tell each where the ranks meet next."""
    try:
        door = socket.create_server(("", port), backlog=nodes)
    except OSError as error:
        raise Wrong(
            f"port {port} of {address} is taken",
            f"{error.strerror}: another program listens there",
            "submit again: the port is made of the job's number; or set another with --env MASTER_PORT=N",
        ) from None
    store = free_port()
    waiting = set(range(1, nodes))
    friends: list[socket.socket] = []
    deadline = time.monotonic() + HELLO_S
    with door:
        while waiting:
            door.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                friend, _ = door.accept()
                friend.settimeout(5)
                words = friend.recv(100).split(b"/")
            except OSError:
                if time.monotonic() < deadline:
                    continue
                raise Wrong(
                    f"{names_of(waiting)} did not reach {address}:{port} within {HELLO_S:.0f} s",
                    "a firewall, another network, or a node that hangs stands between them",
                    f"try again without it: --sbatch=--exclude={names_of(waiting)}; tell the site's support",
                ) from None
            if words[0] == token:
                waiting.discard(int(words[1]))
                friends.append(friend)
        for friend in friends:
            friend.sendall(token + b"/" + str(store).encode())
            friend.close()
    return store


def greet(address: str, port: int, token: bytes, node: int) -> int:
    """Say a word to the first node, and hear where the ranks meet next."""
    deadline = time.monotonic() + HELLO_S
    error: OSError | None = None
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=HELLO_S) as friend:
                friend.sendall(token + b"/" + str(node).encode())
                words = friend.recv(100).split(b"/")
        except OSError as caught:
            error = caught
            time.sleep(0.2)
            continue
        if words == [b""]:
            raise Wrong(
                f"{address} did not hear from all nodes",
                "it ended before it could answer this one",
                "look for the error of that node: it names those that did not come",
            )
        if words[0] != token:
            raise Wrong(
                f"somebody else answers at {address}:{port}",
                "another program on that node has the port where the ranks would meet",
                "submit again: the port is made of the job's number; or set another with --env MASTER_PORT=N",
            )
        return int(words[1])
    raise Wrong(
        f"{address}:{port} cannot be reached",
        f"{error}; it is {socket_address(address)} as seen from here",
        "check that the nodes' names lead to addresses that all of them see; tell the site's support",
    )


def reduce_all(address: str, port: int, node: int, nodes: int) -> None:
    """Sum a few megabytes over all nodes, as the training will, if torch is there."""
    try:
        import torch  # type: ignore[import-not-found]
        import torch.distributed as dist  # type: ignore[import-not-found]
    except ImportError:
        return
    from datetime import timedelta

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}:{port}",
            rank=node,
            world_size=nodes,
            timeout=timedelta(seconds=REDUCE_S),
        )
        values = torch.ones(REDUCE_BYTES // 4)
        if backend == "nccl":
            values = values.cuda()
        dist.all_reduce(values)
        total = float(values[0])
        dist.destroy_process_group()
    except Exception as error:
        raise Wrong(
            f"the nodes cannot sum {REDUCE_BYTES >> 20} MB with {backend}",
            str(error).strip().partition("\n")[0],
            "name the network: --env GLOO_SOCKET_IFNAME=ib0 --env NCCL_SOCKET_IFNAME=ib0 (`ip addr` lists them)",
        ) from None
    if total != nodes:
        raise Wrong(
            f"the sum over {nodes} nodes is {total:g}",
            f"{backend} lost a part of it",
            "tell the site's support: nothing trained on these nodes can be trusted",
        )


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as door:
        door.bind(("", 0))
        return int(door.getsockname()[1])


def socket_address(name: str) -> str:
    """Return the address that a name leads to, as seen from here."""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return f"unknown ({error})"


def names_of(numbers: Iterable[int]) -> str:
    """Return the names of nodes of this job, by their numbers."""
    names = os.environ.get("STOKER_NODES", "").split()
    known = [names[each] for each in sorted(numbers) if each < len(names)]
    return ",".join(known) or "node " + ", ".join(map(str, sorted(numbers)))


CHECKS = (
    check_script,
    check_gpus,
    check_cpus,
    check_disk,
    check_compiler,
    check_interfaces,
    check_meeting,
)


def main() -> int:
    """Make the checks; 0 if the training may start."""
    wanted = json.loads(sys.argv[1])
    for check in CHECKS:
        try:
            check(wanted)
        except Wrong as wrong:
            host = os.uname().nodename
            print(
                f"error: {host}: {wrong.what}\n  why: {wrong.why}\n  fix: {wrong.fix}",
                file=sys.stderr,
                flush=True,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
