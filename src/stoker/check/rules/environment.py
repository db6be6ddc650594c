"""Rules about what the job finds around it: variables, modules, secrets, files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from stoker.check.batch import Edit
from stoker.check.findings import Hit, Subject, rule

_SECRET_VALUES = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|ghp_[A-Za-z0-9]{36}|glpat-[A-Za-z0-9_-]{20}"
    r"|AKIA[A-Z0-9]{16}|xox[bp]-[A-Za-z0-9-]{20,})"
)
_SECRET_NAMES = re.compile(
    r"(API_?KEY|SECRET|PASSWORD|PASSWD|ACCESS_KEY|_TOKEN|^TOKEN)$", re.IGNORECASE
)
_PLACEHOLDER = re.compile(
    r"^$|[<>$*]|your|xxx|\.\.\.|example|changeme|insert|here|none|null|todo|fill", re.IGNORECASE
)
_HOME = re.compile(r"^(~/|\$\{?HOME\}?/|/home/|/users/)")
_DATA_OPTION = re.compile(
    r"^--?(data|dataset|train|input|imagenet|corpus)([-_]?(dir|path|root|folder|file|set|data))*$"
)


@rule("ST701", "warning")
def secret(subject: Subject) -> Iterator[Hit]:
    """A key or password in plain text."""
    for each in subject.script.assignments:
        value = each.value.strip("\"'")
        named = _SECRET_NAMES.search(each.name) and len(value) >= 16 and re.search(r"\d", value)
        if _PLACEHOLDER.search(value) or not (named or _SECRET_VALUES.search(value)):
            continue
        yield Hit(
            each.line,
            f"{each.name} holds a secret in plain text",
            "Slurm keeps a copy of every script, and many can read it",
            f"keep it in a file that only you can read: {each.name}=$(< ~/.config/{each.name.lower()})",
        )

    for command in subject.script.commands:
        text = " ".join(command.texts)
        if _SECRET_VALUES.search(text) or re.search(
            r"wandb login (--relogin )?[0-9a-f]{40}\b", text
        ):
            yield Hit(
                command.line,
                "there is a secret in plain text on this line",
                "Slurm keeps a copy of every script, and many can read it",
                "log in once on the login node, or read it from a file that only you can read",
            )


@rule("ST702", "warning")
def data_in_home(subject: Subject) -> Iterator[Hit]:
    """The data set is read from the home folder."""
    for launch in subject.launches:
        for index, word in enumerate(launch.program):
            name, equals, value = word.partition("=")
            if not _DATA_OPTION.match(name):
                continue
            value = value if equals else (launch.program[index + 1 : index + 2] or ("",))[0]
            if _HOME.match(value) and subject.script.gpu is not None:
                yield Hit(
                    launch.line,
                    f"`{value}` is in the home folder",
                    "home is small and slow nearly everywhere; a loader that reads it starves the GPU",
                    "keep data on scratch, and copy it to the node's own disk before training",
                )


@rule("ST703", "advice")
def one_thread(subject: Subject) -> Iterator[Hit]:
    """torchrun sets OMP_NUM_THREADS to 1 where the processes have many cores."""
    script = subject.script
    cpus = script.number("cpus-per-task")
    if "OMP_NUM_THREADS" in script.text or cpus is None:
        return
    for launch in subject.launches:
        processes = launch.number("nproc_per_node")
        if launch.launcher != "torchrun" or processes is None or processes < 2:
            continue
        each = cpus // processes
        if each >= 4:
            yield Hit(
                launch.line,
                f"each process computes with 1 thread and has {each} cores",
                "torchrun sets OMP_NUM_THREADS=1 when it is not set",
                f"export OMP_NUM_THREADS={each} (fewer, if the loader has workers)",
            )
            return


@rule("ST704", "warning")
def export_replaces(subject: Subject) -> Iterator[Hit]:
    """--export without ALL replaces the whole environment."""
    script = subject.script
    value = script.value("export")
    if value is not None:
        yield from _export(subject, script.line_of("export"), value)
    for launch in subject.launches:
        own = launch.starter_options.get("export")
        if own and launch.starter == "srun":
            yield from _export(subject, launch.line, own)


def _export(subject: Subject, line: int, value: str) -> Iterator[Hit]:
    parts = [part.strip("\"'") for part in value.split(",")]
    yield from _split_value(line, parts)
    upper = {part.upper() for part in parts}
    if upper & {"ALL", "NIL"} or "$" in value:
        return
    if upper == {"NONE"}:
        if (
            line <= subject.script.body_line
            and not re.search(r"SLURM_EXPORT_ENV|--export=ALL|--get-user-env", subject.script.text)
            and any(launch.starter == "srun" for launch in subject.launches)
        ):
            yield Hit(
                line,
                "--export=NONE also holds for srun",
                "srun inherits it as SLURM_EXPORT_ENV: modules that this script loads do not reach "
                "the tasks",
                "export SLURM_EXPORT_ENV=ALL before srun",
            )
        return
    yield Hit(
        line,
        f"--export={value[:40]} drops every other variable",
        "without ALL the list replaces the environment: PATH, modules and HOME are gone",
        f"--export=ALL,{value[:40]}, or export lines in the script",
    )


def _split_value(line: int, parts: list[str]) -> Iterator[Hit]:
    """A value with commas in it: what follows the comma is taken for another variable."""
    for before, part in pairwise(parts):
        if "=" in before and re.fullmatch(r"[a-z][a-z0-9.]*|[0-9.]+", part):
            yield Hit(
                line,
                f"`{part}` is taken for the name of a variable",
                f"--export is split at commas, also inside the value of {before.partition('=')[0]}",
                f"export {before},{part} as a line of the script",
            )


@rule("ST705", "advice")
def strict_before_conda(subject: Subject) -> Iterator[Hit]:
    """`set -u` before conda activate."""
    script = subject.script
    strict = next(
        (
            command.line
            for command in script.commands
            if command.name == "set" and re.search(r"-\w*u|nounset", " ".join(command.texts[1:]))
        ),
        None,
    )
    for command in script.commands:
        if strict and command.texts[:2] == ["conda", "activate"] and command.line > strict:
            between = script.lines[strict : command.line]
            if not any(re.search(r"set \+\w*u", line) for line in between):
                yield Hit(
                    command.line,
                    "conda activate under `set -u`",
                    "conda's scripts read variables that may be unset, and the job ends here",
                    "set +u before and set -u after this line",
                )
                return


@rule("ST706", "warning")
def conda_without_hook(subject: Subject) -> Iterator[Hit]:
    """`conda activate` in a shell that was not prepared for it."""
    script = subject.script
    first = script.lines[0]
    if re.match(r"#!\S+\s+-\w*[li]", first) or "--login" in first:
        return
    for command in script.commands:
        if command.texts[:2] not in (
            ["conda", "activate"],
            ["mamba", "activate"],
            ["micromamba", "activate"],
        ):
            continue
        before = "\n".join(script.lines[script.body_line - 1 : command.line])
        prepared = (
            r"(^|\s|;)(source|\.|eval|module|ml)\s|conda\.sh|shell\.bash|bashrc|hook|get-user-env"
        )
        if re.search(prepared, before) or script.has("get-user-env"):
            return
        yield Hit(
            command.line,
            "conda is not set up in this shell",
            "a batch shell does not read ~/.bashrc, where `conda init` puts its lines",
            'eval "$(conda shell.bash hook)" above this line',
            (_hook(script.lines[command.line - 1], command.line),),
        )
        return


def _hook(text: str, line: int) -> Edit:
    indent = text[: len(text) - len(text.lstrip())]
    return Edit(line, (f'{indent}eval "$(conda shell.bash hook)"', text))


@rule("ST707", "warning")
def launch_blocking(subject: Subject) -> Iterator[Hit]:
    """A debugging switch that slows every step."""
    slow = {
        "CUDA_LAUNCH_BLOCKING": "every kernel waits for the one before it",
        "TORCH_DISTRIBUTED_DEBUG": "every collective is checked on all ranks",
    }
    for each in subject.script.assignments:
        on = each.value.strip("\"'") in ("1", "DETAIL")
        if each.name in slow and on and subject.script.gpu is not None:
            yield Hit(
                each.line,
                f"{each.name}={each.value} is on",
                f"it is for finding faults: {slow[each.name]}",
                "remove it for real runs",
            )


RULES = (
    secret,
    data_in_home,
    one_thread,
    export_replaces,
    strict_before_conda,
    conda_without_hook,
    launch_blocking,
)
