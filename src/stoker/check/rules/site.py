"""Rules about what a site asks for: options, GPU types, local disk, habits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import Directive, Edit
from stoker.check.findings import Hit, Severity, Subject, rule
from stoker.errors import nearest
from stoker.units import parse_time, render_hours

# Longer test queues are for development, not for a quick look.
LONGEST_TEST_S = 3600
_GPU_REQUESTS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


@rule("ST809", "error")
def gpu_type(subject: Subject) -> Iterator[Hit]:
    """A GPU type that this cluster does not have, or none where it wants one."""
    cluster, gpu = subject.cluster, subject.script.gpu
    if cluster is None or gpu is None or subject.script.is_het or not cluster.gpu:
        return
    types = {kind.type: kind for kind in cluster.gpu.values() if kind.type}
    known = {name for kind in cluster.gpu.values() for name in (kind.type, *kind.aliases) if name}
    if gpu.type is not None:
        if known and gpu.type not in known and cluster.slurm.gpu_type != "never":
            match = nearest(gpu.type, known) or next(iter(types))
            yield Hit(
                gpu.line,
                f"{cluster.title} has no GPU of type `{gpu.type}` that we know",
                "known are: " + ", ".join(sorted(known)),
                f"{match}:{gpu.count or 1}",
            )
        return
    if cluster.slurm.gpu_type == "required" and types and gpu.count != 0:
        first = next(iter(types))
        yield Hit(
            gpu.line,
            "the GPU's type is not named",
            f"{cluster.title} wants it ({cluster.slurm.source})",
            f"--gpus-per-node={first}:{gpu.count or 1}"
            if cluster.slurm.gpu_option == "gpus-per-node"
            else f"--gres=gpu:{first}:{gpu.count or 1}",
            severity="warning",
        )


@rule("ST810", "advice")
def any_gpu(subject: Subject) -> Iterator[Hit]:
    """Any GPU will do, where the kinds differ much."""
    cluster, script = subject.cluster, subject.script
    if (
        cluster is None
        or script.gpu is None
        or script.gpu.type is not None
        or script.has("constraint")
    ):
        return
    if cluster.slurm.gpu_type != "optional" or script.is_het:
        return
    names = sorted({kind.name for kind in subject.kinds if kind.type and kind.available})
    if len(names) > 1:
        yield Hit(
            script.gpu.line,
            "the job takes whichever GPU is free",
            "here that is one of " + ", ".join(names) + ", and timings will not compare",
            f"name one: gpu:{cluster.gpu[names[0]].type}:{script.gpu.count or 1}",
        )


@rule("ST811", "error")
def missing_gpu_request(subject: Subject) -> Iterator[Hit]:
    """A GPU partition without a GPU request."""
    cluster, script, queues = subject.cluster, subject.script, subject.queues
    # A queue that also takes jobs without GPUs says so: min_gpus = 0.
    if (
        cluster is None
        or not queues
        or any(q.kind != "gpu" or q.min_gpus == 0 or q.automatic for q in queues)
    ):
        return
    if (
        cluster.slurm.gpu_option == "none"
        or script.has(*_GPU_REQUESTS)
        or any(q.exclusive for q in queues)
    ):
        return
    if script.has("gpus-per-socket", "ntasks-per-gpu", "tres-per-task", "exclusive"):
        return
    gpus = [cluster.gpu[name] for queue in queues for name in queue.gpus]
    typed = (
        f"{gpus[0].type}:" if gpus and gpus[0].type and cluster.slurm.gpu_type != "never" else ""
    )
    option = "--gpus-per-node=" if cluster.slurm.gpu_option == "gpus-per-node" else "--gres=gpu:"
    yield Hit(
        script.line_of("partition", "qos"),
        f"partition `{queues[0].name}` without a GPU request",
        "the job is refused, or runs without any GPU",
        f"#SBATCH {option}{typed}1",
    )


@rule("ST812", "warning")
def unwanted_option(subject: Subject) -> Iterator[Hit]:
    """An option that this site asks users to leave out."""
    cluster, script = subject.cluster, subject.script
    if cluster is None:
        return
    rules, title = cluster.slurm, cluster.title
    own_memory = script.last("mem", "mem-per-cpu", "mem-per-gpu") if script.gpu else None
    if cluster.is_retired or any(queue.kind == "cpu" for queue in subject.queues):
        own_memory = None
    unwanted: list[tuple[Directive | None, str, Severity]] = [
        (script.last("partition") if rules.partition == "never" else None,
         f"{title} chooses the partition itself", "warning"),
        (script.last("qos") if rules.qos == "never" else None, f"{title} takes no --qos", "warning"),
        (own_memory if rules.mem == "never" else None,
         f"{title} sets the memory by the number of GPUs", "advice"),
        (script.last("gres", "gpus", "gpus-per-node") if rules.gpu_option == "none" and script.gpu else None,
         f"{title} does not hand out GPUs by request", "error"),
        (script.last("mail-type", "mail-user") if not rules.mail else None, f"{title} sends no mail", "advice"),
    ]  # fmt: skip
    for directive, what, severity in unwanted:
        if directive is not None:
            edit = script.remove_option(directive)
            yield Hit(directive.line, what, rules.source, "remove it", (edit,), severity)


@rule("ST813", "warning")
def missing_option(subject: Subject) -> Iterator[Hit]:
    """An option that this site requires is missing."""
    cluster, script = subject.cluster, subject.script
    if cluster is None or not script.directives or cluster.scheduler == "none":
        return
    rules = cluster.slurm
    title = cluster.title
    if (
        rules.account == "required"
        and not script.has("account")
        and "SBATCH_ACCOUNT" not in subject.environ
    ):
        example = rules.account_example or "NAME"
        yield Hit(
            1,
            f"{title} wants --account",
            f"without it the job is refused ({rules.source})",
            f"#SBATCH --account={example}",
        )
    if rules.partition == "required" and script.gpu and not script.has("partition", "qos"):
        queue = next(
            (each.request for each in cluster.partition.values() if each.kind == "gpu"), None
        )
        yield Hit(
            1,
            f"{title} wants --partition",
            rules.source,
            f"#SBATCH {queue}" if queue else "name one",
        )
    if rules.time == "required" and not script.has("time"):
        yield Hit(
            1, f"{title} wants --time", rules.source, "#SBATCH --time=01:00:00", severity="error"
        )
    given = script.value("constraint") if script.has("constraint") else ""
    needed = rules.constraint
    if needed and script.gpu and given is not None and needed not in re.split(r"[&|,*]", given):
        yield Hit(
            script.line_of("constraint"),
            f"{title} wants --constraint={needed}",
            rules.source,
            f"#SBATCH --constraint={needed}",
            severity="error",
        )


@rule("ST814", "advice")
def no_time(subject: Subject) -> Iterator[Hit]:
    """There is no time limit."""
    cluster, script = subject.cluster, subject.script
    if script.has("time") or not script.directives or "SBATCH_TIMELIMIT" in subject.environ:
        return
    if cluster is not None and cluster.slurm.time == "required":
        return
    default = cluster.slurm.default_time if cluster else None
    yield Hit(
        1,
        "there is no --time",
        f"the site's default holds, {render_hours(parse_time(default))} here"
        if default
        else "the site's default holds; short limits start sooner",
        "#SBATCH --time=HH:MM:SS",
        severity="warning" if default else None,
    )


@rule("ST816", "error")
def local_disk(subject: Subject) -> Iterator[Hit]:
    """The node's own disk is used but not reserved, or reserved where there is none."""
    cluster, script = subject.cluster, subject.script
    if cluster is None or script.is_het:
        return
    disk = cluster.disk
    asked = script.gres.get("nvme")
    if asked is not None and script.gpu is not None and disk.gres != "nvme":
        yield Hit(
            script.line_of("gres"),
            f"{cluster.title} has no `nvme` to reserve on GPU nodes",
            disk.source + (f"; {disk.note}" if disk.note else ""),
            f"remove nvme; ${disk.env} is there without it"
            if disk.env and disk.exists
            else "remove nvme",
        )
    elif (
        asked
        and disk.gres == "nvme"
        and disk.max_gb
        and re.fullmatch(r"[0-9]{1,9}", asked)
        and int(asked) > disk.max_gb
    ):
        yield Hit(
            script.line_of("gres"),
            f"nvme:{asked}, and a node has {disk.max_gb:g} GB",
            disk.source,
            f"nvme:{disk.max_gb:g}",
        )
    if (
        disk.gres
        and disk.env
        and asked is None
        and re.search(rf"\$\{{?{re.escape(disk.env)}\b", script.body)
    ):
        if script.has("tmp") or f"{disk.env}=" in script.body:
            return
        request = (
            f"{script.value('gres')},{disk.gres}:100" if script.has("gres") else f"{disk.gres}:100"
        )
        yield Hit(
            script.line_of("gres"),
            f"${disk.env} is used, but no {disk.gres} is reserved",
            f"{disk.source}: the variable is empty without --gres={disk.gres}:GB",
            f"#SBATCH --gres={request}",
        )


@rule("ST817", "warning")
def forbidden_mpirun(subject: Subject) -> Iterator[Hit]:
    """mpirun where the site wants srun."""
    cluster = subject.cluster
    own = re.search(r"(module|ml) (load )?.*(openmpi|mpich)", subject.script.body, re.IGNORECASE)
    if cluster is None or cluster.slurm.mpirun or own:
        return
    for launch in subject.launches:
        if launch.starter in ("mpirun", "mpiexec"):
            yield Hit(
                launch.line,
                f"{launch.starter} does not work on {cluster.title}",
                cluster.slurm.source,
                "srun in its place; Slurm knows the number of tasks",
            )


@rule("ST818", "warning")
def old_wrapper(subject: Subject) -> Iterator[Hit]:
    """A container wrapper that newer modules no longer have."""
    cluster, script = subject.cluster, subject.script
    if cluster is None or cluster.tools.wrapper_until is None:
        return
    gone = tuple(int(part) for part in cluster.tools.wrapper_until.split("."))
    loaded = re.search(r"module load pytorch(?:/(\d+)\.(\d+))?\s*$", script.body, re.MULTILINE)
    if not loaded:
        return
    old = loaded[1] is not None and (int(loaded[1]), int(loaded[2])) < gone
    for number, line in enumerate(script.lines, 1):
        match = re.search(r"\b(singularity_wrapper|apptainer_wrapper) exec ", line)
        if match and not old and not line.lstrip().startswith("#"):
            yield Hit(
                number,
                f"`{match[1]} exec` is gone from pytorch/{cluster.tools.wrapper_until} and newer",
                f"these modules put the programs themselves on the PATH ({cluster.tools.source})",
                "remove it: the program's own name is enough",
                (Edit(number, (line.replace(match[0], "", 1),)),),
            )


@rule("ST821", "advice")
def test_queue(subject: Subject) -> Iterator[Hit]:
    """A short job that the site's test partition would start sooner."""
    cluster, script = subject.cluster, subject.script
    time_s, gpus, nodes = script.time_s, script.gpus_per_node, script.nodes or 1
    if cluster is None or cluster.is_retired or not subject.queues or time_s is None or not gpus:
        return
    if script.has("array") or any(queue.test for queue in subject.queues):
        return
    kinds = {gpu.name for gpu in subject.kinds}
    for queue in cluster.partition.values():
        limit = queue.time_s
        if not queue.test or not kinds & set(queue.gpus) or limit is None:
            continue
        room = (queue.max_gpus or 0) >= gpus * nodes and (queue.max_nodes or 0) >= nodes
        if room and time_s <= limit <= LONGEST_TEST_S:
            yield Hit(
                script.line_of("partition", "qos"),
                f"`{queue.name}` takes jobs up to {render_hours(limit)} and starts them sooner",
                queue.source,
                queue.request,
            )


@rule("ST822", "advice")
def short_job(subject: Subject) -> Iterator[Hit]:
    """A job shorter than the site wants."""
    cluster, time_s = subject.cluster, subject.script.time_s
    least = cluster.slurm.min_time if cluster else None
    if cluster is None or least is None or time_s is None or subject.script.has("array"):
        return
    if time_s < parse_time(least):
        yield Hit(
            subject.script.line_of("time"),
            f"{render_hours(time_s)} is short for {cluster.title}",
            f"it asks for jobs of at least {render_hours(parse_time(least))}, tests excepted "
            f"({cluster.slurm.source})",
            "put several short runs into one job",
        )


RULES = (
    gpu_type,
    any_gpu,
    missing_gpu_request,
    unwanted_option,
    missing_option,
    no_time,
    local_disk,
    forbidden_mpirun,
    old_wrapper,
    test_queue,
    short_job,
)
