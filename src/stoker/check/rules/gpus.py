"""Rules about how GPUs are asked for and who sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import parse_gres
from stoker.check.findings import Hit, Subject, rule
from stoker.units import plural


@rule("ST301", "error")
def gpu_forms(subject: Subject) -> Iterator[Hit]:
    """GPUs are asked for in two ways."""
    script = subject.script
    if script.is_het or "gpu" not in script.gres or script.gpu is None:
        return
    each = script.gpu.count
    for name in ("gpus-per-node", "gpus"):
        directive = script.last(name)
        if directive is None or directive.value is None:
            continue
        other = parse_gres(directive, directive.value).count
        total = each * (script.nodes or 1) if each is not None and name == "gpus" else each
        if name == "gpus" and other == total:
            continue
        yield Hit(
            max(directive.line, script.line_of("gres")),
            f"--gres=gpu and --{name} "
            + ("contradict each other" if other != total else "say it twice"),
            "Slurm 26.05 and newer refuse them together; older ones take one or the other",
            "keep the form that the site's documentation uses",
            severity=None if other != total else "warning",
        )


@rule("ST302", "warning")
def one_gpu_per_task(subject: Subject) -> Iterator[Hit]:
    """Each task sees one GPU only, so that NCCL loses the fast path between them."""
    script = subject.script
    for launch in subject.launches:
        header = _last_number(script.value("gpus-per-task"))
        own = _last_number(launch.starter_options.get("gpus-per-task"))
        bind = launch.starter_options.get("gpu-bind") or script.value("gpu-bind") or ""
        flags = f"{launch.starter_options.get('gres-flags')} {script.value('gres-flags')}"
        tasks = script.tasks_per_node
        narrow = (
            own == 1 or (header == 1 and own is None) or bind.startswith(("single:1", "per_task:1"))
        )
        if not narrow or launch.starter != "srun" or "allow-task-sharing" in flags:
            continue
        if (tasks or 1) < 2 or launch.launcher != "python" or not _uses_nccl(subject):
            continue
        yield Hit(
            script.line_of("gpus-per-task") if header else launch.line,
            f"{'--gpus-per-task=1' if 1 in (own, header) else '--gpu-bind=' + bind} hides the other GPUs of "
            "the node from each task",
            "each task gets its own device cgroup: NCCL falls back from NVLink to copies through "
            "host memory, and frameworks that count devices see one",
            "ask with --gpus-per-node or --gres and choose the device by $SLURM_LOCALID in the "
            "program; since Slurm 23.11 srun --gres-flags=allow-task-sharing also helps",
        )
        return


def _last_number(text: str | None) -> int | None:
    """Read the count of `a100:1` or `1`."""
    match = re.fullmatch(r"(?:[\w.]+:)?([0-9]{1,4})", text or "")
    return int(match[1]) if match else None


def _uses_nccl(subject: Subject) -> bool:
    return bool(re.search(r"NCCL_|MASTER_ADDR|torch|nccl|WORLD_SIZE", subject.script.body))


@rule("ST303", "warning")
def visible_devices(subject: Subject) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES is set by hand on top of Slurm's choice."""
    script = subject.script
    if script.gpu is None or script.has("exclusive"):
        return
    for each in script.assignments:
        if each.name not in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            continue
        value = each.value.strip("\"'")
        if re.fullmatch(r"\$\{?SLURM_LOCALID\}?", value):
            yield Hit(
                each.line,
                f"{each.name} is 0 for every task",
                "the batch shell fills $SLURM_LOCALID in once, before srun starts",
                "remove the line, and choose the device by SLURM_LOCALID in the program",
            )
        elif re.fullmatch(r"[0-9]+(,[0-9]+)*", value):
            count = script.gpus_per_node
            if count is None or len(value.split(",")) == count:
                continue  # all that were asked for: it changes nothing
            yield Hit(
                each.line,
                f"{each.name}={value} overrides what Slurm chose",
                "where the site does not confine devices, these may be somebody else's GPUs; where "
                "it does, numbers start at 0 anyway",
                "remove the line",
            )


@rule("ST304", "warning")
def processes_and_gpus(subject: Subject) -> Iterator[Hit]:
    """The launcher starts another number of processes than there are GPUs."""
    script = subject.script
    each, nodes = script.gpus_per_node, script.nodes or 1
    for launch in subject.launches:
        if not each or ((script.tasks_per_node or 1) > 1 and launch.starter == "srun"):
            continue  # the launcher itself runs several times a node: another rule
        count = launch.number("nproc_per_node", "num_gpus")
        wanted, option, where = each, "--nproc_per_node", " on each node"
        if launch.launcher == "accelerate" and "config_file" not in launch.options:
            count, wanted, option, where = (
                launch.number("num_processes"),
                each * nodes,
                "--num_processes",
                "",
            )
        elif launch.launcher == "horovodrun":
            count, wanted, option, where = launch.number("np"), each * nodes, "-np", ""
        if launch.launcher not in (
            "torchrun",
            "deepspeed",
            "accelerate",
            "horovodrun",
        ) or count in (None, wanted):
            continue
        few = (count or 0) < wanted
        yield Hit(
            launch.line,
            f"{plural(count or 0, 'process', 'processes')} for {plural(wanted, 'GPU')}{where}",
            f"{plural(wanted - (count or 0), 'GPU')} stay idle, and are paid for"
            if few
            else "several processes share a GPU, or fail to find one",
            f"{option}={wanted}",
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
