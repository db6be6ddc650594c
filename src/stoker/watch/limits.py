"""How many cores and how much memory a process may use, as the kernel tells it.

Folders come from /proc/<pid>/cgroup and mountinfo, never from a job id: Slurm has changed how it
names them more than once, the last time in 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.watch.processes import GIB, read_start

# Version 1 writes "no limit" as the largest number of whole pages, near 2^63.
NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True)
class Mount:
    """One control group file system: where it is, what part it shows, what it controls."""

    point: str
    root: str
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class Cgroup:
    """The control group of a process: its folder and those above it, the innermost first."""

    version: int
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What the machine has and what of it a process may use; `None` is unknown or unlimited."""

    cores_machine: int | None
    cores_affinity: int | None  # in the affinity mask, which a cpuset narrows too
    cores_quota: float | None  # CPU time a second that the control group may take
    memory_machine_gib: float | None
    memory_limit_gib: float | None

    @property
    def cores(self) -> float | None:
        """The smallest of the three."""
        return _smallest((self.cores_affinity, self.cores_quota, self.cores_machine))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read a list of cores as the kernel writes it; what is not one gives no cores.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if match:
            cores.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cores)


def parse_cgroups(text: str) -> dict[str, str]:
    """Read /proc/<pid>/cgroup: the path of each controller, and of version 2 under ``.

    >>> parse_cgroups("4:cpu,cpuacct:/a\\n0::/b\\n")
    {'cpu': '/a', 'cpuacct': '/a', '': '/b'}
    """
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdigit() and colon and path.startswith("/"):
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def parse_mounts(text: str) -> list[Mount]:
    """Read the control group file systems out of /proc/<pid>/mountinfo."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        controllers = frozenset(kind[2].split(",") if len(kind) > 2 else ())
        mounts.append(Mount(_unescape(fields[4]), _unescape(fields[3]), version, controllers))
    return mounts


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def parse_cpu_max(text: str) -> float | None:
    """Read cpu.max and return cores; `None` if there is no limit.

    >>> parse_cpu_max("250000 100000"), parse_cpu_max("max 100000")
    (2.5, None)
    """
    words = text.split()
    if len(words) != 2 or not all(each.isdecimal() for each in words):
        return None
    return int(words[0]) / int(words[1]) if int(words[1]) else None


def parse_bytes(text: str) -> int | None:
    """Read a memory limit and return bytes; `None` if there is no limit.

    >>> parse_bytes("1048576"), parse_bytes("max"), parse_bytes("9223372036854771712")
    (1048576, None, None)
    """
    number = int(text) if text.strip().isdecimal() else NO_LIMIT_BYTES
    return number if number < NO_LIMIT_BYTES else None


def parse_table(raw: bytes) -> dict[bytes, int]:
    """Read lines of a name and a number: meminfo (in kB, as it says) or memory.stat.

    >>> parse_table(b"MemTotal:  8 kB\\ninactive_file 4\\n")
    {b'MemTotal': 8, b'inactive_file': 4}
    """
    table = {}
    for line in raw.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdigit():
            table[words[0].rstrip(b":")] = int(words[1])
    return table


def find_cgroup(
    controller: str, paths: Mapping[str, str], mounts: Iterable[Mount]
) -> Cgroup | None:
    """Return the control group of a controller; `None` if this process cannot see it."""
    for version in (1, 2):
        path = paths.get(controller if version == 1 else "")
        for mount in mounts:
            if path is None or mount.version != version:
                continue
            if version == 2 or controller in mount.controllers:
                return Cgroup(version, tuple(_folders(path, mount)))
    return None


def _folders(path: str, mount: Mount) -> Iterator[str]:
    """Walk from the innermost folder up to the mount point."""
    # A container may show the host's path and mount only that part of the tree, or the reverse:
    # a path outside of what is mounted begins with `/..`. Then the mount point is all we have.
    inside = PurePosixPath(path)
    if mount.root != "/":
        is_below = inside.is_relative_to(mount.root)
        inside = "/" / inside.relative_to(mount.root) if is_below else PurePosixPath("/")
    if ".." in inside.parts:
        inside = PurePosixPath("/")
    point = PurePosixPath(mount.point)
    for folder in (inside, *inside.parents):
        yield str(point / folder.relative_to("/"))


def read_cgroup(controller: str, pid: int, proc: Path = Path("/proc")) -> Cgroup | None:
    """Return the control group of a running process for `cpu`, `memory` or another controller."""
    paths = parse_cgroups(_text(f"{proc}/{pid}/cgroup"))
    return find_cgroup(controller, paths, parse_mounts(_text(f"{proc}/{pid}/mountinfo")))


def read_limits(pid: int, proc: Path = Path("/proc")) -> Limits:
    """Return what a process may use; the smallest limit on the way up its control groups counts."""
    cpu, memory = read_cgroup("cpu", pid, proc), read_cgroup("memory", pid, proc)
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)$", _text(f"{proc}/{pid}/status"), re.MULTILINE)
    cores = re.findall(r"^cpu[0-9]+ ", _text(f"{proc}/stat"), re.MULTILINE)
    total_kb = parse_table(_text(f"{proc}/meminfo").encode()).get(b"MemTotal")
    limit_bytes = _smallest(_each(memory, _memory_limit))
    return Limits(
        cores_machine=len(cores) or None,
        cores_affinity=len(parse_cpu_list(mask[1])) or None if mask else None,
        cores_quota=_smallest(_each(cpu, _quota)),
        memory_machine_gib=total_kb * 1024 / GIB if total_kb else None,
        memory_limit_gib=limit_bytes / GIB if limit_bytes is not None else None,
    )


def memory_folder(cgroup: Cgroup | None) -> str | None:
    """Return the folder whose memory limit is hit first; the innermost if there is no limit.

    The root of version 1 counts the whole machine and the root of version 2 nothing: without a
    limit neither says anything about a job.
    """
    if cgroup is None:
        return None
    limits = {folder: _memory_limit(cgroup.version, folder) for folder in cgroup.folders}
    known = {folder: limit for folder, limit in limits.items() if limit is not None}
    if known:
        return min(known, key=lambda folder: known[folder])
    return cgroup.folders[0] if len(cgroup.folders) > 1 or cgroup.version == 2 else None


def read_memory_gib(version: int, folder: str) -> float | None:
    """Return the memory that counts against a limit, without file pages that can be dropped."""
    used_file, idle_key = ("memory.current", b"inactive_file")
    if version == 1:
        used_file, idle_key = ("memory.usage_in_bytes", b"total_inactive_file")
    used = (read_start(f"{folder}/{used_file}") or b"").strip()
    if not used.isdigit():
        return None
    idle = parse_table(read_start(f"{folder}/memory.stat", 16384) or b"").get(idle_key, 0)
    return max(0, int(used) - idle) / GIB


def _each(
    cgroup: Cgroup | None, read: Callable[[int, str], float | None]
) -> Iterator[float | None]:
    if cgroup is not None:
        yield from (read(cgroup.version, folder) for folder in cgroup.folders)


def _quota(version: int, folder: str) -> float | None:
    if version == 2:
        return parse_cpu_max(_text(f"{folder}/cpu.max"))
    quota, period = _text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us")
    return parse_cpu_max(f"{quota} {period}")  # -1 is no limit, and not a decimal


def _memory_limit(version: int, folder: str) -> int | None:
    return parse_bytes(_text(f"{folder}/memory.{'max' if version == 2 else 'limit_in_bytes'}"))


def _smallest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
