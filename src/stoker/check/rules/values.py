"""Rules about the values of options: those that sbatch refuses, or reads otherwise than meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import BatchScript, Directive, Edit
from stoker.check.findings import Hit, Subject, rule
from stoker.check.options import TEXT_OPTIONS, VALUED
from stoker.errors import UsageError
from stoker.units import parse_slurm_mem, parse_slurm_time, parse_time, plural, render_time

_UNLIMITED = ("unlimited", "infinite")
# So few minutes that hours may be meant.
_SHORT = r"0?[1-4]:00"
# A job that really wants less memory than this is not a training job.
SMALL_MEM_MIB = 100
_COUNTS = {
    "nodes": r"[0-9]+[km]?(-[0-9]+[km]?)?|[0-9,:-]+",
    "ntasks": r"[0-9]+[km]?",
    "ntasks-per-node": r"[0-9]+",
    "cpus-per-task": r"[0-9]+",
    "cpus-per-gpu": r"(\w+:)?[0-9]+",
}
_WORDS = {
    "hint": ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "open-mode": ("append", "truncate"),
}


@rule("ST108", "error")
def missing_value(subject: Subject) -> Iterator[Hit]:
    """An option without its value, or with an equals sign where none may be."""
    script = subject.script
    for each in script.directives:
        if each.name not in VALUED:
            continue
        value, is_long = each.value or "", each.spelled.startswith("--")
        if is_long and each.has_equals and not value and each.name in TEXT_OPTIONS:
            continue  # `--account=`: sbatch takes it; the reader is meant to fill it in
        following = script.lines[each.line - 1][each.end : each.end + 200].split("#")[0].split()
        if is_long and (value == "=" or (each.has_equals and not value and following[:1])):
            found = following[0] if following else ""
            if found.startswith("-"):
                found = ""
            yield Hit(
                each.line,
                f"there are spaces around the `=` of {each.spelled}",
                "sbatch then takes an empty value or the `=` itself",
                f"{each.spelled}={found or 'VALUE'}",
                (_without_spaces(script, each, found),) if found else (),
            )
        elif not is_long and value.startswith("=") and each.name not in TEXT_OPTIONS:
            yield Hit(
                each.line,
                f"{each.spelled}{value} is read as the value `{value}`",
                "a short option takes its value after a space, without `=`",
                f"{each.spelled} {value[1:]}",
                (script.replace_value(each, f" {value[1:]}"),),
            )
        elif not value:
            yield Hit(
                each.line,
                f"{each.spelled} has no value",
                "sbatch refuses the script",
                f"{each.spelled}=VALUE" if is_long else f"{each.spelled} VALUE",
            )


def _without_spaces(script: BatchScript, each: Directive, value: str) -> Edit:
    line = script.lines[each.line - 1]
    end = line.index(value, each.end) + len(value)
    return Edit(each.line, (f"{line[: each.start]}{each.spelled}={value}{line[end:]}",))


@rule("ST109", "error")
def bad_time(subject: Subject) -> Iterator[Hit]:
    """A time limit that Slurm cannot read, or reads as minutes where hours are meant."""
    script = subject.script
    for name in ("time", "time-min"):
        value = script.value(name)
        if value is None or value.lower() in _UNLIMITED or re.search(r"[A-Z]{1,3}[:-][A-Z]", value):
            continue
        line = script.line_of(name)
        if parse_slurm_time(value) is None:
            yield _not_a_time(script, name, value)
        comment = script.lines[line - 1].partition("#SBATCH")[2].partition("#")[2]
        minutes = value.split(":")[0]
        if re.fullmatch(r"\d+(:\d\d)?", value) and re.search(
            r"\b\d+ ?-?(hours?|hrs?|h)\b", comment
        ):
            yield Hit(
                line,
                f"--{name}={value} is {minutes} minutes",
                "one number is minutes and two are MM:SS; the comment beside it says hours",
                f"--{name}={minutes}:00:00",
                severity="warning",
            )
        elif re.fullmatch(_SHORT, value) and not re.search(r"\bmin", comment):
            yield Hit(
                line,
                f"--{name}={value} is {plural(int(minutes), 'minute')}",
                "two numbers are MM:SS, and few jobs are done that soon",
                f"--{name}={minutes}:00:00, if hours are meant",
                severity="advice",
            )


def _not_a_time(script: BatchScript, name: str, value: str) -> Hit:
    meant, directive = _slurm_time(value), script.last(name)
    return Hit(
        script.line_of(name),
        f"`{value}` is not a time",
        "Slurm reads minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS",
        f"--{name}={meant}" if meant else f"--{name}=01:00:00 for one hour",
        (script.replace_value(directive, meant),) if meant and directive else (),
    )


def _slurm_time(text: str) -> str | None:
    """Write `24h` or `1d12h` as Slurm reads it; None for what is no time to people either."""
    try:
        return render_time(parse_time(text))
    except UsageError:
        return None


@rule("ST110", "error")
def bad_memory(subject: Subject) -> Iterator[Hit]:
    """A memory size that Slurm cannot read."""
    script = subject.script
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        value, directive = script.value(name), script.last(name)
        if value is None or directive is None or parse_slurm_mem(value) is not None:
            continue
        whole = _whole(value)
        yield Hit(
            directive.line,
            f"`{value}` is not a memory size",
            "Slurm reads a whole number with K, M, G or T",
            f"--{name}={whole or '64G'}",
            (script.replace_value(directive, whole),) if whole else (),
        )


def _whole(size: str) -> str | None:
    """Write `1.5G` or `64Gi` as a whole number of the next smaller unit."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([GT])i?B?", size, re.IGNORECASE)
    if not match:
        return None
    return f"{int(float(match[1]) * 1024)}{'M' if match[2] in 'gG' else 'G'}"


@rule("ST111", "warning")
def memory_without_unit(subject: Subject) -> Iterator[Hit]:
    """A small memory size without a unit, which is then MiB."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        number, directive = subject.script.number(name), subject.script.last(name)
        if number is not None and directive is not None and 0 < number < SMALL_MEM_MIB:
            yield Hit(
                directive.line,
                f"--{name}={number} is {number} MiB",
                "without a unit Slurm counts in MiB",
                f"--{name}={number}G",
                (subject.script.replace_value(directive, f"{number}G"),),
            )


@rule("ST116", "error")
def bad_count(subject: Subject) -> Iterator[Hit]:
    """A value that sbatch does not take."""
    script = subject.script
    for name, pattern in _COUNTS.items():
        value = script.value(name)
        if value is None or value.startswith("="):
            continue
        low, dash, high = value.partition("-")
        reversed_ = (
            name == "nodes"
            and dash
            and low.isdecimal()
            and high.isdecimal()
            and int(low) > int(high)
        )
        if re.fullmatch(pattern, value, re.IGNORECASE) and not reversed_ and value != "0":
            continue
        yield Hit(
            script.line_of(name),
            f"--{name}={value} is not a number of {name.split('-')[0]}",
            "sbatch refuses the script",
            f"--{name}=N",
        )
    for name, words in _WORDS.items():
        value = script.value(name)
        if value is not None and value.lower() not in words and value.lower() not in ("a", "t"):
            yield Hit(
                script.line_of(name),
                f"--{name}={value} is none of {', '.join(words)}",
                "sbatch refuses the script",
                f"--{name}={words[-1]}",
            )


RULES = (
    missing_value,
    bad_time,
    bad_memory,
    memory_without_unit,
    bad_count,
)
