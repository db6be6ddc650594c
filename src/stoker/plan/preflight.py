"""The block of a script in which every node looks before the training starts."""

from __future__ import annotations

import json

from stoker.plan.plan import Plan
from stoker.plan.quote import quote
from stoker.plan.staging import node_srun
from stoker.plan.submission import Submission


def render_preflight(plan: Plan, submitted: Submission) -> str:
    """Return the block; the checks themselves lie in the run folder."""
    if submitted.preflight is None or plan.cluster.scheduler == "none":
        return ""
    staged, disk = plan.spec.staging, plan.cluster.disk
    wanted = {
        "nodes": plan.shape.nodes,
        "gpus": plan.shape.gpus_per_node,
        "cpus": plan.cpus_per_task,
        "script": plan.spec.script if plan.spec.is_python and not plan.spec.is_module else None,
        "local": f"${disk.env}" if disk.env else disk.path,
        # Where jobs' data is kept it may lie there already; who copies it sees whether it fits.
        "local_bytes": 0 if disk.kept else int((staged.data_gib or 0) * 2**30),
    }
    if plan.framework == "deepspeed" and plan.shape.gpu is None:
        wanted["compiler"] = True
    python = [plan.environment.prefix] if plan.environment.prefix else []
    words = [*node_srun(plan), *python, "python3", "-", quote(json.dumps(wanted))]
    return f"""\
# Preflight: every node looks first; what is wrong is said in seconds, not after an hour.
STOKER_NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d ' ')
export STOKER_NODES
{" ".join(words)} < {quote(submitted.preflight)} || exit 1"""
