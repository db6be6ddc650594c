"""The first process of one machine of the cluster: it arranges the machine's files, then reaps.

    inside.py STATE NAME FOLDER…

It runs as process 1 in namespaces of its own, so that all it mounts is gone with it. The FOLDERs
are what every machine must see where it is: the shared folder, the checkout, the Pythons.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# Where things are laid by while what stood over them is covered.
BENCH = Path("/mnt")
LOCAL_DISK_MB = 128
# What Slurm keeps track of processes with, and bounds their memory.
CONTROLLERS = ("freezer", "memory")


def cages(state: str, name: str) -> dict[Path, Path]:
    """Return the machine's own part of each hierarchy of control groups, by where Slurm looks for it.

    Only for hierarchies of version 1: to version 2 Slurm comes with systemd.
    """
    own = state.strip("/").replace("/", "-")
    tops = [Path("/sys/fs/cgroup", controller) for controller in CONTROLLERS]
    return {top: top / own / name for top in tops} if all(map(Path.is_dir, tops)) else {}


def main() -> None:
    state, name, *folders = sys.argv[1:]
    socket.sethostname(name)
    arrange(Path(state), [Path(folder) for folder in folders])
    for top, own in cages(state, name).items():
        mount("--bind", own, top)
    Path("/run/cluster/ready", name).touch()
    reap_for_ever()


def arrange(state: Path, folders: list[Path]) -> None:
    """Give this machine its own /tmp, /run, /dev/shm and view of the network, and the shared rest."""
    mount("-t", "tmpfs", "tmpfs", BENCH)
    own_state = lay_by(state)
    # The view of network devices under /sys is that of whoever mounted it.
    cover(Path("/sys"), ["-t", "sysfs", "sysfs"], [Path("/sys/fs/cgroup")])
    for folder, mode in {Path("/tmp"): "1777", Path("/run"): "755", **closed(folders)}.items():
        inner = [each for each in folders if each.is_relative_to(folder)]
        cover(folder, ["-t", "tmpfs", "-o", f"size=1g,mode={mode}", "tmpfs"], inner)
    mount("-t", "tmpfs", "-o", "size=1g,mode=1777", "tmpfs", "/dev/shm")
    for made in ("cluster", "munge", "slurm", "mysqld", "nvme", "gpu"):
        Path("/run", made).mkdir()
    mount("--move", own_state, "/run/cluster")
    mount("--bind", "/run/cluster/munge", "/run/munge")
    mount("-t", "tmpfs", "-o", f"size={LOCAL_DISK_MB}m,mode=755", "tmpfs", "/run/nvme")
    for name in ("hosts", "passwd", "group", "slurm"):
        mount("--bind", f"/run/cluster/etc/{name}", f"/etc/{name}")
    for number in range(4):
        Path(f"/run/gpu/nvidia{number}").symlink_to("/dev/null")
    for name, owner in (("slurm", "slurm"), ("mysqld", "mysql")):
        subprocess.run(["chown", owner, f"/run/{name}"], check=True)


def closed(folders: list[Path]) -> dict[Path, str]:
    """Return the folders above these that only their owner may enter, as a home often is."""
    found = {}
    for folder in folders:
        for above in reversed(folder.parents):
            if not above.stat().st_mode & 0o001:
                found[above] = "755"
                break
    return found


def cover(folder: Path, words: list[str], keep: list[Path]) -> None:
    """Mount something over a folder, with some of what was in it still in its place."""
    if not folder.is_dir():
        return
    laid = [(path, lay_by(path)) for path in keep if path.is_dir()]
    mount(*words, folder)
    for path, place in laid:
        path.mkdir(parents=True, exist_ok=True)
        mount("--move", place, path)


def lay_by(path: Path) -> Path:
    """Bind a folder to a place on the bench, and return the place."""
    place = BENCH / str(sum(1 for _ in BENCH.iterdir()))
    place.mkdir()
    mount("--rbind", path, place)
    return place


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def reap_for_ever() -> None:
    """Bury the processes whose parents are gone, as the first process has to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main()
