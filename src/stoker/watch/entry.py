"""How watching gets into the processes of a run: through their environment."""

from __future__ import annotations

# `socket` takes 3 ms more, which the user's program would wait for.
import _socket
import os
from collections.abc import Mapping
from pathlib import Path

# Runs a script as Python would, with its lines counted.
EXACT = Path(__file__).parent / "inside/exact.py"
INJECT = Path(__file__).parent / "inject"


def is_watched(env: Mapping[str, str]) -> bool:
    """Say whether a run is already watching this process."""
    # A job that was submitted from a run carries its environment, but not its scribe.
    # Whoever is killed leaves its socket behind: only one that answers is somebody's.
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        channel.connect(env.get("STOKER_SCRIBE", ""))
    except OSError:
        return False
    finally:
        channel.close()
    return True


def watched_environment(
    env: Mapping[str, str], *, folder: Path, address: str, exact_lines: bool
) -> dict[str, str]:
    """Return the environment in which every Python process is watched."""
    path = env.get("PYTHONPATH")
    return {
        **env,
        "PYTHONPATH": os.pathsep.join([str(INJECT), *([path] if path else [])]),
        "STOKER_RUN": str(folder),
        "STOKER_SCRIBE": address,
        **({"STOKER_LINES": "exact"} if exact_lines else {}),
    }
