"""Run a script and its port side by side for a few steps, and compare their losses."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.engine.rank_variables import free_ports
from stoker.errors import ScriptError

TRIAL = Path(__file__).parent / "trial.py"
# Sums of 32-bit floats in another order: measured differences are below 1e-5 after ten steps; a
# wrong port (gradients not averaged, another batch) is off by 1e-2 and more.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
LIMIT_S = 300.0


@dataclass(frozen=True)
class Comparison:
    """The losses of one process and the means over the ranks of the port."""

    alone: tuple[float, ...]
    ported: tuple[float, ...]
    ranks: int

    @property
    def worst(self) -> float:
        """The largest difference, as a share of the loss."""
        pairs = zip(self.alone, self.ported, strict=False)
        return max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=0.0)

    @property
    def is_same(self) -> bool:
        """Whether both lost the same, but for rounding."""
        return (
            bool(self.alone)
            and len(self.alone) == len(self.ported)
            and all(
                abs(a - b) <= ABSOLUTE + RELATIVE * abs(a)
                for a, b in zip(self.alone, self.ported, strict=True)
            )
        )


@dataclass(frozen=True)
class Trial:
    """How both are run: by which Python, for how many steps, with which words after the script."""

    python: str
    ranks: int = 2
    steps: int = 6
    words: tuple[str, ...] = ()


def compare_losses(script: Path, ported: str, trial: Trial) -> Comparison:
    """Return the losses of a script and of its port; raise ScriptError if one of them fails."""
    with tempfile.TemporaryDirectory(prefix="stoker-port-") as name:
        folder = Path(name)
        port = folder / script.name
        port.write_text(ported)
        alone = _run(script, script.parent, folder / "alone", replace(trial, ranks=1))
        several = _run(port, script.parent, folder / "ranks", trial)
    count = min(map(len, several))
    means = tuple(sum(each[i] for each in several) / trial.ranks for i in range(count))
    return Comparison(tuple(alone[0]), means, trial.ranks)


def _run(script: Path, beside: Path, out: Path, trial: Trial) -> list[list[float]]:
    out.mkdir()
    running = []
    port = free_ports(1)[0]
    for rank in range(trial.ranks):
        env = _environment(rank, trial.ranks, port)
        env["PYTHONPATH"] = os.pathsep.join([str(beside.resolve()), env.get("PYTHONPATH", "")])
        words = [str(trial.steps), str(out / str(rank)), str(script), *trial.words]
        with (out / f"{rank}.log").open("wb") as log:
            command = [trial.python, str(TRIAL), *words]
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    _wait(running, script, out)
    return [json.loads((out / str(rank)).read_text()) for rank in range(trial.ranks)]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment of one rank; a process alone must not think that it is one of many."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env.setdefault("OMP_NUM_THREADS", "1")
    if ranks > 1:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port)}  # fmt: skip
    return env


def _wait(running: list[subprocess.Popen[bytes]], script: Path, out: Path) -> None:
    try:
        for rank, each in enumerate(running):
            if each.wait(timeout=LIMIT_S) != 0:
                tail = (out / f"{rank}.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise ScriptError(
                    f"`{script.name}` failed in its trial, on rank {rank} of {len(running)}",
                    why=" / ".join(tail) or "it said nothing",
                    fix="run it with python first; --python names one that has torch",
                )
    except subprocess.TimeoutExpired:
        raise ScriptError(
            f"`{script.name}` did not come to its last step in {LIMIT_S:.0f} s",
            why="a trial is a few steps only",
            fix="--steps 2, or less data",
        ) from None
    finally:
        for each in running:
            if each.poll() is None:
                each.kill()
