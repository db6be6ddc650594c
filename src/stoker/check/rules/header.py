"""Rules about the first lines: what sbatch reads, and what it silently does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import MAX_SCRIPT_BYTES, BatchScript, Directive, Edit
from stoker.check.findings import Hit, Subject, rule
from stoker.check.options import PLUGIN_OPTIONS, TEXT_OPTIONS, VALUED, canonical, meant
from stoker.units import parse_slurm_mem, parse_slurm_time, plural

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_PLAIN = str.maketrans({**dict.fromkeys(_DASHES, "-"), "\u00a0": " "})
# Inside a value a dash may be meant; in front of a name it never is.
_LOOKALIKE = re.compile(rf"(?<=\s)[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*(?=\w)|\u00a0")
_UNLIMITED = ("unlimited", "infinite")
# The reader of an example fills this line in.
_OPEN_LINE = re.compile(r"[<>\[\]{}()$*]|\.\.\.")
# A job that really wants less memory than this is not a training job.
SMALL_MEM_MIB = 100


@rule("ST101", "error")
def crlf(subject: Subject) -> Iterator[Hit]:
    """Lines end in CRLF, as on Windows."""
    lines = subject.script.lines
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("\r")]
    if marked:
        yield Hit(
            marked[0],
            f"{plural(len(marked), 'line ends', 'lines end')} in CRLF",
            "sbatch refuses scripts with DOS line breaks, and bash takes the CR as part of a word",
            "sed -i 's/\\r$//' on the file",
            tuple(Edit(number, (lines[number - 1].rstrip("\r"),)) for number in marked),
        )


@rule("ST102", "error")
def shebang(subject: Subject) -> Iterator[Hit]:
    """The first line is not `#!` and an interpreter."""
    script = subject.script
    first = script.lines[0]
    if not script.text.strip():
        yield Hit(1, "the script is empty", "sbatch refuses it", "write #!/bin/bash and a command")
    elif "\0" in script.text:
        yield Hit(1, "there is a NUL byte in the script", "sbatch refuses it", "save it as text")
    elif first.startswith("\ufeff"):
        yield Hit(
            1,
            "the file starts with a byte-order mark",
            "sbatch then does not see the `#!` and refuses the script",
            "save it as UTF-8 without BOM",
            (Edit(1, (first.lstrip("\ufeff"),)),),
        )
    elif not first.startswith("#!"):
        yield Hit(
            1,
            "the first line is not `#!/bin/bash`",
            "sbatch refuses a script whose first line names no interpreter",
            "put #!/bin/bash on the first line",
            (Edit(1, ("#!/bin/bash", *((first,) if first.strip() else ()))),),
        )


@rule("ST103", "error")
def late_directive(subject: Subject) -> Iterator[Hit]:
    """A #SBATCH line stands after the first command."""
    script = subject.script
    if not script.late:
        return
    first = script.lines[script.body_line - 1].strip()
    anchor = max((each.line for each in script.directives), default=1)
    late = sorted({each.line for each in script.late})
    moved = [script.lines[line - 1] for line in late]
    edits = (Edit(anchor, (script.lines[anchor - 1], *moved)), *(Edit(line, ()) for line in late))
    for line in late:
        text = script.lines[line - 1]
        yield Hit(
            line,
            f"`{text.strip()[:60]}` is ignored",
            f"sbatch stops reading at the first command, `{first[:40]}` on line {script.body_line}",
            "move it above the first command",
            edits if line == late[0] else (),  # all move together
        )


@rule("ST104", "error")
def unknown_option(subject: Subject) -> Iterator[Hit]:
    """An option that sbatch does not have."""
    script = subject.script
    for each in script.directives:
        one_dash = re.match(r"-([a-z][a-z-]+)(=|$)", f"-{(each.spelled + (each.value or ''))[1:]}")
        if each.name is not None and not each.spelled.startswith("--") and one_dash:
            name = canonical(one_dash[1])
            if name and len(one_dash[1]) > 2:
                yield Hit(
                    each.line,
                    f"`-{one_dash[1]}` has one dash",
                    f"sbatch reads it as -{one_dash[1][0]} with the value `{one_dash[1][1:]}…`",
                    f"--{name}",
                    (
                        script.replace_option(
                            each, f"--{name}={(each.value or '').partition('=')[2]}"
                        ),
                    ),
                )
        elif each.name is None and each.spelled.startswith("-"):
            yield from _unknown(script, each)
        elif each.name is None:
            yield from _stray(script, each)


def _unknown(script: BatchScript, each: Directive) -> Iterator[Hit]:
    name = each.spelled.lstrip("-")
    if name in PLUGIN_OPTIONS or _OPEN_LINE.search(each.spelled):
        return
    match = meant(name)
    if match is None:
        yield Hit(
            each.line,
            f"`{each.spelled}` is not one of Slurm's options",
            "it may belong to a plugin of the site; elsewhere sbatch refuses it",
            "check it with sbatch --help on the cluster",
            severity="advice",
        )
        return
    value = f"={each.value}" if each.value is not None else ""
    yield Hit(
        each.line,
        f"sbatch has no option `{each.spelled}`",
        "sbatch refuses the script",
        f"did you mean --{match}?",
        (script.replace_option(each, f"--{match}{value}"),),
    )


def _stray(script: BatchScript, each: Directive) -> Iterator[Hit]:
    """A word that belongs to no option: sbatch calls it an invalid directive."""
    line = script.lines[each.line - 1]
    bare, equals, _ = each.spelled.partition("=")
    if equals and bare in VALUED:
        yield Hit(
            each.line,
            f"`{each.spelled[:40]}` has no dashes",
            "sbatch calls it an invalid directive and refuses the script",
            f"--{each.spelled[:40]}",
            (script.replace_option(each, f"--{each.spelled}"),),
        )
    elif (
        not _OPEN_LINE.search(line)
        and line.isascii()
        and each.spelled != "="
        and "hetjob" not in line
    ):
        yield Hit(
            each.line,
            f"`{each.spelled[:40]}` belongs to no option",
            "sbatch calls it an invalid directive and refuses the script",
            "remove it, or put a `#` in front if it is a comment",
        )


@rule("ST105", "warning")
def nearly_directive(subject: Subject) -> Iterator[Hit]:
    """A line that looks like a directive but is a comment."""
    script = subject.script
    for line in script.nearly:
        text = script.lines[line - 1]
        if line > script.body_line or not script.directives:
            continue
        fixed = "#SBATCH " + re.sub(r"^\s*#!?\s*s[batch]{4,6}[:\s]*", "", text, flags=re.IGNORECASE)
        off = re.match(r"\s*#\s+SBATCH", text) is not None
        yield Hit(
            line,
            f"`{text.strip()[:60]}` is a comment",
            "sbatch reads lines that start with exactly `#SBATCH`",
            f"{fixed} (or ## in front, if it is meant to be off)",
            () if off else (Edit(line, (fixed,)),),  # a space is also how people switch a line off
            severity="advice" if off else None,
        )


@rule("ST106", "error")
def variable_in_directive(subject: Subject) -> Iterator[Hit]:
    """A shell variable or command in a #SBATCH line."""
    for each in subject.script.directives:
        value = each.value or ""
        if re.search(r"\$\{?[A-Za-z_]|\$\(|`", value) and each.name not in ("wrap", "comment"):
            yield Hit(
                each.line,
                f"`{value[:60]}` is taken literally",
                "sbatch reads #SBATCH lines before any shell does: variables are not filled in",
                "write the value out, use %j, %x, %u in file names, or give it on sbatch's "
                "command line",
            )
        elif each.name in ("output", "error", "chdir") and value.startswith("~"):
            yield Hit(
                each.line,
                f"`{value[:60]}` is taken literally",
                "there is no shell to expand `~`; a folder of that name is looked for",
                "write the whole path",
            )


@rule("ST107", "warning")
def repeated(subject: Subject) -> Iterator[Hit]:
    """The same option twice with different values."""
    if subject.script.is_het:
        return
    seen: dict[str, tuple[int, str | None]] = {}
    for each in subject.script.directives:
        # Slurm before 20.02 added mail types up, and scripts still list them one by one.
        if each.name in (None, "mail-type"):
            continue
        before = seen.get(each.name)
        if before and before[1] != each.value:
            yield Hit(
                each.line,
                f"--{each.name} is given twice: `{before[1]}` on line {before[0]}, `{each.value}` here",
                "sbatch takes the last one",
                f"remove line {before[0]} or this one",
            )
        seen[each.name] = (each.line, each.value)


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
            yield Hit(
                line,
                f"`{value}` is not a time",
                "Slurm reads minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS",
                f"--{name}=01:00:00 for one hour",
            )
        comment = script.lines[line - 1].partition("#SBATCH")[2].partition("#")[2]
        if re.fullmatch(r"\d+(:\d\d)?", value) and re.search(
            r"\b\d+ ?-?(hours?|hrs?|h)\b", comment
        ):
            yield Hit(
                line,
                f"--{name}={value} is {value.split(':')[0]} minutes",
                "one number is minutes and two are MM:SS; the comment beside it says hours",
                f"--{name}={value.split(':')[0]}:00:00",
                severity="warning",
            )


@rule("ST110", "error")
def bad_memory(subject: Subject) -> Iterator[Hit]:
    """A memory size that Slurm cannot read."""
    script = subject.script
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        value, directive = script.value(name), script.last(name)
        if value is None or directive is None or parse_slurm_mem(value) is not None:
            continue
        match = re.fullmatch(r"([0-9.]+)([GT])i?B?", value, re.IGNORECASE)
        whole = (
            f"{int(float(match[1]) * 1024)}{'MG'['GT'.index(match[2].upper())]}"
            if match and match[1].count(".") < 2 and match[1] != "."
            else None
        )
        yield Hit(
            directive.line,
            f"`{value}` is not a memory size",
            "Slurm reads a whole number with K, M, G or T",
            f"--{name}={whole or '64G'}",
            (script.replace_value(directive, whole),) if whole else (),
        )


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


@rule("ST112", "error")
def lookalike(subject: Subject) -> Iterator[Hit]:
    """A typographic dash or space where an option begins."""
    for number, line in enumerate(subject.script.lines, 1):
        if not line.startswith("#SBATCH") or line.isascii():
            continue
        options, mark, rest = line[1:].partition("#")
        if _LOOKALIKE.search(options):
            plain = _LOOKALIKE.sub(lambda match: match[0].translate(_PLAIN), options)
            yield Hit(
                number,
                "there is a typographic dash or space in this line",
                "copied from a web page or PDF; sbatch knows only the ASCII `-`",
                "type the line again",
                (Edit(number, (f"#{plain}{mark}{rest}",)),),
            )


@rule("ST113", "error")
def too_large(subject: Subject) -> Iterator[Hit]:
    """The script is larger than sbatch takes."""
    size = len(subject.script.text.encode("utf-8", "surrogateescape"))
    if size > MAX_SCRIPT_BYTES:
        yield Hit(
            1,
            f"the script has {size / 2**20:.1f} MiB",
            "sbatch takes at most 4 MiB (max_script_size in slurm.conf)",
            "put the data into a file of its own",
        )


@rule("ST114", "warning")
def log_folder(subject: Subject) -> Iterator[Hit]:
    """The folder of the log file does not exist."""
    folder = subject.folder
    if folder is None:
        return
    for name in ("output", "error"):
        value = subject.script.value(name)
        if value is None or "/" not in value or value.startswith(("/", "~")):
            continue
        place = value.rsplit("/", 1)[0]
        if "%" in place or (folder / place).is_dir():
            continue
        yield Hit(
            subject.script.line_of(name),
            f"there is no folder `{place}` here",
            "Slurm does not make it: the job fails at its start and leaves no log",
            f"mkdir -p {place} before sbatch",
        )


@rule("ST115", "warning")
def array_log(subject: Subject) -> Iterator[Hit]:
    """All tasks of an array write to one log file."""
    script = subject.script
    if not script.has("array"):
        return
    for name in ("output", "error"):
        value, directive = script.value(name), script.last(name)
        if (
            value is None
            or directive is None
            or value == "/dev/null"
            or re.search(r"%\d*[ajJ]", value)
        ):
            continue
        stem, dot, end = value.rpartition(".")
        new = f"{stem}_%a.{end}" if dot and "/" not in end else f"{value}_%a"
        yield Hit(
            directive.line,
            f"every task of the array writes to `{value}`",
            "the tasks overwrite each other's log",
            f"--{name}={new}",
            (script.replace_value(directive, new),),
        )


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
    crlf,
    shebang,
    late_directive,
    unknown_option,
    nearly_directive,
    variable_in_directive,
    repeated,
    missing_value,
    bad_time,
    bad_memory,
    memory_without_unit,
    lookalike,
    too_large,
    log_folder,
    array_log,
    bad_count,
)
