"""Rules about who starts the processes, and how many times."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.findings import Edit, Hit, Subject, rule
from stoker.check.launches import Launch

# srun did not take --cpus-per-task over from sbatch in these releases (22.05 and 23.11 release notes).
NO_INHERITANCE = ((22, 5), (23, 2))
# Anything of this kind may carry a command to the other nodes.
_REACHES_NODES = re.compile(
    r"\b(srun|mpirun|mpiexec|ssh|pdsh|clush|horovodrun|ray|parallel|dask|jsrun|ibrun|prun|sbcast"
    r"|blaunch|pbsdsh|mpirun_rsh|charmrun|spark-submit|submitit|xargs|aprun|flux|nextflow"
    r"|snakemake)\b"
)


def _tasks(subject: Subject, launch: Launch) -> int | None:
    """Return how many tasks of this launch run on each node."""
    per_node = launch.starter_options.get("ntasks-per-node")
    if per_node is not None:
        return int(per_node) if per_node.isdigit() else None
    total = launch.starter_options.get("ntasks")
    if total is None:
        return subject.script.tasks_per_node
    nodes = launch.starter_options.get("nodes") or str(subject.script.nodes or 1)
    if total.isdigit() and nodes.isdigit():
        return max(1, int(total) // int(nodes)) if int(nodes) else None
    return 1 if "NNODES" in total or "NUM_NODES" in total else None


@rule("ST401", "error")
def launcher_per_task(subject: Subject) -> Iterator[Hit]:
    """torchrun, accelerate or deepspeed is started once per GPU."""
    for launch in subject.launches:
        if launch.starter != "srun" or not launch.is_distributed:
            continue
        tasks = _tasks(subject, launch)
        processes = launch.number("nproc_per_node", "num_gpus")
        if tasks is None or tasks < 2 or processes == 1:
            continue
        if re.search(r"SLURM_(PROCID|LOCALID)", launch.raw):
            continue  # the script tells its tasks apart
        name = launch.launcher
        yield Hit(
            launch.line,
            f"srun starts {name} {tasks} times on each node",
            f"{name} starts the processes of a node by itself: that makes {tasks} times too many, "
            "which fight for the same GPUs and ports",
            f"--ntasks-per-node=1 for {name}, with all CPUs of the node; or srun python with one "
            "task per GPU",
        )


@rule("ST402", "error")
def no_srun(subject: Subject) -> Iterator[Hit]:
    """Several nodes, and nothing that starts processes on them."""
    script = subject.script
    if not subject.is_multi_node or _REACHES_NODES.search(script.body) or script.has("array"):
        return
    for launch in subject.launches:
        if launch.starter is not None or launch.launcher == "other":
            continue
        if "hostfile" in launch.options or "mpirun_hostfile" in launch.options:
            continue
        if launch.launcher == "python" and re.search(r"ray|dask|deepspeed|submit", launch.raw):
            continue
        yield Hit(
            launch.line,
            f"{launch.launcher} runs on the first of {script.nodes} nodes only",
            "a batch script runs on the first node; only srun starts tasks on all of them",
            "put srun in front of it",
            severity="error" if launch.is_distributed else "warning",
        )
        return


@rule("ST403", "error")
def node_count(subject: Subject) -> Iterator[Hit]:
    """The launcher is told another number of nodes than the header asks for."""
    nodes = subject.script.nodes
    for launch in subject.launches:
        told = launch.number("nnodes", "num_machines")
        if nodes is None or told is None or told == nodes or launch.starter_options.get("nodes"):
            continue
        if "-" in (subject.script.value("nodes") or "") or _REACHES_NODES.search(
            " ".join(launch.before)
        ):
            continue
        yield Hit(
            launch.line,
            f"{launch.launcher} is told of {told} nodes, the header asks for {nodes}",
            "it waits for nodes that do not come, or leaves some idle",
            '--nnodes="$SLURM_NNODES" keeps them equal',
        )


@rule("ST404", "error")
def cpus_not_inherited(subject: Subject) -> Iterator[Hit]:
    """srun without --cpus-per-task on a Slurm that does not inherit it."""
    script, version = subject.script, subject.slurm_version
    cpus = script.number("cpus-per-task")
    if version not in NO_INHERITANCE or cpus is None or cpus < 2:
        return
    if re.search(r"SRUN_CPUS_PER_TASK=", script.body):
        return
    for launch in subject.launches:
        has = {"cpus-per-task", "cpus-per-gpu", "cpu-bind"} & set(launch.starter_options)
        if launch.starter != "srun" or has or "exclusive" in launch.starter_options:
            continue
        text = script.lines[launch.line - 1]
        yield Hit(
            launch.line,
            f"srun gives each task 1 CPU, not {cpus}",
            f"Slurm {version[0]}.{version[1]:02d} does not pass --cpus-per-task from sbatch to srun",
            'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" …',
            (
                Edit(
                    launch.line,
                    (text.replace("srun", 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"', 1),),
                ),
            ),
        )


@rule("ST405", "error")
def rank_in_batch_shell(subject: Subject) -> Iterator[Hit]:
    """A task's rank is filled in by the batch shell, where it is always 0."""
    if not subject.is_multi_node:
        return
    for launch in subject.launches:
        if launch.starter != "srun":
            continue
        outside = _outside_single_quotes(launch.raw)
        match = re.search(
            r"--?(node[-_]rank|machine[-_]rank)[= ]+\"?(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID)\b",
            outside,
        )
        if match:
            yield Hit(
                launch.line,
                f"${match[2]} is 0 for every node here",
                "the batch shell fills it in once, before srun starts: all nodes get rank 0 and "
                "wait for each other",
                f"srun bash -c 'torchrun … --{match[1]}=${match[2]} …' in single quotes",
            )


def _outside_single_quotes(text: str) -> str:
    return re.sub(r"'[^']*'", "''", text)


@rule("ST406", "warning")
def escaped_in_single_quotes(subject: Subject) -> Iterator[Hit]:
    """An escaped variable inside single quotes is passed on as text."""
    for launch in subject.launches:
        for quoted in re.findall(r"bash\s+-l?c\s+'([^']*)'", launch.raw):
            match = re.search(r"\\\$\{?(SLURM_\w+|MASTER_\w+)", quoted)
            if match:
                yield Hit(
                    launch.line,
                    f"`\\${match[1]}` is passed on as these letters",
                    "single quotes already keep the batch shell away; the backslash keeps the "
                    "task's shell away too",
                    f"${match[1]} without the backslash",
                    tuple(_unescape(subject, launch, match[1])),
                )
                break


def _unescape(subject: Subject, launch: Launch, name: str) -> Iterator[Edit]:
    for line in range(launch.line, launch.end_line + 1):
        text = subject.script.lines[line - 1]
        if f"\\${name}" in text or f"\\${{{name}" in text:
            yield Edit(
                line,
                (text.replace(f"\\${name}", f"${name}").replace(f"\\${{{name}", f"${{{name}"),),
            )


@rule("ST407", "error")
def deepspeed_over_nodes(subject: Subject) -> Iterator[Hit]:
    """The deepspeed launcher on several nodes without a host file."""
    script = subject.script
    if not subject.is_multi_node:
        return
    for launch in subject.launches:
        if launch.launcher != "deepspeed":
            continue
        told = {"hostfile", "H", "include", "launcher", "no_ssh", "node_rank"} & set(launch.options)
        if told or re.search(r"hostfile|DLTS_HOSTFILE|/job/", script.body):
            continue
        yield Hit(
            launch.line,
            f"deepspeed knows nothing of the {script.nodes} nodes",
            "without a host file its launcher starts processes on its own node only",
            "srun python with one task per GPU, RANK and LOCAL_RANK from SLURM_PROCID and "
            "SLURM_LOCALID; or --hostfile",
        )


@rule("ST408", "advice")
def old_launch(subject: Subject) -> Iterator[Hit]:
    """torch.distributed.launch is deprecated."""
    for launch in subject.launches:
        if launch.module == "torch.distributed.launch":
            yield Hit(
                launch.line,
                "`torch.distributed.launch` is deprecated",
                "torchrun has replaced it since PyTorch 1.10 and sets the same variables",
                "torchrun with the same options; read LOCAL_RANK from the environment",
            )


@rule("ST409", "warning")
def accelerate_on_cpu(subject: Subject) -> Iterator[Hit]:
    """`accelerate launch --cpu --num_processes N` starts one process."""
    for launch in subject.launches:
        many = (launch.number("num_processes") or 1) > 1
        if launch.launcher == "accelerate" and "cpu" in launch.options and many:
            if {"mpirun_hostfile", "config_file"} & set(launch.options):
                continue
            yield Hit(
                launch.line,
                "accelerate starts one process here, whatever --num_processes says",
                "with --cpu it starts several only through MPI",
                "add --mpirun_hostfile, or ACCELERATE_USE_CPU=true with torchrun",
            )


RULES = (
    launcher_per_task,
    no_srun,
    node_count,
    cpus_not_inherited,
    rank_in_batch_shell,
    escaped_in_single_quotes,
    deepspeed_over_nodes,
    old_launch,
    accelerate_on_cpu,
)
