"""Plan → script: plain bash that a support person would sign.

The script needs no Stoker on the node. Every function below returns one block of it;
`render_script` puts the blocks together and touches nothing else.
"""

from __future__ import annotations

from stoker import __version__
from stoker.plan import preflight, staging, submission, survival, tensorflow
from stoker.plan.plan import Plan
from stoker.plan.quote import comment, quote, quote_directive, wrap
from stoker.plan.submission import Submission

# After the first task ends, srun gives the others this long (a last checkpoint of rank 0
# may be large) before it ends a job that would otherwise hang to its time limit.
WAIT_S = 600


def render_script(plan: Plan, submitted: Submission | None = None) -> str:
    """Return the whole script, with what submitting adds to it.

    A value that came from the user appears only through `quote`; only lines of --setup, which
    are shell already, go in as they are.
    """
    blocks = [
        _header(plan),
        _about(plan),
        _guard(plan),
        _forget(plan),
        submission.render_folder(submitted) if submitted else "",
        submission.render_watch(submitted) if submitted else "",
        submission.render_point(submitted) if submitted else "",
        survival.render_handler(plan),
        _software(plan),
        _variables(plan),
        *_prepare(plan, submitted),
        _run(plan, submitted),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _prepare(plan: Plan, submitted: Submission | None) -> list[str]:
    """Return what comes before the training; checks come before the copying."""
    stage, meet = staging.render_stage(plan), _rendezvous(plan)
    checks = preflight.render_preflight(plan, submitted) if submitted else ""
    return [meet, checks, stage] if checks else [stage, meet]


def _header(plan: Plan) -> str:
    lines = ["#!/bin/bash"]
    for name, value in plan.directives:
        lines.append(f"#SBATCH --{name}" + ("" if value is None else f"={quote_directive(value)}"))
    return "\n".join(lines)


def _about(plan: Plan) -> str:
    title = plan.cluster.title
    return comment(f"Written by Stoker {__version__} for {title}; plain bash, yours to edit.")


def _guard(plan: Plan) -> str:
    """Stop a job whose header was edited and whose body was not."""
    nodes, gpus = plan.shape.nodes, plan.shape.gpus_per_node
    if plan.shape.gpus < 2 or plan.cluster.scheduler == "none":
        return ""
    if plan.cluster.slurm.gpu_option == "none":
        return ""
    shape = f"{nodes} node{'s' if nodes > 1 else ''} with {gpus} GPUs"
    return f"""\
# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${{SLURM_NNODES:-{nodes}}} != {nodes} || ${{SLURM_GPUS_ON_NODE:-{gpus}}} != {gpus} ]]; then
    echo "this script is for {shape}, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
    exit 1
fi"""


def _forget(plan: Plan) -> str:
    """Variables of another job, if sbatch was called inside one, would bind these tasks too."""
    if plan.cluster.scheduler == "none":
        return ""
    return """\
# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK"""


def _software(plan: Plan) -> str:
    environment = plan.environment
    exports = [f"export {name}={quote(value)}" for name, value in environment.env]
    lines = [*environment.setup, *exports]
    if environment.node_setup and plan.shape.nodes > 1:
        lines.append(_once_per_node(plan, environment.node_setup))
    else:
        lines.extend(environment.node_setup)
    lines.extend(line for line in environment.activate if line not in lines)
    if not lines:
        return ""
    return "\n".join([comment(f"Software: {environment.title}."), *map(_waive_source, lines)])


def _waive_source(line: str) -> str:
    """Tell ShellCheck that a file on the cluster cannot be read here."""
    return f"# shellcheck source=/dev/null\n{line}" if line.startswith(("source ", ". ")) else line


def _once_per_node(plan: Plan, lines: tuple[str, ...]) -> str:
    # Single quotes around it, as every node expands it for itself; so its own are written out.
    body = " &&\n        ".join(lines).replace("'", "'\\''")
    command = " ".join([*staging.node_srun(plan), "bash", "-c", f"'{body}'"])
    return (
        f"# shellcheck disable=SC2016  # every node expands these for itself\n{command} || exit 1"
    )


def _variables(plan: Plan) -> str:
    network = plan.cluster.network.env if plan.shape.gpus > 1 else {}
    pairs = [("OMP_NUM_THREADS", str(plan.threads)), *network.items(), *plan.spec.setup.env]
    if plan.framework == "accelerate" and plan.launch.form == "c10d":
        pairs.append(("ACCELERATE_USE_CPU", "true"))
    if any(name == "export" for name, _ in plan.directives):
        pairs.append(("SLURM_EXPORT_ENV", "ALL"))  # else srun would inherit the narrow --export
    reason = next(each.reason for each in plan.choices if each.name == "threads")
    return "\n".join(
        [comment(f"Threads and variables: {reason}.")]
        + [f"export {name}={quote(value)}" for name, value in pairs]
    )


def _rendezvous(plan: Plan) -> str:
    if plan.cluster.scheduler == "none":
        return ""
    if not plan.launch.has_rendezvous and not plan.makes_tf_config:
        return ""
    return """\
# Rendezvous: the first node of the job, and a port on it that no other job is using.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
while (: < "/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
done
export MASTER_ADDR MASTER_PORT"""


def _run(plan: Plan, submitted: Submission | None) -> str:
    """The last block: start the training, and end with its exit code."""
    starter, program = _starter(plan, submitted), _program(plan, submitted)
    watch = submission.watch_words(submitted)
    # A bare `python3` reads better on the line of its script.
    command = [starter, program] if len(starter) > 2 else [[*starter, *program]]
    if plan.launch.form == "tf-servers":
        return _run_servers(plan, command, watch)
    lines = [comment(f"Run: {plan.launch.reason}.")]
    if survival.passes_signal_on(plan):
        lines.append(survival.render_task(plan, _inner(plan)))
        shell = survival.TASK_SHELL
    elif plan.makes_tf_config:
        lines.append(tensorflow.render_workers())
        shell = [*_task_shell(plan), *tensorflow.TASK_SHELL]
    else:
        shell = _task_shell(plan)
        if any("$SLURM_" in word for word in shell):
            lines.append("# shellcheck disable=SC2016  # the tasks expand these, not this shell")
    start = [*srun(plan), *submission.log_words(submitted)]
    lines.append(survival.render_run(plan, wrap(start, watch, shell, *command)))
    return "\n".join(lines)


def _run_servers(plan: Plan, command: list[list[str]], watch: list[str]) -> str:
    """A TensorFlow server and the workers in the background, the chief in front of them."""
    first = ["--nodes=1", "--ntasks=1", '--nodelist="$MASTER_ADDR"', staging.CPUS]
    here = ["srun", *first, *staging.beside(plan)]
    everywhere = [*srun(plan)[:1], "--overlap", *srun(plan)[1:]]
    shell = [*_task_shell(plan), *tensorflow.TASK_SHELL]
    return "\n".join(
        [
            comment(f"Run: {plan.launch.reason}; the job ends when the chief does."),
            tensorflow.render_servers(),
            survival.render_run_any(
                [
                    'TF_ROLE="ps" ' + wrap(here, shell, *command),
                    'TF_ROLE="worker" ' + wrap(everywhere, shell, *command),
                ],
                'TF_ROLE="chief" ' + wrap(here, watch, shell, *command),
            ),
        ]
    )


def srun(plan: Plan) -> list[str]:
    """Return the words that start the tasks, options repeated so that every Slurm obeys them."""
    if plan.cluster.scheduler == "none":
        by_mpi = plan.framework in ("mpi", "horovod")
        return ["mpirun", "-np", str(max(1, plan.shape.gpus))] if by_mpi else []
    tasks = plan.launch.tasks_per_node
    words = ["srun", f"--nodes={plan.shape.nodes}", f"--ntasks-per-node={tasks}"]
    masks = plan.cluster.binding.cpu_masks
    if masks and tasks == len(masks) == plan.shape.gpus_per_node:
        # Masks and --cpus-per-task exclude each other on the srun line.
        words.append("--cpu-bind=mask_cpu:" + ",".join(masks))
    elif staging.has_cpus(plan):
        words.append(staging.CPUS)
    if plan.cluster.slurm.mpi and plan.framework in ("mpi", "horovod"):
        words.append(f"--mpi={plan.cluster.slurm.mpi}")
    if tasks * plan.shape.nodes > 1:
        words += ["--kill-on-bad-exit=1", f"--wait={WAIT_S}"]
    return words


def _task_shell(plan: Plan) -> list[str]:
    """Return the shell that prepares each task, where a task needs one."""
    if plan.cluster.scheduler == "none":
        return []
    steps = []
    if plan.spec.survival.requeue and plan.framework != "lightning":
        # A training without a handler goes on; Lightning takes an ignored signal for a handled
        # one and would not set its own.
        steps.append(f'trap "" {plan.spec.survival.signal}')
    if plan.launch.has_rank_variables:
        steps.append("export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS")
    inner = _inner(plan)
    if not steps and inner == '"$@"':
        return []
    return ["bash", "-c", "'" + "; ".join([*steps, f"exec {inner}"]) + "'", "task"]


def _inner(plan: Plan) -> str:
    """Return what a task runs; what only the task knows stands before the words it is given."""
    if plan.launch.form != "accelerate" or plan.shape.nodes == 1:
        return '"$@"'
    launcher = " ".join([*_prefix(plan), "accelerate", "launch"])
    return f'{launcher} --machine_rank="$SLURM_NODEID" "$@"'


def _prefix(plan: Plan) -> list[str]:
    return [plan.environment.prefix] if plan.environment.prefix else []


def _starter(plan: Plan, submitted: Submission | None) -> list[str]:
    """Return the container and the launcher, up to the script's own name."""
    nodes, each = plan.shape.nodes, plan.launch.processes_per_node
    form, module = plan.launch.form, ["-m"] if plan.spec.is_module else []
    long_module = ["--module"] if module else []
    if not plan.spec.is_python:
        module = long_module = ["--no_python"]
    on_slurm = plan.cluster.scheduler != "none"
    if form in ("standalone", "c10d"):
        full = plan.environment.torchrun if plan.shape.is_full else ()
        meet = (
            ["--standalone"]
            if form == "standalone"
            else [
                '--rdzv_id="$SLURM_JOB_ID"',
                "--rdzv_backend=c10d",
                '--rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"',
            ]
        )
        options = [f"--nnodes={nodes}", f"--nproc_per_node={each}", *meet, *full, *module]
        if submitted is not None and each > 1:
            options.insert(2, "--tee=3")  # every line says which rank wrote it
        return [*_prefix(plan), "torchrun", *options]
    if form == "deepspeed":
        port = ['--master_port="$MASTER_PORT"'] if on_slurm else []
        return [*_prefix(plan), "deepspeed", *port, *long_module]
    if form == "accelerate":
        shape = [f"--num_machines={nodes}", f"--num_processes={nodes * each}"]
        shape += (
            ["--cpu"] if plan.shape.gpu is None else ["--multi_gpu"] if nodes * each > 1 else []
        )
        meet = ['--main_process_port="$MASTER_PORT"'] if on_slurm else []
        meet += ['--main_process_ip="$MASTER_ADDR"'] if nodes > 1 else []
        head = [] if nodes > 1 and on_slurm else [*_prefix(plan), "accelerate", "launch"]
        return [*head, *shape, *meet, *long_module]
    python = ["python3", *module] if plan.spec.is_python else []
    return [*_prefix(plan), *python]


def _program(plan: Plan, submitted: Submission | None) -> list[str]:
    staged = plan.spec.staging
    words = [quote(word) for word in plan.spec.command]
    if submitted is not None and submitted.points is not None:
        words.append('"${point[@]}"')
    if staged.data is not None and staged.data_option:
        words += [quote(staged.data_option), '"$STOKER_DATA"']
    if staged.results is not None and staged.results_option:
        words += [quote(staged.results_option), '"$STOKER_RESULTS"']
    if plan.launch.form in ("standalone", "c10d") and len(words) > 1:
        # Without the dashes torchrun takes a script's own `--log` for a part of its `--log-dir`.
        return ["--", *words]
    return words
