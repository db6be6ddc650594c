"""Rules about how GPUs are asked for and who sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.findings import Hit, Subject, rule
from stoker.units import plural


@rule("ST301", "error")
def gpu_forms(subject: Subject) -> Iterator[Hit]:
    """GPUs are asked for in two ways that contradict each other."""
    script = subject.script
    if script.is_het or "gpu" not in script.gres:
        return
    other = script.last("gpus-per-node")
    if other is not None:
        yield Hit(
            max(other.line, script.line_of("gres")),
            "--gres=gpu and --gpus-per-node exclude each other",
            "both count GPUs per node; sbatch refuses them together or takes one",
            "keep the form that the site's documentation uses",
        )


@rule("ST302", "warning")
def one_gpu_per_task(subject: Subject) -> Iterator[Hit]:
    """Each task sees one GPU only, so that NCCL loses the fast path between them."""
    script = subject.script
    for launch in subject.launches:
        header = script.number("gpus-per-task")
        own = launch.starter_options.get("gpus-per-task")
        bind = launch.starter_options.get("gpu-bind") or script.value("gpu-bind") or ""
        flags = f"{launch.starter_options.get('gres-flags')} {script.value('gres-flags')}"
        tasks = script.tasks_per_node
        narrow = (
            own == "1"
            or (header == 1 and own is None)
            or bind.startswith(("single:1", "per_task:1"))
        )
        if not narrow or launch.starter != "srun" or "allow-task-sharing" in flags:
            continue
        if (tasks or 1) < 2 or launch.launcher != "python" or not _uses_nccl(subject):
            continue
        yield Hit(
            script.line_of("gpus-per-task") if header else launch.line,
            "--gpus-per-task=1 hides the other GPUs of the node from each task",
            "each task gets its own device cgroup: NCCL falls back from NVLink to copies through "
            "host memory, and frameworks that count devices see one",
            "ask with --gpus-per-node or --gres and choose the device by $SLURM_LOCALID in the "
            "program; since Slurm 23.11 srun --gres-flags=allow-task-sharing also helps",
        )
        return


def _uses_nccl(subject: Subject) -> bool:
    return bool(re.search(r"NCCL_|MASTER_ADDR|torch|nccl|WORLD_SIZE", subject.script.body))


@rule("ST303", "warning")
def visible_devices(subject: Subject) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES is set by hand on top of Slurm's choice."""
    script = subject.script
    if script.gpu is None:
        return
    for each in script.assignments:
        if each.name not in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            continue
        if not re.fullmatch(r"[\"']?\d+(,\d+)*[\"']?", each.value):
            continue
        count = script.gpus_per_node
        if count is None or len(each.value.split(",")) == count:
            continue  # all that were asked for: it changes nothing
        yield Hit(
            each.line,
            f"{each.name}={each.value} overrides what Slurm chose",
            "where the site does not confine devices, these may be somebody else's GPUs; where it "
            "does, numbers start at 0 anyway",
            "remove the line",
        )


@rule("ST304", "warning")
def processes_and_gpus(subject: Subject) -> Iterator[Hit]:
    """The launcher starts another number of processes than there are GPUs."""
    script = subject.script
    gpus = script.gpus_per_node
    for launch in subject.launches:
        count = launch.number("nproc_per_node", "num_gpus")
        tasks = script.tasks_per_node
        if launch.launcher not in ("torchrun", "deepspeed") or gpus is None or count is None:
            continue
        if (tasks or 1) > 1 and launch.starter == "srun":
            continue  # the launcher itself runs several times a node: another rule
        if count == gpus:
            continue
        few = count < gpus
        yield Hit(
            launch.line,
            f"{plural(count, 'process', 'processes')} for {plural(gpus, 'GPU')} on each node",
            f"{plural(gpus - count, 'GPU')} of each node stay idle, and are paid for"
            if few
            else "several processes share a GPU, or fail to find one",
            f"--nproc_per_node={gpus}",
            severity="warning" if few else "error",
        )


@rule("ST305", "warning")
def idle_gpus_in_plain_run(subject: Subject) -> Iterator[Hit]:
    """Several GPUs on several nodes, and one plain process."""
    script = subject.script
    total = (script.gpus_per_node or 0) * (script.nodes or 1)
    if total < 2 or not subject.is_multi_node or len(subject.launches) != 1:
        return
    launch = subject.launches[0]
    tasks = launch.starter_options.get("ntasks")
    if launch.starter == "srun" and tasks == "1" and launch.launcher in ("python", "torchrun"):
        yield Hit(
            launch.line,
            f"one task for {total} GPUs on {script.nodes} nodes",
            "srun --ntasks=1 starts on the first node only; the other nodes stay idle",
            "leave --ntasks out of the srun line",
        )


RULES = (gpu_forms, one_gpu_per_task, visible_devices, processes_and_gpus, idle_gpus_in_plain_run)
