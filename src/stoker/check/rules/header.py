"""Rules about the first lines: what sbatch reads, and what it silently does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import MAX_SCRIPT_BYTES
from stoker.check.findings import Edit, Hit, Subject, rule
from stoker.check.options import FLAGS, OBSOLETE, PLUGIN_OPTIONS, VALUED
from stoker.errors import nearest
from stoker.units import parse_slurm_mem, parse_slurm_time

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_PLAIN = str.maketrans({**dict.fromkeys(_DASHES, "-"), "\u00a0": " "})
# Inside a value a dash may be meant; in front of a name it never is.
_LOOKALIKE = re.compile(rf"(?<=\s)[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*(?=\w)|\u00a0")
_UNLIMITED = ("unlimited", "infinite")
# A typo changes a letter or two; less alike than this is another word (`--image`, `--time`).
TYPO_CUTOFF = 0.8
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
            f"{len(marked)} lines end in CRLF",
            "sbatch refuses scripts with DOS line breaks, and bash takes the CR as part of a word",
            "sed -i 's/\\r$//' on the file",
            tuple(Edit(number, (lines[number - 1].rstrip("\r"),)) for number in marked),
        )


@rule("ST102", "error")
def shebang(subject: Subject) -> Iterator[Hit]:
    """The first line is not `#!` and an interpreter."""
    first = subject.script.lines[0]
    if first.startswith("#!") or not subject.script.text.strip():
        return
    if first.startswith("\ufeff"):
        yield Hit(
            1,
            "the file starts with a byte-order mark",
            "sbatch then does not see the `#!` and refuses the script",
            "save it as UTF-8 without BOM",
            (Edit(1, (first.lstrip("\ufeff"),)),),
        )
        return
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
    for each in (*script.directives, *script.late):
        if each.name is not None:
            continue
        text = script.lines[each.line - 1]
        if not each.spelled.startswith("-"):
            bare, equals, _ = each.spelled.partition("=")
            if equals and bare in VALUED:
                yield Hit(
                    each.line,
                    f"`{each.spelled[:40]}` has no dashes",
                    "sbatch takes it for the name of a script and refuses it",
                    f"--{each.spelled[:40]}",
                    (Edit(each.line, (text.replace(bare, f"--{bare}", 1),)),),
                )
            continue
        name = each.spelled.lstrip("-")
        if name in PLUGIN_OPTIONS:
            continue
        match = OBSOLETE.get(name) or nearest(name, VALUED | FLAGS, cutoff=TYPO_CUTOFF)
        if match is None:
            yield Hit(
                each.line,
                f"`{each.spelled}` is not one of Slurm's options",
                "it may belong to a plugin of the site; elsewhere sbatch refuses it",
                "check it with sbatch --help on the cluster",
                severity="advice",
            )
            continue
        yield Hit(
            each.line,
            f"sbatch has no option `{each.spelled}`",
            "sbatch refuses the script",
            f"did you mean --{match}?",
            (Edit(each.line, (text.replace(each.spelled, f"--{match}", 1),)),),
        )


@rule("ST105", "warning")
def nearly_directive(subject: Subject) -> Iterator[Hit]:
    """A line that looks like a directive but is a comment."""
    script = subject.script
    for line in script.nearly:
        text = script.lines[line - 1]
        if line > script.body_line or not script.directives:
            continue
        fixed = "#SBATCH " + re.sub(r"^\s*#\s*sbatch[:\s]*", "", text, flags=re.IGNORECASE)
        yield Hit(
            line,
            f"`{text.strip()[:60]}` is a comment",
            "sbatch reads lines that start with exactly `#SBATCH`",
            f"{fixed} (or ## in front, if it is meant to be off)",
            (Edit(line, (fixed,)),),
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
    """An option without its value, or with spaces around the equals sign."""
    for each in subject.script.directives:
        if each.name not in VALUED:
            continue
        text = subject.script.lines[each.line - 1]
        spaced = re.search(rf"{re.escape(each.spelled)}(\s*=\s+|\s+=\s*)(\S+)", text)
        if spaced and each.spelled.startswith("--"):
            yield Hit(
                each.line,
                f"there are spaces around the `=` of {each.spelled}",
                "sbatch then takes an empty value or the `=` itself",
                f"{each.spelled}={spaced[2]}",
                (Edit(each.line, (text.replace(spaced[0], f"{each.spelled}={spaced[2]}"),)),),
            )
        elif not each.value:
            yield Hit(
                each.line,
                f"{each.spelled} has no value",
                "sbatch refuses the script",
                f"{each.spelled}=VALUE",
            )


@rule("ST109", "error")
def bad_time(subject: Subject) -> Iterator[Hit]:
    """A time limit that Slurm cannot read."""
    for name in ("time", "time-min"):
        value = subject.script.value(name)
        if value is None or value.lower() in _UNLIMITED:
            continue
        if parse_slurm_time(value) is None:
            yield Hit(
                subject.script.line_of(name),
                f"`{value}` is not a time",
                "Slurm reads minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS",
                f"--{name}=01:00:00 for one hour",
            )


@rule("ST110", "error")
def bad_memory(subject: Subject) -> Iterator[Hit]:
    """A memory size that Slurm cannot read."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        value = subject.script.value(name)
        if value is not None and parse_slurm_mem(value) is None:
            yield Hit(
                subject.script.line_of(name),
                f"`{value}` is not a memory size",
                "Slurm reads a number with K, M, G or T",
                f"--{name}=64G",
            )


@rule("ST111", "warning")
def memory_without_unit(subject: Subject) -> Iterator[Hit]:
    """A small memory size without a unit, which is then MiB."""
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        number = subject.script.number(name)
        if number is not None and 0 < number < SMALL_MEM_MIB:
            line = subject.script.line_of(name)
            text = subject.script.lines[line - 1]
            yield Hit(
                line,
                f"--{name}={number} is {number} MiB",
                "without a unit Slurm counts in MiB",
                f"--{name}={number}G",
                (Edit(line, (re.sub(rf"({name}[=\s]+){number}\b", rf"\g<1>{number}G", text),)),),
            )


@rule("ST112", "error")
def lookalike(subject: Subject) -> Iterator[Hit]:
    """A typographic dash or space where an option begins."""
    for number, line in enumerate(subject.script.lines, 1):
        if line.startswith("#SBATCH") and _LOOKALIKE.search(line):
            plain = _LOOKALIKE.sub(lambda match: match[0].translate(_PLAIN), line)
            yield Hit(
                number,
                "there is a typographic dash or space in this line",
                "copied from a web page or PDF; sbatch knows only the ASCII `-`",
                "type the line again",
                (Edit(number, (plain,)),),
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
        value = script.value(name)
        if value is None or value == "/dev/null" or re.search(r"%\d*[ajJ]", value):
            continue
        line = script.line_of(name)
        stem, dot, end = value.rpartition(".")
        new = f"{stem}_%a.{end}" if dot and "/" not in end else f"{value}_%a"
        yield Hit(
            line,
            f"every task of the array writes to `{value}`",
            "the tasks overwrite each other's log",
            f"--{name}={new}",
            (Edit(line, (script.lines[line - 1].replace(value, new, 1),)),),
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
)
