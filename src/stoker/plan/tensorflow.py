"""The blocks of a script that give TensorFlow its cluster.

TensorFlow's own Slurm resolver reads the variables of the job, not of the step
(tensorflow#36094); TF_CONFIG wins over it, so it is written out for every process.
"""

from __future__ import annotations

# Each task turns the cluster and its own place in it into the JSON that TensorFlow reads.
# Chief and servers share a node with a worker and are kept off its GPUs.
_TASK = """\
tf_task=$(
    cat << 'END'
export TF_CONFIG="{\\"cluster\\": {$TF_CLUSTER}, \\"task\\": {\\"type\\": \\"$TF_ROLE\\", \\"index\\": $SLURM_PROCID}}"
[ "$TF_ROLE" = worker ] || export CUDA_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES=
exec "$@"
END
)"""
_HOSTS = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'

# What starts a task, before its command.
TASK_SHELL = ["bash", "-c", '"$tf_task"', "task"]


def render_workers() -> str:
    """Return the lines that describe a cluster of one worker a node."""
    return f"""\
workers=$({_HOSTS} | sed "s/.*/\\"&:$MASTER_PORT\\"/" | paste -s -d ,)
export TF_ROLE=worker TF_CLUSTER="\\"worker\\": [$workers]"
{_TASK}"""


def render_servers() -> str:
    """Return the lines that describe a chief and a server on the first node, a worker on each."""
    return f"""\
workers=$({_HOSTS} | sed "s/.*/\\"&:$((MASTER_PORT + 2))\\"/" | paste -s -d ,)
chief="\\"$MASTER_ADDR:$MASTER_PORT\\""
server="\\"$MASTER_ADDR:$((MASTER_PORT + 1))\\""
export TF_CLUSTER="\\"chief\\": [$chief], \\"ps\\": [$server], \\"worker\\": [$workers]"
{_TASK}"""
