"""Packing as a Slurm array: each element packs a share, and a last job joins them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stoker.cluster.layers import Layer, defaults, fold
from stoker.cluster.load import load_cluster, names, resolve_name
from stoker.cluster.profile import Cluster
from stoker.data.index import replacing
from stoker.data.packing import journal
from stoker.data.packing.journal import TASK
from stoker.data.packing.order import Order
from stoker.data.packing.pack import plan_shares, refusing
from stoker.engine.submit import cluster_name, submit
from stoker.errors import UsageError
from stoker.plan.make import make_plan
from stoker.plan.notices import ACCOUNT_PLACEHOLDER
from stoker.plan.script import render_script
from stoker.plan.spec import Spec
from stoker.units import parse_time

MEM_GIB = 2.0
TIME_S = 12 * 3600
JOIN_TIME_S = 2 * 3600


@dataclass(frozen=True)
class Job:
    """What the jobs ask for; `None` leaves it to the user's files or the planner."""

    account: str | None = None
    partition: str | None = None
    time_s: int | None = None
    options: tuple[str, ...] = ()


class Submitted(NamedTuple):
    """The numbers of the two jobs."""

    array: str
    join: str


def find_cluster(name: str | None, layers: Sequence[Layer]) -> Cluster:
    """Return the cluster with this name, or the one that this Slurm says it is."""
    known = defaults(layers)
    name = name or (str(known["cluster"]) if "cluster" in known else cluster_name())
    if name is None or fold(name) not in names(layers):
        raise UsageError(
            "no cluster was named" if name is None else f"the cluster `{name}` is not known",
            why="which partition and account a job needs is in the cluster's profile",
            fix="stoker cluster detect --save, then again; or --cluster NAME (stoker cluster list)",
        )
    return load_cluster(resolve_name(name, layers), list(layers))


def submit_shares(
    order: Order, words: Sequence[str], count: int, job: Job, cluster: Cluster
) -> Submitted:
    """Submit an array that packs, and a job after it that joins. `words` are the settings."""
    plan_shares(order, count)
    source, out = str(order.source.resolve()), str(order.out.resolve())
    folder = order.out / journal.NAME
    packs = (*_stoker(), "pack", source, out, *words, "--share", f"{TASK}/{count}")
    array = _spec(job, packs, f"--array=1-{count}", f"--output={out}/{journal.NAME}/%a.log")
    first = _submit(array, cluster, folder / "pack.sh")
    joins = (*_stoker(), "pack", out, "--join")
    last = _spec(
        job, joins, f"--dependency=afterok:{first}", f"--output={out}/{journal.NAME}/join.log"
    )
    last = replace(last, cpus_per_task=1, time_s=min(last.time_s or TIME_S, JOIN_TIME_S))
    return Submitted(first, _submit(last, cluster, folder / "join.sh"))


def with_defaults(job: Job, layers: Sequence[Layer]) -> Job:
    """Return what is asked for, with what the user's files say where nothing is."""
    known = defaults(layers)

    def text(name: str) -> str | None:
        return str(known[name]) if name in known else None

    time = text("time")
    return Job(
        job.account or text("account"),
        job.partition,
        job.time_s or (parse_time(time) if time else None),
        job.options,
    )


def _spec(job: Job, command: tuple[str, ...], *options: str) -> Spec:
    return Spec(
        command=command,
        gpus=0,
        nodes=1,
        cpus_per_task=4,
        mem_gib=MEM_GIB,
        time_s=job.time_s or TIME_S,
        framework="plain",
        partition=job.partition,
        account=job.account,
        job_name="stoker-pack",
        add=(*job.options, "--open-mode=append", *options),
    )


def _submit(spec: Spec, cluster: Cluster, path: Path) -> str:
    plan = make_plan(spec, cluster)
    if any(value == ACCOUNT_PLACEHOLDER for _, value in plan.directives):
        raise UsageError(
            "no account was given",
            why=f"{plan.cluster.title} bills every job to one",
            fix='--account NAME, or account = "NAME" under [defaults] in stoker.toml',
        )
    with refusing(path.parent.parent), replacing(path) as file:
        file.write(render_script(plan).encode("utf-8", "surrogateescape"))
    return submit(path, os.environ)


def _stoker() -> tuple[str, ...]:
    """Return the words that start this Stoker on a node."""
    for path in (Path(sys.argv[0]), Path(sys.executable).with_name("stoker")):
        if path.name == "stoker" and os.access(path, os.X_OK):
            return (str(path.absolute()),)
    return sys.executable, "-m", "stoker"
