"""Rules about tasks, CPUs and memory, and about options that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import Edit
from stoker.check.findings import Hit, Severity, Subject, rule
from stoker.units import plural

_WORKERS = re.compile(
    r"(?:--?|\+*(?:\w+\.)*)(?:num[-_]?workers|dataloader[-_]num[-_]workers|n[-_]workers)$"
)


@rule("ST201", "error")
def memory_forms(subject: Subject) -> Iterator[Hit]:
    """--mem, --mem-per-cpu and --mem-per-gpu exclude each other."""
    script = subject.script
    if script.is_het:
        return
    given = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if script.has(name)]
    if len(given) > 1:
        yield Hit(
            max(script.line_of(name) for name in given),
            " and ".join(f"--{name}" for name in given) + " exclude each other",
            "sbatch refuses two ways of asking for memory",
            f"keep --{given[0]}",
        )


@rule("ST202", "error")
def cpu_forms(subject: Subject) -> Iterator[Hit]:
    """--cpus-per-gpu and --cpus-per-task exclude each other."""
    script = subject.script
    if not script.is_het and script.has("cpus-per-gpu") and script.has("cpus-per-task"):
        yield Hit(
            max(script.line_of("cpus-per-gpu"), script.line_of("cpus-per-task")),
            "--cpus-per-gpu and --cpus-per-task exclude each other",
            "Slurm refuses the job or the step (sbatch.1)",
            "keep --cpus-per-task, which srun can repeat",
        )


@rule("ST203", "error")
def gpu_task_forms(subject: Subject) -> Iterator[Hit]:
    """--ntasks-per-gpu with an option that it excludes."""
    script = subject.script
    others = [
        name for name in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node") if script.has(name)
    ]
    if script.has("ntasks-per-gpu") and others and not script.is_het:
        yield Hit(
            script.line_of("ntasks-per-gpu"),
            f"--ntasks-per-gpu and --{others[0]} exclude each other",
            "sbatch refuses them together (sbatch.1)",
            "keep --ntasks-per-node and a GPU count per node",
        )


@rule("ST204", "warning")
def task_counts(subject: Subject) -> Iterator[Hit]:
    """--ntasks is not --nodes times --ntasks-per-node."""
    script = subject.script
    total, nodes, each = script.number("ntasks"), script.nodes, script.number("ntasks-per-node")
    if (
        script.is_het
        or total is None
        or nodes is None
        or each is None
        or "-" in (script.value("nodes") or "")
    ):
        return
    if total != nodes * each:
        yield Hit(
            script.line_of("ntasks"),
            f"--ntasks={total}, but {nodes} nodes x {each} tasks are {nodes * each}",
            "--ntasks wins and --ntasks-per-node becomes a maximum: GPUs may stay without a process",
            f"leave --ntasks out, or --ntasks={nodes * each}",
        )


# Variables that Slurm sets only when the option was given.
_SET_BY = {
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPUS": "gpus",
}


@rule("ST205", "warning")
def unset_variable(subject: Subject) -> Iterator[Hit]:
    """A SLURM_ variable that exists only if an option was given, which was not."""
    script = subject.script
    sized = script.has(
        "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "gpus", "gpus-per-node"
    )
    for name, option in _SET_BY.items():
        if not script.directives or script.has(option) or _is_guarded(script.body, name):
            continue
        for number, line in enumerate(script.body.split("\n"), script.body_line):
            used = re.search(rf"\$(?:{name}\b|\{{{name}\}})|\(\([^)]*\b{name}\b", line)
            if not used or re.match(r"\s*(echo|printf)\b", line):
                continue
            better = "SLURM_GPUS_ON_NODE" if name == "SLURM_GPUS_PER_NODE" else None
            edits = (
                (Edit(number, (re.sub(rf"\b{name}\b", better, script.lines[number - 1]),)),)
                if better
                else ()
            )
            severity: Severity | None = "error" if better else None if sized else "advice"
            yield Hit(
                number,
                f"${name} is empty",
                f"Slurm sets it only when --{option} is given, and the header has none",
                f"use ${better}" if better else f"add #SBATCH --{option}=N",
                edits,
                severity,
            )
            break


def _is_guarded(body: str, name: str) -> bool:
    """Whether the script sets the variable, looks if it is set, or gives a default."""
    return bool(
        re.search(
            rf"\b{name}=|\$\{{{name}:?[-=+?]|-[nzv] +\"?\$?\{{?{name}|{name}\}}?\"? +-(gt|ge|ne|lt|eq)",
            body,
        )
    )


@rule("ST206", "warning")
def loader_workers(subject: Subject) -> Iterator[Hit]:
    """More loader workers than CPUs."""
    cpus = subject.script.number("cpus-per-task")
    for launch in subject.launches:
        workers = _workers(launch.program)
        if workers is None or cpus is None or subject.script.has("exclusive"):
            continue
        processes = launch.number("nproc_per_node", "num_gpus") or 1 if launch.is_distributed else 1
        if launch.launcher == "accelerate" or (launch.is_distributed and processes == 1):
            processes = subject.script.gpus_per_node or 1
        if workers * processes > cpus:
            why = "they take turns on the cores, and the GPU waits"
            if processes > 1:
                why = f"{workers} in each of {processes} processes; {why}"
            yield Hit(
                launch.line,
                f"{plural(workers * processes, 'loader worker')} on {plural(cpus, 'CPU')}",
                why,
                f"{plural(max(1, cpus // processes), 'worker')} a process, or more --cpus-per-task",
            )


def _workers(program: tuple[str, ...]) -> int | None:
    for index, word in enumerate(program):
        name, equals, value = word.partition("=")
        if not _WORKERS.match(name):
            continue
        text = value if equals else program[index + 1] if index + 1 < len(program) else ""
        return int(text) if re.fullmatch(r"\d{1,4}", text) else None
    return None


RULES = (memory_forms, cpu_forms, gpu_task_forms, task_counts, unset_variable, loader_workers)
