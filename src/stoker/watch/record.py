"""run.json: what was run, where, when, and how it ended."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stoker import __version__
from stoker.watch.folder import RunFolder

# What changes how a program runs and where; nothing that may hold a secret.
TOLD = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_NNODES",
        "SLURM_CLUSTER_NAME", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_NTASKS_PER_NODE",
        "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS",
        "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_TIMELIMIT",
        "SLURM_PROCID", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_PREFIX")  # fmt: skip


def begin_run(
    folder: RunFolder,
    command: Sequence[str],
    start: float,
    *,
    asked: Sequence[str] = (),
    launch: str | None = None,
) -> None:
    """Write what is known before the program starts.

    What was asked for are the words after `stoker run` that start the same again, where the command
    does not tell; `launch` is that of its tasks, if it has any.
    """
    folder.write(
        folder.run_json,
        {
            "made_by": f"stoker {__version__}",
            "id": folder.name,
            "launch": launch,
            "command": list(command),
            **({"asked": list(asked)} if asked else {}),
            "cwd": str(Path.cwd()),
            "host": os.uname().nodename,
            "supervisor": os.getpid(),
            "supervisor_started": started(os.getpid()),
            "python": sys.version.split()[0],
            "environment": {name: os.environ[name] for name in TOLD if name in os.environ},
            "start": start,
            "end": None,
            "exit": None,
        },
    )


def end_run(folder: RunFolder, code: int, notes: Sequence[str], is_whole: bool) -> None:
    """Add how it ended, and what recording cost."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    folder.write(
        folder.run_json,
        {
            **folder.read(folder.run_json),
            "end": time.time(),
            "exit": code,
            "is_whole": is_whole,
            "notes": list(notes),
            "recorder_cpu_s": round(own.ru_utime + own.ru_stime, 3),
        },
    )


def started(pid: object) -> int | None:
    """Return when a process began, in the kernel's ticks; None if there is none of that number.

    A number is given again, in a container soon; both together never are.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return int(words[19])
    except (OSError, ValueError, IndexError):
        return None
