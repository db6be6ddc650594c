"""Size the node-local disk against the data, or say why the site cannot give it."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

from stoker.cluster.profile import Cluster, Disk
from stoker.errors import SpecError
from stoker.plan.plan import Choice
from stoker.plan.spec import Staging
from stoker.units import GIB_PER_GB

# Counting a folder asks the shared file system about every file; past this many we do not.
MAX_FILES_COUNTED = 100_000
# Room for file-system overhead and for what the training writes beside the data.
HEADROOM = 1.1
# What a training usually writes: a few checkpoints.
RESULTS_GB = 50
# Compressed images hardly shrink, text does; four times is on the safe side for unpacking.
UNPACK_FACTOR = 4
# What makes a folder a packed data set.
INDEX_NAME = "index.stoker"
_COMPRESSED = (".gz", ".tgz", ".xz", ".bz2", ".zst", ".zip")


def choose_disk(staging: Staging, cluster: Cluster) -> tuple[int | None, list[Choice]]:
    """Return the GB to reserve on each node (`None` where nothing is reserved)."""
    disk = cluster.disk
    wants = staging.data is not None or staging.disk_gb is not None
    if not wants and not (staging.results is not None and disk.exists):
        return None, []
    _check_data(staging)
    if not disk.exists:
        raise _no_disk(staging, cluster)
    need_gb, how = _need(staging)
    if need_gb is None and disk.gres is not None:
        raise SpecError(
            f"the size of `{staging.data}` is not known here",
            why=f"{how}, and {cluster.title} wants the local disk reserved in GB",
            fix="--data-size 100G (its size), or --nvme 110 (GB to reserve on each node)",
        )
    if need_gb is None:
        return None, [Choice("local disk", _where(disk), f"automatic; {how}", disk.source)]
    _check_room(cluster, staging, need_gb, how)
    if disk.gres is not None or (disk.option == "tmp" and need_gb > (disk.free_gb or 0)):
        value = f"{need_gb} GB per node, {_where(disk)}"
        return need_gb, [Choice("local disk", value, how, disk.source)]
    return None, [Choice("local disk", _where(disk), f"automatic; {how}", disk.source)]


def _need(staging: Staging) -> tuple[int | None, str]:
    """Return the GB that the job needs on each node, and how that is known."""
    if staging.disk_gb is not None:
        return staging.disk_gb, "as asked for"
    room = RESULTS_GB if staging.results is not None else 0
    if staging.data is None:
        return room, f"{room} GB for results; --nvme asks for more"
    size_gib, how = _size(staging)
    if size_gib is None:
        return None, how
    return ceil(size_gib * HEADROOM / GIB_PER_GB) + room, f"{how}, a tenth added" + (
        f", {room} GB for results" if room else ""
    )


def _check_data(staging: Staging) -> None:
    """Refuse data that could not be copied under a name of its own."""
    if staging.data is None:
        return
    if staging.staged_name in ("", ".", ".."):
        raise SpecError(
            f"`{staging.data}` has no name to be copied under",
            why="the copy on the node is called as the last part of the path",
            fix="name the file or the folder itself",
        )
    if staging.unpack and staging.data.lower().endswith((".zip", ".7z", ".rar")):
        raise SpecError(
            f"`{staging.data}` is not a tar file",
            why="--unpack runs tar on the node",
            fix="leave --unpack out, or pack it with tar",
        )
    if staging.unpack and (Path(staging.data) / INDEX_NAME).exists():
        raise SpecError(
            f"`{staging.data}` is not a tar file",
            why="it is a packed data set, which is read as it is",
            fix="leave --unpack out: stoker.open(os.environ['STOKER_DATA']) reads the copy",
        )
    if staging.unpack and staging.verify:
        raise SpecError(
            "--verify has nothing to compare with",
            why="what --unpack takes out of a tar file is not there a second time",
            fix=f"leave one of them out; stoker verify {staging.data} checks the tar file itself",
        )


def _where(disk: Disk) -> str:
    return f"${disk.env}" if disk.env else disk.path or "unknown"


def _no_disk(staging: Staging, cluster: Cluster) -> SpecError:
    known = cluster.disk.exists is False
    why = "its nodes have none" if known else "whether its nodes have one is not known"
    note = f"; {cluster.disk.note}" if cluster.disk.note else ""
    option = "--data" if staging.data is not None else "--nvme"
    return SpecError(
        f"{cluster.title} has no node-local disk to use",
        why=f"{why}{note} ({cluster.disk.source or 'no source'})",
        fix=f"leave {option} out and read packed files from the shared file system"
        + ("" if known else "; if you know better: --set disk.exists=true --set disk.env=TMPDIR"),
    )


def _check_room(cluster: Cluster, staging: Staging, need_gb: int, how: str) -> None:
    disk = cluster.disk
    most = disk.max_gb if disk.max_gb is not None else disk.free_gb
    if most is not None and need_gb > most:
        raise SpecError(
            f"{need_gb} GB of local disk on each node",
            why=f"{cluster.title} gives at most {most:g} GB a node ({disk.source}); {how}",
            fix=f"--nvme {most:g}"
            + (
                " with less data, or leave --data out and read from the shared disk"
                if staging.data
                else ""
            ),
        )


def _size(staging: Staging) -> tuple[float | None, str]:
    """Return the size of the data in GiB, if it can be known from here, and how it is known."""
    assert staging.data is not None
    gib = staging.data_gib
    if gib is None:
        total = _count_bytes(Path(staging.data))
        if total is None:
            return None, "it is not visible from this machine, or has too many files to count"
        gib = total / 2**30
    if staging.unpack and staging.data.lower().endswith(_COMPRESSED):
        return (
            gib * UNPACK_FACTOR,
            f"{gib:.1f} GiB compressed, up to {UNPACK_FACTOR} times that unpacked",
        )
    return gib, f"the data is {gib:.1f} GiB"


def _count_bytes(path: Path) -> int | None:
    try:
        if path.is_file():
            return path.stat().st_size
        if not path.is_dir():
            return None
        total = count = 0
        for folder, _, files in os.walk(path, followlinks=True):
            for name in files:
                total += (Path(folder) / name).stat().st_size
            count += len(files)
            if count > MAX_FILES_COUNTED:
                return None
    except OSError:
        return None
    return total
