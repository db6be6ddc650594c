"""The blocks of a script that outlive the time limit: signal, checkpoint, requeue."""

from __future__ import annotations

from stoker.plan.plan import Plan
from stoker.plan.staging import copies_results

# What remains of the grace period for copying results and for the requeue itself.
RESERVE_S = 45

# These launchers start their workers in sessions of their own, which srun's signal does not
# reach (seen with torchrun 2.13 on Slurm 22.05).
_LAUNCHERS = ("standalone", "c10d", "deepspeed", "accelerate")

_WAIT = """\
interrupted=
wait "${child}"
status=$?
while [[ $interrupted ]]; do
    interrupted=
    wait "${child}"
    status=$?
done
exit "$status\""""

_TASK = """\
task=$(
    cat << 'END'
pass_on() {{
    interrupted=1
    pids=$launcher
    while [[ $pids ]]; do
        for pid in $pids; do
            # A process that handles the signal has its bit set in SigCgt; others would die of it.
            caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status")
            ((16#${{caught:-0}} >> $(kill -l {signal}) - 1 & 1)) && kill -s {signal} "$pid"
        done
        pids=${{pids// /}}
        pids=$(ps -o pid= --ppid "${{pids//$'\\n'/,}}")
    done
}}
trap pass_on {signal}
(
    trap '' {signal}
    exec {command}
) &
launcher=$!
{wait}
END
)"""

# What starts such a task, before its command.
TASK_SHELL = ["bash", "-c", '"$task"', "task"]


def passes_signal_on(plan: Plan) -> bool:
    """Whether each task must pass the signal on to the workers of a launcher."""
    return (
        plan.spec.survival.requeue
        and plan.cluster.scheduler != "none"
        and plan.launch.form in _LAUNCHERS
    )


def render_task(plan: Plan, command: str) -> str:
    """Return the lines that define a task which passes the signal on."""
    signal = plan.spec.survival.signal
    return "\n".join(
        [
            f"# {signal} is passed on to those processes of the launcher that handle it.",
            _TASK.format(signal=signal, command=command, wait=_WAIT.replace("{child}", "launcher")),
        ]
    )


def _needs_wait(plan: Plan) -> bool:
    return plan.cluster.scheduler != "none" and (plan.spec.survival.requeue or copies_results(plan))


def render_handler(plan: Plan) -> str:
    """Return the block that answers the signal before the time limit."""
    if not _needs_wait(plan):
        return ""
    survival = plan.spec.survival
    lines = [
        f"# Time limit: Slurm sends {survival.signal} to this shell {survival.grace_s} s before it."
    ]
    copy = ["    interrupted=1", f"    bring_back timeout {survival.grace_s}"]
    handler = _requeue(plan) if survival.requeue else copy
    if survival.requeue:
        lines += [
            "# The training is told, has time to write its checkpoint, and the job is queued again;",
            "# the number of an array alone would queue all of its tasks.",
            "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
            "job=${job:-$SLURM_JOB_ID}",
            f"export STOKER_SIGNAL={survival.signal}",
            "# Slurm itself queues a job again whose node failed, however often that is.",
            f"if ((${{SLURM_RESTART_COUNT:-0}} > {survival.max_restarts})); then",
            f'    echo "not started again: {survival.max_restarts} restarts are enough" >&2',
            "    exit 1",
            "fi",
        ]
    return "\n".join(
        [
            *lines,
            "# shellcheck disable=SC2329  # called by a trap",
            "before_limit() {",
            *handler,
            "}",
            f"trap before_limit {survival.signal}",
            "trap 'exit 143' TERM",
        ]
    )


def _requeue(plan: Plan) -> list[str]:
    survival = plan.spec.survival
    patience = max(10, survival.grace_s - RESERVE_S)
    return [
        "    interrupted=1",
        f"    trap '' {survival.signal}",
        f'    [[ $training ]] && kill -s {survival.signal} "$training"',
        f"    for ((left = {patience}; left > 0; left--)); do",
        '        kill -0 "${training:-none}" 2> /dev/null || break',
        "        sleep 1",
        "    done",
        *([f"    bring_back timeout {RESERVE_S}"] if copies_results(plan) else []),
        f"    if ((${{SLURM_RESTART_COUNT:-0}} >= {survival.max_restarts})); then",
        f'        echo "not queued again: {survival.max_restarts} restarts are enough" >&2',
        '    elif scontrol requeue "$job"; then',
        "        exit 0",
        "    fi",
    ]


def render_run_any(others: list[str], run: str) -> str:
    """Return the lines that start several steps; the first that fails, or the last one, ends the job."""
    started = [f"{each} &\nsteps+=($!)" for each in others]
    return "\n".join(
        [
            "steps=()",
            *started,
            f"{run} &",
            "training=$!",
            "# The others run until the job ends; one that fails ends it.",
            "interrupted=1",
            "while [[ $interrupted ]]; do",
            "    interrupted=",
            '    wait -n "${steps[@]}" "$training"',
            "    status=$?",
            "done",
            "if ((status == 0)); then",
            '    wait "$training"',
            "    status=$?",
            "fi",
            'exit "$status"',
        ]
    )


def render_run(plan: Plan, run: str) -> str:
    """Return the lines that start the training; in the background where a trap must work."""
    if not _needs_wait(plan):
        return run
    return f"""\
{run} &
training=$!
# bash runs a trap only between commands: wait can be interrupted, a foreground srun cannot.
{_WAIT.replace("{child}", "training")}"""
