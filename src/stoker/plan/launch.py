"""Choose how the processes start: who starts them, and how many tasks Slurm sees."""

from __future__ import annotations

from stoker.errors import SpecError
from stoker.plan.plan import Launch, Notice, Shape
from stoker.plan.source import Source
from stoker.units import plural

# Every form of launch, as plans name it.
FORMS = {
    "python": "one process",
    "task-per-gpu": "srun",
    "standalone": "torchrun",
    "c10d": "torchrun (c10d)",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "tf-workers": "srun (TF_CONFIG)",
    "tf-servers": "srun (TF_CONFIG)",
}

_PROCESS_PER_GPU = "torchrun starts a process for each GPU of the node"
_RANKS_FROM_SLURM = ("horovod", "jax")


def choose_local_launch(framework: str, shape: Shape) -> Launch:
    """Return how a framework is started on this machine, where there is no srun."""
    each = max(1, shape.gpus_per_node)
    if framework in ("mpi", "horovod"):
        return Launch("task-per-gpu", each, each, "mpirun starts one process for each GPU")
    if framework in ("lightning", "jax"):
        return Launch("python", 1, 1, "the framework itself finds the GPUs of this machine")
    if framework == "parameter-server":
        raise SpecError(
            "a parameter server on one machine",
            why="chief, server and workers are started by srun, and there is none here",
            fix="--cluster NAME, or --framework mirrored on this machine",
        )
    return choose_launch(framework, shape)


def choose_launch(framework: str, shape: Shape) -> Launch:
    """Return how a framework is started on this shape."""
    each = max(1, shape.gpus_per_node)
    single = shape.nodes == 1
    # On CPUs `accelerate launch` starts one process on each node, and none knows of another.
    if framework in ("ddp", "fsdp") or (framework == "accelerate" and not (single or shape.gpu)):
        if single:
            return Launch(
                "standalone",
                1,
                each,
                _PROCESS_PER_GPU if shape.gpu else "torchrun starts one process",
            )
        return Launch(
            "c10d",
            1,
            each,
            "one torchrun a node, which meet at the first node",
            has_rendezvous=True,
        )
    if framework == "accelerate":
        return Launch("accelerate", 1, each, "one `accelerate launch` a node", has_rendezvous=True)
    if framework == "deepspeed" and single:
        return Launch(
            "deepspeed",
            1,
            each,
            "on one node DeepSpeed's own launcher starts a process for each GPU",
            has_rendezvous=True,
        )
    if framework == "multiworker" and shape.nodes > 1:
        return Launch("tf-workers", 1, 1, "one worker a node, each with all GPUs of its node")
    if framework == "parameter-server":
        return Launch("tf-servers", 1, 1, "a chief, a server and one worker a node")
    if framework in ("mirrored", "multiworker"):
        if not single:
            raise SpecError(
                f"MirroredStrategy on {plural(shape.nodes, 'node')}",
                why="it copies the model to the GPUs of one node and knows no others",
                fix=f"--nodes 1 --gpus-per-node {each} --gpus {each}, or --framework multiworker",
            )
        return Launch("python", 1, 1, "one process drives all GPUs of the node")
    if framework == "plain":
        return Launch("python", 1, 1, "one process a node")
    return Launch(
        "task-per-gpu",
        each,
        each,
        "srun starts one task for each GPU" if shape.gpu else "srun starts one task",
        has_rendezvous=framework not in _RANKS_FROM_SLURM,
        has_rank_variables=framework in ("mpi", "deepspeed"),
    )


def launch_notices(framework: str, shape: Shape, source: Source, asked: str) -> list[Notice]:
    """Return what is doubtful about running this script on this shape."""
    notices: list[Notice] = []
    if not source.was_read:
        return notices
    if framework == "plain" and shape.gpus > 1 and not source.spawns:
        fix = "`stoker port` it first, take --gpus 1, or name what was not seen with --framework"
        if source.library == "tensorflow":
            fix = "make the model under tf.distribute.MirroredStrategy, or take --gpus 1"
        if source.uses_data_parallel:
            fix = (
                f"{source.uses_data_parallel} uses DataParallel, which drives the GPUs of one node "
                "from one process; DistributedDataParallel is faster and works on several"
            )
        notices.append(
            Notice(
                f"nothing in the script starts more than one process for its {shape.gpus} GPUs",
                source.evidence,
                fix,
            )
        )
    if shape.gpus and source.stays_on_cpu:
        notices.append(
            Notice(
                f"the script trains on the CPU, and the job holds {plural(shape.gpus, 'GPU')}",
                source.stays_on_cpu,
                'accelerator="auto" with Lightning; else .to("cuda") for the model and each batch',
            )
        )
    if asked != "auto" and source.framework not in ("plain", asked):
        notices.append(
            Notice(
                f"the script looks like {source.framework}, not {asked}",
                source.evidence,
                f"leave --framework out, or take --framework {source.framework}",
            )
        )
    return notices
