"""What holds for the whole cluster: Slurm's settings, the GPUs' shares, local disk, billing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.cluster.detect.answers import known, read_int, read_time
from stoker.cluster.detect.nodes import Kind, Nodes, share
from stoker.cluster.detect.queues import Person, Queue
from stoker.units import render_time

# Resources that sites call the disk inside a node.
DISKS = (
    "nvme",
    "ssd",
    "lscratch",
    "localscratch",
    "local_scratch",
    "localtmp",
    "tmpdisk",
    "tmp",
    "scratch",
)
# More than this is not a number of GB: the site counts bytes, or something else.
MAX_DISK_GB = 1_000_000


def slurm_table(
    settings: Mapping[str, str], kinds: Sequence[Kind], queues: Sequence[Queue], person: Person
) -> dict[str, Any]:
    """Return how this Slurm is asked."""
    version = re.match(r"\d+\.\d+", settings.get("SLURM_VERSION", ""))
    defaults = {_time(queue.record.get("DefaultTime")) for queue in queues if queue.kinds}
    is_typed = any(kind.type for kind in kinds)
    facts: dict[str, Any] = {
        "version": version[0] if version else None,
        "gpu_option": "gres",
        "gpu_type": ("optional" if is_typed else "never") if kinds else None,
        "partition": "required",
        "account": _account_need(settings, person),
        "account_pattern": _account_pattern(person.accounts or ()),
        "account_example": (person.accounts or (None,))[0],
        "default_time": defaults.pop() if len(defaults) == 1 else None,
        "mpi": known(settings.get("MpiDefault")),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _time(text: str | None) -> str | None:
    seconds = read_time(text)
    return render_time(seconds) if seconds else None


def _account_need(settings: Mapping[str, str], person: Person) -> str | None:
    """Return whether --account is wanted: Slurm takes the usual one unless the site objects."""
    enforced = set(settings.get("AccountingStorageEnforce", "").split(","))
    if not enforced & {"associations", "limits", "qos", "safe", "all"}:
        return "optional"
    has_plugin = known(settings.get("JobSubmitPlugins")) is not None
    return "required" if has_plugin or len(person.accounts or ()) > 1 else "optional"


def _account_pattern(accounts: Iterable[str]) -> str | None:
    """Return the form that several accounts share; one account alone tells none."""
    names = list(accounts)
    forms = {
        re.sub(r"\d+", lambda run: rf"\\d{{{len(run[0])}}}", re.escape(name)) for name in names
    }
    form = forms.pop() if len(forms) == 1 else ""
    return form.replace("\\\\d", "\\d") if len(names) > 1 and "d{" in form else None


def gpu_table(kind: Kind, queues: Sequence[Queue]) -> dict[str, Any]:
    """Return what is known of a kind of GPU; where its nodes differ, what each of them has."""
    mine = [queue for queue in queues if kind in queue.kinds]
    cpus = _least([*(group.cpus for group in kind.groups), *_limits(mine, "MaxCPUsPerNode")])
    limits = [limit // 1024 for limit in _limits(mine, "MaxMemPerNode") if limit]
    memory = _least([*(group.mem_gib for group in kind.groups), *limits])
    part = min(share(kind, group) for group in kind.groups)
    is_alone = all(len(group.build.gpus) == 1 for group in kind.groups) and kind.mig is None
    defaults = _agreed(queue.record.get("JobDefaults", "") for queue in mine)
    wanted = _default(defaults, "DefCpuPerGPU")
    facts: dict[str, Any] = {
        "type": kind.type,
        "constraint": kind.feature,
        "memory_gb": _memory_gb(kind),
        "per_node": kind.per_node,
        "counts": [1] if kind.mig else None,
        "cpus_per_node": None if cpus is None else int(cpus),
        "cpus_per_gpu": None if is_alone or cpus is None else max(1, int(cpus * part)),
        "mem_gib_per_node": memory,
        "mem_gib_per_gpu": None if is_alone or memory is None else max(1, int(memory * part)),
        "nodes": len(kind.names),
        "arch": _agreed(known(group.record.get("Arch")) for group in kind.groups),
        "note": _difference(kind),
        "access": _closed(mine),
    }
    if wanted and cpus and wanted * kind.per_node <= cpus:
        facts["cpus_per_gpu"] = wanted
    if kind.is_away:
        facts["available"] = False
    return {key: value for key, value in facts.items() if value is not None}


def _memory_gb(kind: Kind) -> int | None:
    """Return the memory that the name of a type tells: nvidia_a100_80gb_pcie, a100_1g.5gb."""
    sizes = re.findall(r"(\d+)gb", (kind.type or "").lower())
    return int(sizes[-1]) if sizes and int(sizes[-1]) > 0 else None


def _closed(queues: Sequence[Queue]) -> str | None:
    """Return who may use a kind of GPU, if every queue that has it is closed."""
    reasons = [queue.access for queue in queues]
    return reasons[0] if reasons and all(reasons) else None


def _difference(kind: Kind) -> str | None:
    cores = sorted({group.cpus for group in kind.groups if group.cpus})
    sizes = sorted({group.mem_gib for group in kind.groups if group.mem_gib})
    parts = [f"{cores[0]} to {cores[-1]} CPUs"] if len(cores) > 1 else []
    parts += [f"{sizes[0]:g} to {sizes[-1]:g} GiB"] if len(sizes) > 1 else []
    threads = max(group.build.threads for group in kind.groups)
    notes = [f"nodes differ: {' and '.join(parts)}; the least is given"] if parts else []
    notes += [f"a core counts as {threads} CPUs"] if threads > 1 else []
    return "; ".join(notes) or None


def _limits(queues: Iterable[Queue], key: str) -> list[int]:
    return [limit for queue in queues if (limit := read_int(queue.record.get(key)))]


def _default(text: str | None, key: str) -> int | None:
    match = re.search(rf"\b{key}=(\d+)", text or "")
    return int(match[1]) if match else None


def _agreed(values: Iterable[str | None]) -> str | None:
    every = set(values)
    return every.pop() if len(every) == 1 else None


def _least(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number), default=None)


def disk_table(
    settings: Mapping[str, str], groups: Sequence[Nodes], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return what is known of the disk inside the nodes that have GPUs (of all, if none has)."""
    nodes = [group for group in groups if group.build.gpus] or list(groups)
    gres = next(
        (each.name for group in nodes for each in group.build.gres if each.name in DISKS), None
    )
    if gres is not None:
        sizes = [each.count for group in nodes for each in group.build.gres if each.name == gres]
        most = max(sizes) if max(sizes) <= MAX_DISK_GB else None
        facts = {"exists": True, "gres": gres, "env": _disk_variable(environ), "max_gb": most}
        return {key: value for key, value in facts.items() if value is not None}
    sizes = [group.build.disk_mb or 0 for group in nodes]
    path = known(settings.get("TmpFS"))
    if path is not None and "%" in path:
        # Each node fills in its own name, which is not known before the job.
        path = None
    # 0 is what Slurm says where nobody wrote the size down.
    if not sizes or min(sizes) < 1024 or path is None:
        return {}
    facts = {"exists": True, "path": path, "free_gb": min(sizes) // 1000}
    # This plugin gives each job a /tmp of its own, gone with the job.
    is_private = path == "/tmp" and "tmpfs" in settings.get("JobContainerType", "")
    return {**facts, "kept": False} if is_private else facts


def _disk_variable(environ: Mapping[str, str]) -> str | None:
    """Return the variable that names the disk, if this machine's environment has one."""
    names = ("LOCAL_SCRATCH", "SLURM_TMPDIR", "LOCALSCRATCH", "JOB_TMPDIR")
    return next((name for name in names if environ.get(name)), None)


def billing_table(settings: Mapping[str, str], queues: Sequence[Queue]) -> dict[str, Any]:
    """Return what Slurm itself bills, where all GPU partitions bill alike."""
    weights = _agreed(
        known(queue.record.get("TRESBillingWeights")) for queue in queues if queue.kinds
    )
    if weights is None:
        return {}
    prices = {
        name.strip().lower(): price
        for name, _, price in (part.partition("=") for part in weights.split(","))
    }
    flags = settings.get("PriorityFlags", "")
    facts = {
        "unit": "billing units of Slurm",
        "rule": "max" if "MAX_TRES" in flags else "sum",
        "per_gpu_hour": _price(prices.get("gres/gpu")),
        "per_cpu_hour": _price(prices.get("cpu")),
        "per_mem_gib_hour": _memory_price(prices.get("mem")),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _price(text: str | None) -> float | None:
    match = re.fullmatch(r"\d+(\.\d+)?", text or "")
    return float(match[0]) if match else None


def _memory_price(text: str | None) -> float | None:
    """Read a price of memory: for a MiB, unless a unit follows it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT]?)", (text or "").upper())
    if not match:
        return None
    return float(match[1]) * {"": 1024.0, "M": 1024.0, "G": 1.0, "T": 1 / 1024}[match[2]]
