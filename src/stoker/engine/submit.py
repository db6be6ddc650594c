"""From a batch script to a job: sbatch, and what its environment must not take along."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stoker.engine.slurm import call
from stoker.errors import SlurmError

# Slurm's own settings of this machine; everything else named so belongs to the job we may be in.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
# Of the process that we are, if somebody watches it.
WATCHED = ("STOKER_RUN", "STOKER_SCRIBE", "STOKER_LINES")
JOB_ID = re.compile(r"^(\d+)(?:;(\S+))?\s*$", re.MULTILINE)


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what the job that we may be in has left in it.

    >>> scrubbed({"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/s.conf", "HOME": "/h"})
    {'SLURM_CONF': '/etc/s.conf', 'HOME': '/h'}
    """
    leaks = re.compile(r"(SLURM|SRUN|SLURMD|PMI|PMIX)_|MASTER_(ADDR|PORT)$")
    kept = {
        name: value
        for name, value in env.items()
        if name in KEPT or not (leaks.match(name) or name in WATCHED)
    }
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    own = [path for path in paths if not path.endswith("/stoker/watch/inject")]
    if own != paths:
        kept["PYTHONPATH"] = os.pathsep.join(own)
    return kept


def submit(script: Path, env: Mapping[str, str]) -> str:
    """Give a script to sbatch and return the job's number."""
    said = call(["sbatch", "--parsable", str(script)], env=scrubbed(env), is_question=False)
    match = JOB_ID.search(said)
    if match is None:
        raise SlurmError(
            "sbatch gave no job number",
            why=f"it says: {said.strip()[:200] or 'nothing'}",
            fix="see `stoker jobs` before you submit again",
        )
    return match.group(1)


def cluster_name() -> str | None:
    """Return what Slurm calls this cluster."""
    match = re.search(
        r"^ClusterName\s*=\s*(\S+)", call(["scontrol", "show", "config"]), re.MULTILINE
    )
    return match.group(1) if match else None
