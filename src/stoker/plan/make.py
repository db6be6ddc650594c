"""Make a plan: every number, its reason, and the directives that ask for it."""

from __future__ import annotations

from pathlib import Path

from stoker.cluster.profile import Cluster, Gpu
from stoker.errors import SpecError, UsageError, nearest
from stoker.plan.combinations import keras_notices, refuse_combinations
from stoker.plan.cost import NodeRequest, make_cost
from stoker.plan.directives import Directives, Numbers, make_directives, take_over
from stoker.plan.disk import choose_disk
from stoker.plan.environment import choose_environment
from stoker.plan.launch import FORMS, choose_launch, choose_local_launch, launch_notices
from stoker.plan.notices import (
    ACCOUNT_PLACEHOLDER,
    job_notices,
    precision_notices,
    site_notices,
    worker_notices,
)
from stoker.plan.offers import find_offers
from stoker.plan.plan import Choice, Launch, Plan, Shape
from stoker.plan.refusal import Refused
from stoker.plan.shape import Sized, choose_shape
from stoker.plan.source import Source, read_source
from stoker.plan.spec import FRAMEWORKS, Spec
from stoker.units import plural, render_mem, render_time


def make_plan(spec: Spec, cluster: Cluster, folder: Path | None = None) -> Plan:
    """Return the plan for a spec on a cluster; the script is looked for in `folder`.

    What cannot be had is refused with the nearest request that can: it has been planned.
    """
    spec = take_over(spec)
    folder = folder or Path.cwd()
    source = _read(spec, folder)
    try:
        plan = _make(spec, cluster, source)
    except Refused as refused:
        offers = find_offers(spec, cluster, lambda changed: _make(changed, cluster, source).shape)
        fix = " or ".join(offers) or f"stoker cluster show {cluster.name} has the limits"
        raise SpecError(refused.what, why=refused.why, fix=fix) from None
    refuse_combinations(plan, source, folder)
    return plan


def _make(spec: Spec, cluster: Cluster, source: Source) -> Plan:
    framework = _framework(spec, source)
    sized = choose_shape(spec, cluster)
    _check_grace(spec, sized.time_s)
    shape = sized.shape
    choose = choose_local_launch if cluster.scheduler == "none" else choose_launch
    launch = choose(framework, shape)
    environment, environment_notices = choose_environment(spec.setup, cluster, framework, source)
    numbers, number_choices = _numbers(spec, cluster, sized, launch)
    directives = make_directives(spec, cluster, shape, launch, numbers)
    cpus = numbers.cpus_per_task * launch.tasks_per_node
    # A script that spawns its own processes starts one for each GPU.
    processes = max(1, shape.gpus_per_node) if source.spawns else launch.processes_per_node
    threads, thread_choice = _threads(source, cpus // processes)
    memory = numbers.mem_gib or _given_memory(shape)
    return Plan(
        spec=spec,
        cluster=cluster,
        framework=framework,
        shape=shape,
        launch=launch,
        environment=environment,
        cpus_per_task=numbers.cpus_per_task,
        mem_gib=numbers.mem_gib,
        disk_gb=numbers.disk_gb,
        time_s=sized.time_s,
        threads=threads,
        cost=make_cost(
            cluster, shape, NodeRequest(cpus, memory, numbers.disk_gb or 0), sized.time_s
        ),
        directives=directives,
        choices=(
            Choice("framework", framework, _framework_reason(spec, source)),
            *sized.choices,
            *_gpu_request(cluster, directives),
            *_launch_choices(launch, is_local=cluster.scheduler == "none"),
            *number_choices,
            Choice("environment", environment.title, environment.reason, environment.source),
            thread_choice,
        ),
        notices=(
            *site_notices(cluster, shape),
            *sized.notices,
            *launch_notices(framework, shape, source, spec.framework),
            *keras_notices(source, framework),
            *environment_notices,
            *worker_notices(source, cpus // processes),
            *precision_notices(shape.gpu, spec),
            *job_notices(spec, cluster, source, numbers.account),
        ),
        makes_tf_config=launch.form == "tf-servers"
        or (launch.form == "tf-workers" and not source.resolves_slurm),
    )


def _numbers(
    spec: Spec, cluster: Cluster, sized: Sized, launch: Launch
) -> tuple[Numbers, list[Choice]]:
    """Return what is asked for on each node, and why."""
    cpus, cpu_choice = _cpus(spec, cluster, sized.shape, launch)
    mem, mem_choice = _memory(spec, cluster, sized.shape)
    disk_gb, disk_choices = choose_disk(spec.staging, cluster)
    account, account_choices = _account(spec, cluster)
    numbers = Numbers(cpus, mem, disk_gb, sized.time_s, account)
    return numbers, [cpu_choice, mem_choice, *disk_choices, *account_choices]


def _launch_choices(launch: Launch, *, is_local: bool) -> list[Choice]:
    if is_local:
        by_mpi = launch.form == "task-per-gpu"
        return [Choice("launcher", "mpirun" if by_mpi else FORMS[launch.form], launch.reason)]
    choices = [
        Choice("launcher", FORMS[launch.form], launch.reason),
        Choice("tasks per node", str(launch.tasks_per_node), "what srun starts on each node"),
    ]
    if launch.has_rendezvous:
        reason = (
            "the first node, and a port made of the job's id: a fixed one clashes with other jobs"
        )
        choices.append(Choice("rendezvous", "by job id", reason))
    return choices


def _read(spec: Spec, folder: Path) -> Source:
    if not spec.is_python:
        return Source(evidence="the command is not a Python script", was_read=True)
    if spec.is_module:
        return read_source(folder / (spec.script.replace(".", "/") + ".py"), root=folder)
    return read_source(folder / spec.script)


def _framework(spec: Spec, source: Source) -> str:
    if spec.framework == "auto":
        return source.framework
    if spec.framework in FRAMEWORKS:
        return spec.framework
    match = nearest(spec.framework, FRAMEWORKS)
    raise UsageError(
        f"unknown framework `{spec.framework}`",
        why="known are: auto, " + ", ".join(FRAMEWORKS),
        fix=f"--framework {match}" if match else "leave --framework out",
    )


def _framework_reason(spec: Spec, source: Source) -> str:
    return source.evidence if spec.framework == "auto" else "as asked for"


def _cpus(spec: Spec, cluster: Cluster, shape: Shape, launch: Launch) -> tuple[int, Choice]:
    """Return the CPUs of one task: the GPUs' share of the node, divided over its tasks."""
    gpu, tasks = shape.gpu, launch.tasks_per_node
    name = "cpus per task"
    if spec.cpus_per_task is not None:
        _check_cpus(cluster, gpu, spec.cpus_per_task * tasks, tasks)
        return spec.cpus_per_task, Choice(name, str(spec.cpus_per_task), "as asked for")
    share = gpu.cpu_share if gpu else None
    if gpu is None or share is None:
        reason = (
            "a CPU job; --cpus-per-task asks for more" if gpu is None else "the share is not known"
        )
        return 1, Choice(name, "1", reason)
    on_node = int(share * shape.gpus_per_node)
    cpus = max(1, on_node // tasks)
    reason = f"{share:g} cores go with each GPU"
    if gpu.cpus_per_node and gpu.per_node and gpu.slice_of is None:
        reason += f" ({gpu.cpus_per_node} cores, {gpu.per_node} GPUs a node)"
    if tasks > 1:
        reason += f"; {on_node} on {tasks} tasks"
    return cpus, Choice(name, str(cpus), reason, gpu.source)


def _check_cpus(cluster: Cluster, gpu: Gpu | None, on_node: int, tasks: int) -> None:
    if gpu is None:
        return
    room = gpu.cpus_per_gpu if gpu.slice_of else gpu.cpus_per_node
    if room is not None and on_node > room:
        raise SpecError(
            f"{on_node} CPUs on one node",
            why=f"{cluster.title} gives {room:g} with {'a slice' if gpu.slice_of else 'a node'} "
            f"of {gpu.name} ({gpu.source})",
            fix=f"--cpus-per-task {max(1, int(room) // tasks)}",
        )


def _check_grace(spec: Spec, time_s: int) -> None:
    """Refuse a signal that would come before the training has started."""
    survival = spec.survival
    wanted = survival.requeue or spec.staging.results is not None
    if wanted and survival.grace_s + 60 > time_s:
        raise SpecError(
            f"a signal {survival.grace_s} s before the end of a job of {time_s} s",
            why="Slurm may send it 60 s early, and the training must have started by then",
            fix=f"--time {render_time(survival.grace_s + 600)}, or a shorter --grace",
        )


def _given_memory(shape: Shape) -> float:
    """Return the GiB that a site gives with the GPUs by itself."""
    return (shape.gpu.mem_share_gib or 0) * shape.gpus_per_node if shape.gpu else 0.0


def _memory(spec: Spec, cluster: Cluster, shape: Shape) -> tuple[float | None, Choice]:
    """Return the GiB to ask for on each node; `None` where the site sets it by itself."""
    gpu = shape.gpu
    room = gpu.mem_gib_per_node if gpu else None
    if room is None and shape.partition is not None:
        room = shape.partition.mem_gib_per_node
    if spec.mem_gib is not None:
        if gpu is not None and (gpu.slice_of or cluster.slurm.mem == "never"):
            share = gpu.mem_share_gib
            room = share * shape.gpus_per_node if share else room
        if room is not None and spec.mem_gib > room:
            whose = f"{shape.gpus_per_node} x {gpu.name}" if gpu else "a node"
            raise SpecError(
                f"{render_mem(spec.mem_gib)} of memory on one node",
                why=f"{cluster.title} gives at most {room:g} GiB with {whose}",
                fix=f"--mem {render_mem(float(int(room)) if room >= 1 else room)}",
            )
        return spec.mem_gib, Choice("memory", render_mem(spec.mem_gib), "as asked for")
    share = gpu.mem_share_gib if gpu else None
    if cluster.slurm.mem == "never":
        reason = f"the site gives {share:g} GiB with each GPU" if share else "the site sets it"
        return None, Choice("memory", "not asked for", reason, cluster.slurm.source)
    if gpu is None or share is None:
        need = "the site wants it: give --mem" if cluster.slurm.mem == "required" else ""
        return None, Choice(
            "memory", "not asked for", need or "the site's default; --mem asks for more"
        )
    mem = float(int(share * shape.gpus_per_node))
    reason = f"{share:g} GiB go with each GPU"
    if room:
        reason += f" (the node has {room:g} GiB)"
        mem = min(mem, room)
    return mem, Choice("memory", f"{render_mem(mem)} per node", reason, gpu.source)


def _threads(source: Source, cpus: int) -> tuple[int, Choice]:
    """Return OMP_NUM_THREADS: the cores of a process that its loader workers leave free."""
    if source.workers_known and source.workers:
        threads = max(1, cpus - source.workers)
        taken = "all" if source.workers >= cpus else str(source.workers)
        reason = f"{plural(cpus, 'core')} a process, {taken} of them for the loader workers"
    elif source.has_loader and not source.workers_known:
        threads = 1
        reason = (
            f"{plural(cpus, 'core')} a process, left to loader workers whose number is computed"
        )
    else:
        threads = max(1, cpus)
        seen = "no loader workers seen" if source.was_read else "the script was not read"
        reason = f"{plural(threads, 'core')} a process, {seen}"
    return threads, Choice("threads", str(threads), reason)


def _gpu_request(cluster: Cluster, directives: Directives) -> list[Choice]:
    """Say how this site wants GPUs to be asked for."""
    asked = [f"--{name}={value}" for name, value in directives if name in ("gres", "gpus-per-node")]
    if not asked:
        return []
    reason = "the form that this site's documents use; it counts per node"
    return [Choice("request", asked[0], reason, cluster.slurm.source)]


def _account(spec: Spec, cluster: Cluster) -> tuple[str | None, list[Choice]]:
    if spec.account is not None:
        return spec.account, [Choice("account", spec.account, "as asked for")]
    if cluster.slurm.account != "required":
        return None, []
    example = cluster.slurm.account_example
    reason = f"{cluster.title} wants one" + (f", such as {example}" if example else "")
    return ACCOUNT_PLACEHOLDER, [
        Choice("account", ACCOUNT_PLACEHOLDER, reason + "; give --account", cluster.slurm.source)
    ]
