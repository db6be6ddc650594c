"""What a GPU changes: each PyTorch and JAX example on the processor, and on the GPU under watch.

    PYTHONPATH=src python3 benchmarks/examples.py -o examples.json
    PYTHONPATH=src python3 benchmarks/examples.py --only torch_ddp,torch_fsdp

Each example trains for the same steps up to three times: on the processor, on the GPU, and on the GPU
under `stoker run`, which also starts the ranks that an example needs. The losses of the first and
the second are compared, as far as the order in which numbers are added may change them, and those
of the second and the third, which should be the same. What the report then says is written down.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from figures import render_table, write_results
from machine import (
    HERE,
    Budget,
    describe_machine,
    plain_environment,
    render_machine,
    stoker_environment,
    stoker_run,
)

EXAMPLES = HERE.parent / "examples"
LIMIT_S = 120.0
# What an example needs besides PyTorch.
NEEDS = {
    "jax_data_parallel": "jax",
    "torch_accelerate": "accelerate",
    "torch_lightning": "lightning",
}
# One process for each GPU, started by torchrun's variables.
RANKED = ("torch_ddp", "torch_fsdp", "torch_accelerate", "torch_resnet50", "jax_data_parallel")
ALONE = ("torch_single", "torch_lightning", "torch_model_parallel")
# JAX has no launcher of its own: without ours its processes do not find each other.
ONLY_BY_US = ("jax_data_parallel",)
WORDS = ("--images", "12800", "--every", "10")
OTHER_WORDS = {"torch_resnet50": ("--steps", "100")}
# On the processor these take minutes and say nothing more.
ONLY_ON_GPU = ("torch_resnet50",)
LOSS = re.compile(r"loss[ =:]+(\d+\.\d+)")


@dataclass(frozen=True)
class Outcome:
    """One example, as it ran in one way."""

    took_s: float
    losses: list[float]
    output: str


@dataclass(frozen=True)
class Told:
    """One example, and what its three runs had to say."""

    example: str
    cpu: Outcome | None
    gpu: Outcome | None
    watched: Outcome
    verdict: str


def main() -> None:
    args = parse_arguments()
    budget = Budget(args.budget_s)
    wanted = args.only.split(",") if args.only else [*ALONE, *RANKED]
    told, left_out = [], []
    for example in wanted:
        if example in NEEDS and find_spec(NEEDS[example]) is None:
            left_out.append(f"{example} (no {NEEDS[example]} here)")
        elif not budget.has(LIMIT_S / 4):
            left_out.append(f"{example} (no time left)")
        else:
            try:
                told.append(try_example(example))
            except RuntimeError as error:
                left_out.append(f"{example} (failed)")
                print(error, file=sys.stderr, flush=True)
            else:
                print(render_rows(told[-1:]), flush=True)
    packages = ("torch", "jax", "lightning", "accelerate")
    results = {
        "machine": describe_machine(sys.executable, packages, plain_environment()),
        "command": shlex.join(["benchmarks/examples.py", *sys.argv[1:]]),
        "examples": [asdict(each) for each in told],
        "left_out": left_out,
    }
    write_results(args.output, results, render_page(results, told))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="EXAMPLE,…", help=f"of {', '.join((*ALONE, *RANKED))}")
    parser.add_argument("--budget-s", type=float, help="stop cleanly within so many seconds")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "examples.json")
    return parser.parse_args()


def try_example(example: str) -> Told:
    """Run an example in its three ways, and read the report of the last."""
    words = [str(EXAMPLES / f"{example}.py"), *OTHER_WORDS.get(example, WORDS)]
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        if example in RANKED
        else []
    )
    procs = ["--procs", "1"] if example in RANKED else []
    with tempfile.TemporaryDirectory() as folder:

        def ours(name: str) -> list[str]:
            words_of_run = ["--quiet", *procs, *words]
            return stoker_run(sys.executable, Path(folder) / name, *words_of_run)

        plain, env = [sys.executable, *launcher, *words], plain_environment()
        if example in ONLY_BY_US:
            plain, env = ours("plain"), stoker_environment()
        hidden = {**env, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        return Told(
            example,
            None if example in ONLY_ON_GPU else time_command(plain, hidden, folder),
            None if example in ONLY_BY_US else time_command(plain, env, folder),
            time_command(ours("watched"), stoker_environment(), folder),
            read_verdict(Path(folder) / "watched"),
        )


def time_command(command: Sequence[str], env: Mapping[str, str], folder: str) -> Outcome:
    """Run a command to its end, and read its losses."""
    start = perf_counter()
    done = subprocess.run(
        command, env=dict(env), cwd=folder, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    took_s = perf_counter() - start
    if done.returncode:
        raise RuntimeError(
            f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    losses = [float(each) for each in LOSS.findall(done.stdout)]
    return Outcome(took_s, losses, done.stdout[-400:])


def read_verdict(run: Path) -> str:
    """Return the sentence that the report begins with."""
    words = [sys.executable, "-m", "stoker", "report", str(run), "--json"]
    done = subprocess.run(words, env=stoker_environment(), capture_output=True, check=True)
    report = json.loads(done.stdout)
    return str(report["verdict"])


def far(some: Sequence[float], others: Sequence[float]) -> str:
    """Write the largest difference of losses, as a part of the loss."""
    if not some or len(some) != len(others):
        return "–"
    most = max(abs(one - two) / max(abs(two), 1e-9) for one, two in zip(some, others, strict=True))
    return "0" if most == 0 else f"{most:.1e}"


def render_rows(told: Sequence[Told]) -> str:
    head = ("example", "on the processor", "on the GPU", "under `stoker run`", "last loss",
            "GPU to processor", "watched to GPU", "verdict")  # fmt: skip
    rows = [
        (
            f"`{each.example}`",
            f"{each.cpu.took_s:.1f} s" if each.cpu else "–",
            f"{each.gpu.took_s:.1f} s" if each.gpu else "–",
            f"{each.watched.took_s:.1f} s",
            f"{each.watched.losses[-1]:.4f}" if each.watched.losses else "–",
            far(each.watched.losses, each.cpu.losses) if each.cpu else "–",
            far(each.watched.losses, each.gpu.losses) if each.gpu else "–",
            each.verdict,
        )
        for each in told
    ]
    return render_table(head, rows)


def render_page(results: Mapping[str, Any], told: Sequence[Told]) -> str:
    """Return the page that shows the figures."""
    missing = f"\nLeft out: {', '.join(results['left_out'])}.\n" if results["left_out"] else ""
    return "\n".join(
        [
            "# The examples on a GPU\n",
            f"{render_machine(results['machine'])}\n",
            f"`{results['command']}`. Whole commands, Python's and CUDA's start included; losses as a part "
            "of the loss.\n",
            render_rows(told) + missing,
        ]
    )


if __name__ == "__main__":
    main()
