"""What submitting adds to a script: its run folder, who watches, and the points of a sweep."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.plan.quote import quote


@dataclass(frozen=True)
class Submission:
    """Where a submitted job keeps its run, and what it does besides training."""

    folder: str
    # The `stoker` that watches the tasks; None: nobody does.
    watcher: str | None = None
    # A file with the words of each point of a sweep, a line each.
    points: str | None = None
    # A file with the checks that every node makes before the training.
    preflight: str | None = None
    has_task_logs: bool = False


def render_folder(submission: Submission) -> str:
    """Return the block that says where the run is kept: each element and each attempt apart.

    One that somebody submits again by hand is an attempt too: what was recorded stays.
    """
    return f"""\
# Run folder: what `stoker jobs`, `stoker logs` and `stoker report` read; each attempt has its own.
job_folder={quote(submission.folder)}
first_folder=$job_folder${{SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}}
attempt=${{SLURM_RESTART_COUNT:-0}}
run_folder=$first_folder
((attempt > 0)) && run_folder+=/attempt-$attempt
while [[ -e $run_folder/run.json ]]; do
    run_folder=$first_folder/attempt-$((++attempt))
done"""


def render_watch(submission: Submission) -> str:
    """Return the block that finds Stoker; without it the training runs all the same."""
    if submission.watcher is None:
        return ""
    return f"""\
# Watch: Stoker records where the time goes. The training does not need it.
watch=()
if [[ -x {quote(submission.watcher)} ]]; then
    watch=({quote(submission.watcher)} run --quiet -o "$run_folder" --)
fi"""


def render_point(submission: Submission) -> str:
    """Return the block that reads this task's point of a sweep."""
    if submission.points is None:
        return ""
    return f"""\
# Sweep: the words of this task's point, one line of the file for each.
words=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {quote(submission.points)})
declare -a point="($words)"\
"""


def watch_words(submission: Submission | None) -> list[str]:
    """Return what stands before the training where somebody watches it."""
    return ['"${watch[@]}"'] if submission is not None and submission.watcher else []


def log_words(submission: Submission | None) -> list[str]:
    """Return the options of srun that give each task a log of its own."""
    if submission is None or not submission.has_task_logs:
        return []
    return [
        # To Slurm a percent sign is a mark, and two are one.
        '--output="${job_folder//%/%%}/logs/${SLURM_ARRAY_TASK_ID:+$SLURM_ARRAY_TASK_ID-}%t.log"',
        "--open-mode=append",
    ]
