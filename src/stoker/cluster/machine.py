"""What this machine has, as a table that completes the profile `local`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any


def machine_table(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[str, Any]:
    """Return the GPUs, cores and memory of this machine in the form of a profile."""
    titles = _nvidia(proc) or _amd(sys)
    if not titles:
        return {}
    vendor = "nvidia" if _nvidia(proc) else "amd"
    gpu: dict[str, Any] = {
        "title": titles[0],
        "vendor": vendor,
        "per_node": len(titles),
        "cpus_per_node": len(os.sched_getaffinity(0)),
        "source": "read from this machine",
    }
    memory = _memory_gib(proc)
    if memory is not None:
        gpu["mem_gib_per_node"] = memory
    return {"gpu": {"gpu": gpu}}


def _nvidia(proc: Path) -> list[str]:
    titles = []
    for path in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        match = re.search(r"^Model:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
        titles.append(match[1].strip() if match else "NVIDIA GPU")
    return titles


def _amd(sys: Path) -> list[str]:
    nodes = sorted(sys.glob("class/kfd/kfd/topology/nodes/*/gpu_id"))
    return [
        "AMD GPU" for path in nodes if path.read_text(errors="replace").strip() not in ("", "0")
    ]


def _memory_gib(proc: Path) -> float | None:
    try:
        match = re.search(r"^MemTotal:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) // 2**20 * 1.0 if match else None
