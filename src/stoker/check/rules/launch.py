"""Rules about who starts the processes, and how many times."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import Edit
from stoker.check.findings import Hit, Subject, rule
from stoker.check.launches import Launch
from stoker.units import plural

_CPUS = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
# srun did not take --cpus-per-task over from sbatch in these releases (22.05 and 23.11 release notes).
NO_INHERITANCE = ((22, 5), (23, 2))
_NUMBER = re.compile(r"[0-9]{1,6}")
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
        return int(per_node) if _NUMBER.fullmatch(per_node) else None
    total = launch.starter_options.get("ntasks")
    if total is None:
        return subject.script.tasks_per_node
    nodes = launch.starter_options.get("nodes") or str(subject.script.nodes or 1)
    if _NUMBER.fullmatch(total) and _NUMBER.fullmatch(nodes):
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


# Words that may stand before a launcher without carrying it to another node.
_WRAPPERS = re.compile(
    r"(singularity|apptainer)(_wrapper)?|exec|run|time|env|nice|numactl|stdbuf|kernprof|nsys|profile|conda|"
    r"-\S*|\S*\.sif|\$\S*|\S*=\S*"
)


def _reaches_nodes(subject: Subject) -> bool:
    """Whether anything that runs in the script may start processes on other nodes."""
    words = [
        word
        for command in subject.script.commands
        if command.name not in ("echo", "printf")
        for word in command.texts
    ]
    words += [each.value for each in subject.script.assignments]
    return _REACHES_NODES.search(" ".join(words)) is not None


@rule("ST402", "error")
def no_srun(subject: Subject) -> Iterator[Hit]:
    """Several nodes, and nothing that starts processes on them."""
    script = subject.script
    if not subject.is_multi_node or script.has("array") or _reaches_nodes(subject):
        return
    for launch in subject.launches:
        if launch.starter is not None or launch.launcher == "other":
            continue
        if {"hostfile", "mpirun_hostfile"} & set(launch.options):
            continue
        if not all(_WRAPPERS.fullmatch(word) for word in launch.before):
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
    script = subject.script
    for launch in subject.launches:
        told = launch.number("nnodes", "num_machines")
        alone = "standalone" in launch.options
        if script.nodes is None or "-" in (script.value("nodes") or ""):
            continue
        if launch.starter_options.get("nodes") or not all(map(_WRAPPERS.fullmatch, launch.before)):
            continue
        if alone and subject.is_multi_node and launch.starter == "srun":
            yield Hit(
                launch.line,
                f"each of the {script.nodes} nodes trains for itself",
                "--standalone means that the node is alone",
                '--nnodes="$SLURM_NNODES" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"',
            )
        elif told is not None and told != script.nodes and not alone:
            yield Hit(
                launch.line,
                f"{launch.launcher} is told of {plural(told, 'node')}, the header asks for {script.nodes}",
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
        own = launch.starter_options
        bound = re.match(r"\S*(mask|map)_", own.get("cpu-bind") or "")
        if (
            launch.starter != "srun"
            or bound
            or {"cpus-per-task", "cpus-per-gpu", "exclusive"} & set(own)
        ):
            continue
        text = script.lines[launch.line - 1]
        new = re.sub(r"(?<![\w./=$-])srun(?=\s)", f"srun {_CPUS}", text, count=1)
        yield Hit(
            launch.line,
            f"srun gives each task 1 CPU, not {cpus}",
            f"Slurm {version[0]}.{version[1]:02d} does not pass --cpus-per-task from sbatch to srun",
            f"srun {_CPUS} …",
            (Edit(launch.line, (new,)),) if new != text else (),
        )


@rule("ST405", "error")
def rank_in_batch_shell(subject: Subject) -> Iterator[Hit]:
    """A task's rank is filled in by the batch shell, where it is always 0."""
    script = subject.script
    runs = [launch for launch in subject.launches if launch.starter == "srun"]
    many = subject.is_multi_node or (script.tasks_per_node or 1) > 1
    if not runs or not many:
        return
    for each in script.assignments:
        found = re.fullmatch(r"[\"']?\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\}?[\"']?", each.value)
        if found and each.name in _RANK_NAMES and each.line < runs[-1].line:
            if found[1] == "SLURM_NODEID" and not subject.is_multi_node:
                continue
            yield _rank_hit(
                each.line, found[1], f"srun bash -c 'export {each.name}=${found[1]}; …'"
            )
            return
    for launch in runs if subject.is_multi_node else ():
        match = _RANK_OPTION.search(_outside_single_quotes(launch.raw))
        if match:
            fix = f"srun bash -c 'torchrun … --{match[1]}=${match[2]} …' in single quotes"
            yield _rank_hit(launch.line, match[2], fix)


_RANK_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "MACHINE_RANK",
    "node_rank",
    "machine_rank",
)
_RANK_OPTION = re.compile(
    r"--?(node[-_]rank|machine[-_]rank)[= ]+\"?(?<!\\)\$\{?(SLURM_NODEID|SLURM_PROCID)\b"
)


def _rank_hit(line: int, name: str, fix: str) -> Hit:
    return Hit(
        line,
        f"${name} is 0 for every task here",
        "the batch shell fills it in once, before srun starts: all get rank 0 and wait for each other",
        fix,
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


@rule("ST409", "error")
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


@rule("ST410", "warning")
def tasks_not_started(subject: Subject) -> Iterator[Hit]:
    """One task for each GPU is asked for, and one process is started."""
    script = subject.script
    tasks, gpus = script.number("ntasks-per-node"), script.gpus_per_node
    if (
        tasks is None
        or tasks < 2
        or tasks != gpus
        or _reaches_nodes(subject)
        or subject.is_multi_node
    ):
        return
    for launch in subject.launches:
        if (
            launch.starter is None
            and launch.launcher == "python"
            and all(map(_WRAPPERS.fullmatch, launch.before))
        ):
            yield Hit(
                launch.line,
                f"one process is started where {tasks} tasks were asked for",
                "only srun starts the tasks; frameworks that count them (Lightning) wait or use one GPU",
                "put srun in front of it",
            )
            return


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
    tasks_not_started,
)
