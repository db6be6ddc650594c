"""Arguments that several verbs share, and how they become a spec."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.cluster.layers import Layer, defaults, file_layers, parse_overrides
from stoker.cluster.load import load_cluster, resolve_name
from stoker.cluster.profile import Cluster
from stoker.commands.parser import typed
from stoker.errors import UsageError, nearest
from stoker.plan.spec import FRAMEWORKS, Setup, Spec, Staging, Survival
from stoker.units import (
    parse_count,
    parse_gib,
    parse_memory,
    parse_name,
    parse_positive,
    parse_time,
)

# Signals that mean nothing else and that srun passes on: TERM and INT come from scancel too,
# HUP makes srun end the job.
SIGNALS = ("USR1", "USR2")


def variable(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
        raise argparse.ArgumentTypeError(f"`{text}` is not NAME=VALUE")
    return name, value


def signal_name(text: str) -> str:
    """Read a signal's name, with or without SIG."""
    name = text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise argparse.ArgumentTypeError(f"`{text}` is not one of {', '.join(SIGNALS)}")
    return name


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add --set, which overrides one fact of a cluster profile."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FACT=VALUE",
        help="override one fact of the cluster, e.g. partition.gpu.time=5-00:00:00",
    )


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add everything that says what a job should be."""
    where = parser.add_argument_group("where and how much")
    where.add_argument(
        "--cluster",
        type=typed(parse_name),
        metavar="NAME",
        help="the cluster (stoker cluster list)",
    )
    where.add_argument(
        "--gpus",
        type=typed(parse_count),
        metavar="N",
        help="GPUs in all (default 1; 0: a CPU job)",
    )
    where.add_argument("--nodes", type=typed(parse_positive), metavar="N", help="nodes")
    where.add_argument(
        "--gpus-per-node", type=typed(parse_positive), metavar="N", help="GPUs on each node"
    )
    where.add_argument(
        "--gpu", type=typed(parse_name), metavar="KIND", help="which GPU, or which slice of one"
    )
    where.add_argument(
        "--time", type=typed(parse_time), metavar="T", help="time limit: 90m, 36h, 2-00:00:00"
    )
    where.add_argument("--test", action="store_true", help="use the site's short test partition")
    where.add_argument(
        "--cpus-per-task", type=typed(parse_positive), metavar="N", help="CPUs of each task"
    )
    where.add_argument(
        "--mem", type=typed(parse_memory), metavar="SIZE", help="memory of each node"
    )
    where.add_argument("--partition", type=typed(parse_name), metavar="NAME", help="partition")
    where.add_argument("--qos", type=typed(parse_name), metavar="NAME", help="quality of service")
    where.add_argument("--account", type=typed(parse_name), metavar="NAME", help="whom to bill")
    where.add_argument(
        "--job-name",
        type=typed(parse_name),
        metavar="NAME",
        help="name of the job (default: the script's)",
    )
    add_set(parser)

    how = parser.add_argument_group("framework and environment")
    how.add_argument(
        "--framework",
        default="auto",
        metavar="F",
        help="auto (default: read from the script) or " + ", ".join(FRAMEWORKS),
    )
    how.add_argument("--module", action="append", default=[], metavar="NAME", help="module to load")
    how.add_argument("--venv", metavar="DIR", help="virtual environment to activate")
    how.add_argument("--conda", metavar="NAME", help="conda environment to activate")
    how.add_argument("--container", metavar="FILE", help="container image to run in")
    how.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a shell line to run once the environment is there",
    )
    how.add_argument(
        "--env",
        action="append",
        default=[],
        type=variable,
        metavar="NAME=VALUE",
        help="a variable to set",
    )

    data = parser.add_argument_group("data and results")
    data.add_argument(
        "--data",
        metavar="PATH",
        help="copy this to the local disk of every node; the job finds it in $STOKER_DATA",
    )
    data.add_argument(
        "--data-size",
        type=typed(parse_gib),
        metavar="SIZE",
        help="its size, if it cannot be seen from here",
    )
    data.add_argument(
        "--unpack", action="store_true", help="unpack the data, a tar file, on the node"
    )
    data.add_argument(
        "--verify",
        action="store_true",
        help="check every byte of the copy, of packed data by its checksums",
    )
    data.add_argument(
        "--data-option", metavar="NAME", help="pass its place to the script as NAME PATH"
    )
    data.add_argument(
        "--nvme",
        type=typed(parse_positive),
        metavar="GB",
        help="local disk to reserve on each node",
    )
    data.add_argument(
        "--results",
        metavar="DIR",
        help="copy what the job writes to $STOKER_RESULTS to DIR, at the end, on failure and before the time limit",
    )
    data.add_argument(
        "--results-option", metavar="NAME", help="pass $STOKER_RESULTS to the script as NAME PATH"
    )

    end = parser.add_argument_group("time limit and pass-through")
    end.add_argument(
        "--requeue",
        action="store_true",
        help="signal the training before the time limit, then queue the job again",
    )
    end.add_argument(
        "--signal",
        type=signal_name,
        default="USR1",
        metavar="SIG",
        help="the signal: USR1 (default) or USR2",
    )
    end.add_argument(
        "--grace",
        type=typed(parse_positive),
        default=120,
        metavar="S",
        help="seconds between signal and limit (default 120)",
    )
    end.add_argument(
        "--max-restarts",
        type=typed(parse_count),
        default=10,
        metavar="N",
        help="queue it again at most so often (default 10)",
    )
    end.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="add any sbatch option: --sbatch=--mail-type=END",
    )
    end.add_argument(
        "--no-sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="leave one out: --no-sbatch=mem",
    )

    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="the script is a module, as in python -m"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="script …",
        help="the training script and its own arguments",
    )


def read_arguments(
    parser: argparse.ArgumentParser, words: Sequence[str], layers: Sequence[Layer]
) -> argparse.Namespace:
    """Parse a command line; the defaults of the user's and the project's files come before it."""
    before: list[str] = []
    for name, value in defaults(layers).items():
        option = f"--{name.replace('_', '-')}"
        if option not in parser._option_string_actions or name in ("help", "json", "script"):
            match = nearest(option, parser._option_string_actions)
            raise UsageError(
                f"unknown default `{name}`",
                why="[defaults] in a Stoker file holds options of the command line",
                fix=f"did you mean `{match[2:]}`?" if match else "see stoker plan --help",
            )
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool):
                before += [option] if each else []
            else:
                before.append(f"{option}={each}")
    return parser.parse_args([*before, *words])


def read_spec(args: argparse.Namespace) -> Spec:
    """Turn parsed arguments into a spec."""
    command = list(args.command)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UsageError(
            "no training script was given",
            why="the script and its arguments come last",
            fix="stoker plan --cluster puhti --gpus 2 train.py --epochs 3",
        )
    if len(command) > 1 and re.fullmatch(r"(.*/)?python3?(\.[0-9]+)?", command[0]):
        command = command[1:]  # the job's own Python is used
        args.is_module = args.is_module or command[0] == "-m"
        command = command[1:] if command[0] == "-m" else command
    return Spec(
        command=tuple(command),
        is_module=args.is_module,
        gpus=args.gpus,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        gpu=args.gpu,
        cpus_per_task=args.cpus_per_task,
        mem_gib=args.mem,
        time_s=args.time,
        framework=args.framework,
        partition=args.partition,
        qos=args.qos,
        account=args.account,
        job_name=args.job_name,
        test=args.test,
        staging=Staging(
            data=args.data,
            data_gib=args.data_size,
            unpack=args.unpack,
            verify=args.verify,
            data_option=args.data_option,
            results=args.results,
            results_option=args.results_option,
            disk_gb=args.nvme,
        ),
        survival=Survival(args.requeue, args.signal, args.grace, args.max_restarts),
        setup=Setup(
            modules=tuple(args.module),
            container=args.container,
            venv=args.venv,
            conda=args.conda,
            lines=tuple(args.setup),
            env=tuple(args.env),
        ),
        add=tuple(args.sbatch),
        drop=tuple(args.no_sbatch),
    )


def read_layers() -> tuple[Layer, ...]:
    """Return the user's and the project's files."""
    return file_layers(Path.cwd())


def read_cluster(args: argparse.Namespace, layers: Sequence[Layer]) -> Cluster:
    """Return the cluster that was asked for, facts from the command line laid on top."""
    name: Any = args.cluster
    if name is None:
        if shutil.which("sbatch"):
            refuse_late_cluster(args.command)
            raise UsageError(
                "no cluster was named",
                why="this machine has Slurm, but which cluster it is cannot be told",
                fix="--cluster NAME (stoker cluster list; stoker cluster detect --save learns this one), "
                'or cluster = "NAME" under [defaults] in stoker.toml',
            )
        name = "local"
    return load_overridden(name, args.set, layers)


def refuse_late_cluster(command: Sequence[str]) -> None:
    """Raise UsageError if the cluster was named where the script's own words are."""
    if any(word.partition("=")[0] == "--cluster" for word in command):
        raise UsageError(
            "no cluster was named before the script",
            why="everything after the script's name belongs to it, so --cluster went there",
            fix="put it before the script: --cluster NAME … train.py",
        )


def load_overridden(name: str, overrides: Sequence[str], layers: Sequence[Layer]) -> Cluster:
    """Return a cluster with the facts of all files, those of the command line on top."""
    key = resolve_name(name, layers)
    return load_cluster(key, [*layers, *parse_overrides(overrides, key)])
