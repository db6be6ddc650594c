"""What the trainings of tests/programs/trains say, and what they should."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from extensions import torch_extensions

ROOT = Path(__file__).parent.parent
TRAINS = ROOT / "tests/programs/trains"
# What scripts/setup-frameworks and setup-horovod leave when they are through.
READY = {
    ".venv-torch": "more-ready",
    ".venv-tf": "tf-ready",
    ".venv-jax": "jax-ready",
    ".venv-horovod": "ready",
    ".venv-horovod-tf": "ready",
}


class Training(NamedTuple):
    """A program of tests/programs/trains, and where its framework is."""

    program: str
    venv: str = ".venv-torch"
    # Its arguments; `{nodes}` and `{each}` stand for nodes and processes on each.
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    # Where one process speaks for all.
    speaks_alone: bool = False

    @property
    def python(self) -> Path:
        """The interpreter that has the framework."""
        return ROOT / self.venv / "bin/python"

    @property
    def is_there(self) -> bool:
        """Whether its environment was made to the end: Horovod cannot be built everywhere."""
        return (ROOT / self.venv / READY[self.venv]).exists()

    @property
    def built(self) -> dict[str, str]:
        """The variable that says where DeepSpeed finds the part of itself that is built already."""
        is_zero = self.program == "zero"
        return {"TORCH_EXTENSIONS_DIR": str(torch_extensions())} if is_zero else {}

    def words(self, nodes: int, each: int) -> list[str]:
        """Return the script and its arguments for this shape."""
        return [f"{self.program}.py", *(a.format(nodes=nodes, each=each) for a in self.arguments)]


def _zero(stage: int) -> Training:
    return Training("zero", arguments=("--deepspeed_config", f"zero{stage}.json"))


TRAININGS = {
    "ddp": Training("ddp"),
    "fsdp": Training("fsdp"),
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero3": _zero(3),
    "accelerate": Training("accelerated", env=(("ACCELERATE_USE_CPU", "true"),)),
    "lightning": Training("lit", arguments=("{nodes}", "{each}")),
    "hugging face": Training("hugging"),
    "horovod": Training("horovod_torch", ".venv-horovod"),
    "horovod, tensorflow": Training("horovod_tf", ".venv-horovod-tf"),
    "mpi4py": Training("by_mpi", ".venv-horovod"),
    "multiworker": Training("tf_workers", ".venv-tf"),
    "parameter server": Training("tf_servers", ".venv-tf", speaks_alone=True),
    "jax": Training("jax_ranks", ".venv-jax", env=(("JAX_PLATFORMS", "cpu"),)),
}


def lay_out(folder: Path) -> None:
    """Copy the programs to where a user has them."""
    shutil.copytree(TRAINS, folder, dirs_exist_ok=True)
    for stage in (1, 2, 3):
        config = {"train_batch_size": 32, "zero_optimization": {"stage": stage}}
        config |= {"zero_allow_untested_optimizer": True, "steps_per_print": 10**9}
        (folder / f"zero{stage}.json").write_text(json.dumps(config))


class Rank(NamedTuple):
    """One rank at its end."""

    rank: int
    world: int
    host: str
    weights: tuple[float, ...]


def read_ranks(text: str) -> list[Rank]:
    """Return the ranks that have told how they ended, in order."""
    found = re.findall(r"rank (\d+) of (\d+) on (\S+): (\[.*?\])", text)
    return sorted(
        Rank(int(rank), int(world), host, tuple(json.loads(values)))
        for rank, world, host, values in found
    )


def check_ranks(ranks: list[Rank], training: Training, world: int) -> None:
    """All ranks are there, and ended with the weights of one process."""
    speakers = 1 if training.speaks_alone else world
    assert [each.rank for each in ranks] == list(range(speakers))
    assert {each.world for each in ranks} == {world}
    assert len({each.weights for each in ranks}) == 1
    # Some hundred roundings of 32-bit floats; a rank that is missing changes the second digit.
    assert ranks[0].weights == pytest.approx(weights(), abs=1e-5)


def weights() -> list[float]:
    """Return the weights of one process, by the formula."""
    sys.path.append(str(TRAINS))
    from told import INPUTS, OUTPUTS, RATE, STEPS, rows  # type: ignore[import-not-found]

    sys.path.remove(str(TRAINS))
    inputs, targets = rows()
    weight = [[0.0] * INPUTS for _ in range(OUTPUTS)]
    for _ in range(STEPS):
        slope = [[0.0] * INPUTS for _ in range(OUTPUTS)]
        for x, y in zip(inputs, targets, strict=True):
            for output, line in enumerate(weight):
                error = sum(a * b for a, b in zip(line, x, strict=True)) - y[output]
                for column, value in enumerate(x):
                    slope[output][column] += 2 * error * value / (len(inputs) * OUTPUTS)
        for output, line in enumerate(weight):
            weight[output] = [a - RATE * b for a, b in zip(line, slope[output], strict=True)]
    return [each for line in weight for each in line]
