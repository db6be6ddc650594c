"""Rules about the end of a job: signals, requeue, results."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import Edit
from stoker.check.findings import Hit, Subject, rule

_REQUEUE = re.compile(
    r"scontrol\s+requeue\s+[\"']?(\$\{SLURM_(?:ARRAY_)?JOB_?ID\}|\$SLURM_(?:ARRAY_)?JOB_?ID\b)(?!_)"
)


@rule("ST601", "warning")
def batch_signal(subject: Subject) -> Iterator[Hit]:
    """--signal=B: without a trap that can run."""
    script = subject.script
    value = script.value("signal") or ""
    match = re.match(r"(?:R?B|BR)R?:(?:SIG)?(\w+)", value, re.IGNORECASE)
    if not match:
        return
    line = script.line_of("signal")
    name = match[1].upper()
    traps = [each for each in script.commands if each.name == "trap"]
    caught = any(
        word.upper().removeprefix("SIG") == name for each in traps for word in each.texts[1:]
    )
    if name.isdigit():
        caught = caught or bool(traps)
    if not caught:
        if any(each.name in ("source", ".") for each in script.commands):
            return  # the trap may be set in the file that is read
        yield Hit(
            line,
            f"nobody waits for the signal {name}",
            "--signal=B: sends it to this shell alone, which has no trap for it and dies",
            f"trap 'handler' {name} above the srun line, or --signal={name}@… without B: for the tasks",
        )
        return
    waits = any(each.name == "wait" for each in script.commands)
    runs = [launch for launch in subject.launches if launch.starter or launch.launcher != "other"]
    if runs and not waits and not any(launch.in_background for launch in runs):
        yield Hit(
            runs[-1].line,
            f"the trap for {name} cannot run while this command does",
            "bash runs a trap only between commands: the signal is seen when the training has ended",
            "end the line with `&` and put `wait` on the next",
        )


@rule("ST602", "warning")
def requeue_log(subject: Subject) -> Iterator[Hit]:
    """A requeued job truncates its log."""
    script = subject.script
    requeues = script.has("requeue") or "scontrol requeue" in script.body
    if not requeues or script.value("open-mode") == "append":
        return
    called = next(
        (number for number, line in enumerate(script.lines, 1) if "scontrol requeue" in line), 1
    )
    line = script.line_of("requeue") if script.has("requeue") else called
    anchor = (
        line if script.has("requeue") else max((each.line for each in script.directives), default=1)
    )
    yield Hit(
        line,
        "the log starts anew at every restart",
        "Slurm opens it for writing again unless told to append",
        "#SBATCH --open-mode=append",
        (Edit(anchor, (script.lines[anchor - 1], "#SBATCH --open-mode=append")),)
        if script.value("open-mode") is None
        else (),
    )


@rule("ST603", "error")
def requeue_array(subject: Subject) -> Iterator[Hit]:
    """A task of an array requeues the whole array."""
    script = subject.script
    if not script.has("array"):
        return
    safe = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    for number, line in enumerate(script.lines, 1):
        match = _REQUEUE.search(line)
        if match and number >= script.body_line and not line.lstrip().startswith("#"):
            yield Hit(
                number,
                f"`scontrol requeue {match[1]}` may requeue every task of the array",
                "that number is also the id of the whole array for one of its tasks",
                f"scontrol requeue {safe}",
                (Edit(number, (line.replace(match[1], safe, 1),)),),
            )


@rule("ST604", "advice")
def endless_requeue(subject: Subject) -> Iterator[Hit]:
    """The script requeues itself without counting."""
    script = subject.script
    for command in script.commands:
        if (
            command.texts[:2] == ["scontrol", "requeue"]
            and "SLURM_RESTART_COUNT" not in script.text
        ):
            yield Hit(
                command.line,
                "nothing ends the restarts",
                "a job that fails at once would be queued again for ever",
                "requeue only while ${SLURM_RESTART_COUNT:-0} is below a limit",
            )
            return


@rule("ST605", "error")
def nobody_waits(subject: Subject) -> Iterator[Hit]:
    """The last command runs in the background and nothing waits for it."""
    commands = subject.script.commands
    if not commands or any(each.name in ("wait", "sleep", "tail") for each in commands):
        return
    last = commands[-1]
    runs = [
        launch for launch in subject.launches if launch.line == last.line and launch.in_background
    ]
    if last.in_background and runs:
        yield Hit(
            last.line,
            "the job ends as soon as this command has started",
            "it runs in the background, and a batch job ends with its script",
            "add `wait` on the next line",
            (Edit(last.end_line, (subject.script.lines[last.end_line - 1], "wait")),),
        )


RULES = (batch_signal, requeue_log, requeue_array, endless_requeue, nobody_waits)
