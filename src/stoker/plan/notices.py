"""What the user should know before submitting, beside the numbers."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.cluster.profile import Cluster, Gpu
from stoker.plan.plan import Notice, Shape
from stoker.plan.source import Source
from stoker.plan.spec import Spec
from stoker.units import plural

ACCOUNT_PLACEHOLDER = "<account>"
# Options of ours that are easily written after the script, where they are the script's.
OURS = (
    "--cluster", "--gpus", "--nodes", "--gpus-per-node", "--gpu", "--cpus-per-task", "--mem",
    "--time", "--partition", "--account", "--framework",
)  # fmt: skip


def site_notices(cluster: Cluster, shape: Shape) -> Iterable[Notice]:
    """Yield what is special about the cluster and its GPUs."""
    gpu = shape.gpu
    if cluster.is_retired:
        since = f" since {cluster.retired}" if cluster.retired else ""
        yield Notice(
            f"{cluster.title} is retired{since}",
            cluster.source,
            f"stoker plan --cluster {cluster.successor} …" if cluster.successor else "ask the site",
        )
    if cluster.slurm.login:
        yield Notice(
            f"{cluster.title} does not take jobs from everywhere",
            f"{cluster.slurm.login} ({cluster.slurm.source})",
            "submit from there",
        )
    if gpu and (not gpu.available or gpu.access):
        yield Notice(
            f"`{gpu.name}` of {cluster.title} is not open to everybody",
            gpu.access or gpu.note or "its profile says that it is not available",
            "name another kind with --gpu",
        )
    if gpu and gpu.arch and gpu.arch != "x86_64":
        yield Notice(
            f"the {gpu.name} nodes of {cluster.title} are {gpu.arch}",
            "environments and containers built on x86 machines do not run there",
            "build them on a login node of the same kind",
        )


def job_notices(
    spec: Spec, cluster: Cluster, source: Source, account: str | None
) -> Iterable[Notice]:
    """Yield what is missing from the request."""
    yield from _account_notices(cluster, account)
    yield from _script_notices(spec, source)


def _account_notices(cluster: Cluster, account: str | None) -> list[Notice]:
    if account != ACCOUNT_PLACEHOLDER:
        return []
    example = cluster.slurm.account_example or "NAME"
    return [
        Notice(
            "no account was given",
            f"{cluster.title} refuses jobs without one; the script has a placeholder",
            f'--account {example}, or account = "{example}" under [defaults] in stoker.toml',
        )
    ]


def _script_notices(spec: Spec, source: Source) -> Iterable[Notice]:
    if spec.is_python and not source.was_read:
        yield Notice(
            f"`{spec.script}` was not read",
            source.evidence,
            "plan where the script lies, or name --framework yourself",
        )
    if source.asks_notebook:
        yield Notice(
            f"{source.asks_notebook} calls `get_ipython`",
            "only notebooks have it: the job ends there with a NameError",
            "delete the lines that were `!…` or `%…` in the notebook",
        )
    told = {word.partition("=")[0] for word in spec.command[1:]} - source.options
    if misplaced := [each for each in OURS if each in told]:
        yield Notice(
            f"{' and '.join(misplaced)} went to the script",
            "everything after the script's name belongs to it, and it was not seen to take this",
            f"put it before the script if it is meant for Stoker: {misplaced[0]} … {spec.script}",
        )


def worker_notices(source: Source, cpus: int) -> list[Notice]:
    """Return a notice if the loader has more workers than cores."""
    if not source.workers or source.workers <= cpus:
        return []
    return [
        Notice(
            f"{source.workers} loader workers on {plural(cpus, 'core')}",
            "that is what goes with each process here; more workers than cores take turns",
            f"num_workers={max(1, cpus - 1)}",
        )
    ]


def precision_notices(gpu: Gpu | None, spec: Spec) -> list[Notice]:
    """Return a notice if the script is told to use what the GPU lacks."""
    if gpu is None or gpu.bf16 is not False or not any("bf16" in each for each in spec.command):
        return []
    return [
        Notice(
            f"bf16 on {gpu.title or gpu.name}",
            "these GPUs have no bf16 tensor cores; it runs, slowly",
            "use fp16 with a gradient scaler",
        )
    ]
