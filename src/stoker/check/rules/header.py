"""Rules about the first lines: what sbatch reads, and what it silently does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import MAX_SCRIPT_BYTES, BatchScript, Directive, Edit
from stoker.check.findings import Hit, Subject, rule
from stoker.check.options import PLUGIN_OPTIONS, VALUED, canonical, meant
from stoker.units import plural

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_PLAIN = str.maketrans({**dict.fromkeys(_DASHES, "-"), "\u00a0": " "})
# Inside a value a dash may be meant; in front of a name it never is.
_LOOKALIKE = re.compile(rf"(?<=\s)[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*(?=\w)|\u00a0")

# The reader of an example fills this line in.
_OPEN_LINE = re.compile(r"[<>\[\]{}()$*]|\.\.\.")


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
        and not _follows_equals(line, each.spelled)
    ):
        yield Hit(
            each.line,
            f"`{each.spelled[:40]}` belongs to no option",
            "sbatch calls it an invalid directive and refuses the script",
            "remove it, or put a `#` in front if it is a comment",
        )


def _follows_equals(line: str, word: str) -> bool:
    """Whether spaces around `=` cut the word off from its option: ST108 speaks of those."""
    return re.search(rf"\s--[\w-]+(\s+=\s*|=\s+){re.escape(word)}(\s|$)", line) is not None


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


RULES = (
    crlf,
    shebang,
    late_directive,
    unknown_option,
    nearly_directive,
    variable_in_directive,
    repeated,
    lookalike,
    too_large,
    log_folder,
    array_log,
)
