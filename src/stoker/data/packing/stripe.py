"""Lustre: large files of a folder lie on several servers, so that many nodes can read them."""

from __future__ import annotations

import shutil
from pathlib import Path

from stoker.data.mounts import file_system

CALL_S = 30.0


def stripe(folder: Path) -> bool:
    """Set the layout of files that a folder will get; tell whether it was done."""
    if shutil.which("lfs") is None or file_system(folder) != "lustre":
        return False
    # Elsewhere these only cost time.
    import subprocess

    from stoker.plan.staging import LUSTRE_LAYOUT

    words = ["lfs", "setstripe", *LUSTRE_LAYOUT.split(), str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, timeout=CALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False  # The site's own layout is good enough.
    return done.returncode == 0
