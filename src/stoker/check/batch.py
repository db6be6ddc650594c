"""A batch script as values: its header, what it asks for, and what it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from stoker.check.options import SHORT, canonical, takes_value
from stoker.check.shell import Assignment, Command, split_commands
from stoker.units import parse_slurm_mem, parse_slurm_time

# sbatch refuses larger scripts unless the site raises max_script_size (slurm.conf.5).
MAX_SCRIPT_BYTES = 4 * 2**20
# Commands past this are not looked at: no person wrote them.
MAX_BODY_CHARS = 500_000

_NEARLY = re.compile(
    r"\s*#\s+SBATCH\s+-|\s+#SBATCH\s+-|#[Ss][Bb][Aa][Tt][Cc][Hh][:\s]|#!?S[BATCH]{4,6}\s+-",
    re.ASCII,
)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*[\"']?([A-Za-z_]\w*)[\"']?")
# A line that a template engine or a reader fills in.
_TEMPLATE_LINE = re.compile(r"\s*(\.\.\.|\$\{?\w+\}?|\{\{.*\}\}|\{%.*%\})\s*")

# A variable, or a place that the reader of an example is meant to fill in.
_OPEN = re.compile(r"\$|<|>|\{|\*|#|\.\.\.|\[(?!\d)|XXX|^[A-Z]$|^$")


@dataclass(frozen=True)
class Edit:
    """Replace one line of the script by others (or by none)."""

    line: int
    new: tuple[str, ...]


@dataclass(frozen=True)
class Directive:
    """One option of one #SBATCH line; columns count from the line's start."""

    line: int
    spelled: str
    name: str | None
    value: str | None
    start: int = 0
    end: int = 0
    value_start: int | None = None
    has_equals: bool = False


@dataclass(frozen=True)
class Gres:
    """What was asked for in GPUs, per node or in all."""

    line: int
    count: int | None
    type: str | None
    option: str


@dataclass(frozen=True)
class BatchScript:
    """A parsed batch script. Lines are counted from 1."""

    text: str
    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    late: tuple[Directive, ...]
    nearly: tuple[int, ...]
    body_line: int
    is_het: bool = False

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The commands of the body."""
        if not is_shell(self.lines[0]):
            return ()
        start = sum(len(line) + 1 for line in self.lines[: self.body_line - 1])
        return tuple(split_commands(self.text[start : start + MAX_BODY_CHARS], self.body_line))

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """Every variable that the body sets."""
        return tuple(each for command in self.commands for each in command.assignments)

    @cached_property
    def body(self) -> str:
        """The text after the header, comments left out."""
        return "\n".join(
            "" if line.lstrip().startswith("#") else line
            for line in self.lines[self.body_line - 1 :]
        )[:MAX_BODY_CHARS]

    def last(self, *names: str) -> Directive | None:
        """The directive that counts: the last one with one of these names."""
        found = [each for each in self.directives if each.name in names]
        return found[-1] if found else None

    def value(self, *names: str) -> str | None:
        """The value of an option, unless it is missing, a variable or a placeholder."""
        directive = self.last(*names)
        if directive is None or directive.value is None or _OPEN.search(directive.value):
            return None
        return directive.value

    def replace_value(self, directive: Directive, new: str) -> Edit:
        """Return the edit that gives one option another value."""
        text = self.lines[directive.line - 1]
        start = directive.end if directive.value_start is None else directive.value_start
        return Edit(directive.line, (text[:start] + new + text[directive.end :],))

    def replace_option(self, directive: Directive, new: str) -> Edit:
        """Return the edit that puts other words in the place of one option and its value."""
        text = self.lines[directive.line - 1]
        return Edit(directive.line, (text[: directive.start] + new + text[directive.end :],))

    def remove_option(self, directive: Directive) -> Edit:
        """Return the edit that takes one option away, and its line if nothing else is on it."""
        alone = sum(each.line == directive.line for each in self.directives) == 1
        if alone:
            return Edit(directive.line, ())
        text = self.lines[directive.line - 1]
        return Edit(directive.line, (text[: directive.start] + text[directive.end :].lstrip(),))

    def number(self, *names: str) -> int | None:
        """The value of an option that is a plain number."""
        text = self.value(*names)
        return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None

    def has(self, *names: str) -> bool:
        """Whether one of these options is in the header."""
        return self.last(*names) is not None

    def line_of(self, *names: str) -> int:
        """Where one of these options stands, else the first line."""
        directive = self.last(*names)
        return directive.line if directive else 1

    @property
    def nodes(self) -> int | None:
        """The nodes asked for; of a range, the fewest."""
        match = re.fullmatch(r"([0-9]{1,6})(?:-[0-9]+)?", self.value("nodes") or "")
        return int(match[1]) if match else None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node, if the header says so one way or another."""
        direct = self.number("ntasks-per-node")
        if direct is not None:
            return direct
        total, nodes = self.number("ntasks"), self.nodes or (1 if not self.has("nodes") else None)
        if total is not None and nodes and total % nodes == 0 and (nodes > 1 or total == 1):
            return total // nodes
        if total is not None and self.nodes == 1:
            return total
        if not self.has("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket",
                        "gpus-per-task"):  # fmt: skip
            return 1
        return None

    @property
    def time_s(self) -> int | None:
        """The time limit in seconds."""
        text = self.value("time")
        return parse_slurm_time(text) if text else None

    @property
    def mem_gib(self) -> float | None:
        """Memory per node, where the header says it by --mem."""
        text = self.value("mem")
        return parse_slurm_mem(text) if text else None

    @property
    def gres(self) -> dict[str, str]:
        """Every generic resource: `gpu:v100:4,nvme:100` → {"gpu": "v100:4", "nvme": "100"}."""
        text = self.value("gres") or ""
        pairs = (
            part.removeprefix("gres/").replace("=", ":", 1).partition(":")
            for part in text.split(",")
        )
        return {name: rest for name, _, rest in pairs if name}

    @property
    def gpu(self) -> Gres | None:
        """The GPU request, from whichever option holds it."""
        for option in ("gres", "gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket"):
            directive = self.last(option)
            if directive is None or directive.value is None:
                continue
            text = directive.value
            if option == "gres":
                if "gpu" not in self.gres:
                    continue
                text = self.gres["gpu"]
            return parse_gres(directive, text.split(",")[0])
        return None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node, where that can be told."""
        gpu = self.gpu
        if gpu is None or gpu.count is None:
            return None
        if gpu.option in ("gres", "gpus-per-node"):
            return gpu.count
        nodes = self.nodes
        if gpu.option == "gpus":
            return gpu.count // nodes if nodes and gpu.count % nodes == 0 else None
        if gpu.option == "gpus-per-task":
            tasks = self.tasks_per_node
            return gpu.count * tasks if tasks else None
        return None

    @property
    def cpus_per_node(self) -> int | None:
        """CPUs on each node, where that can be told."""
        if self.has("cpus-per-gpu"):
            each, gpus = self.number("cpus-per-gpu"), self.gpus_per_node
            return each * gpus if each is not None and gpus else None
        tasks = self.tasks_per_node
        cpus = self.number("cpus-per-task") if self.has("cpus-per-task") else 1
        return tasks * cpus if tasks is not None and cpus is not None else None


def parse_gres(directive: Directive, text: str) -> Gres:
    """Read `v100:4`, `4`, `v100` or nothing (one) as a number of GPUs."""
    text = re.sub(r"\(.*\)", "", text)
    kind, colon, count = text.rpartition(":")
    if not colon:
        kind, count = ("", text) if re.fullmatch(r"[0-9]+", text) else (text, "1")
    known = int(count) if re.fullmatch(r"[0-9]{1,6}", count) else None
    return Gres(directive.line, known, None if _OPEN.search(kind) else kind, directive.name or "")


def parse_batch(text: str) -> BatchScript:
    """Read a batch script; whatever the text, something comes back."""
    lines = tuple(text.split("\n"))
    directives: list[Directive] = []
    late: list[Directive] = []
    nearly: list[int] = []
    body_line = len(lines) + 1
    is_het = False
    here_document = None
    for number, line in enumerate(lines, 1):
        if here_document is not None:
            if line.strip() == here_document:
                here_document = None
        elif line.startswith("#SBATCH"):
            is_het = is_het or "hetjob" in line or "packjob" in line
            (late if number > body_line else directives).extend(parse_directive(line, number))
        elif _NEARLY.match(line):
            nearly.append(number)
        elif line.strip() and not line.lstrip().startswith("#"):
            opened = _HERE_DOCUMENT.search(line)
            here_document = opened[1] if opened else None
            if body_line > len(lines) and not _TEMPLATE_LINE.fullmatch(line):
                body_line = number
    if not is_shell(lines[0]):
        late = []  # in another language they are text
    return BatchScript(
        text, lines, tuple(directives), tuple(late), tuple(nearly), body_line, is_het
    )


def is_shell(first_line: str) -> bool:
    """Whether a script that starts with this line is read by a shell."""
    return not re.match(r"#!.*\b(python|perl|Rscript|julia|ruby|node|lua|awk)", first_line)


def parse_directive(line: str, number: int) -> Iterator[Directive]:
    """Yield the options of one #SBATCH line, split as sbatch itself splits it."""
    offset = len("#SBATCH")
    words = [
        (text, start + offset, end + offset) for text, start, end in split_words(line[offset:])
    ]
    index = 0
    while index < len(words):
        word, start, end = words[index]
        index += 1
        name: str | None = None
        value: str | None = None
        value_start = None
        if word.startswith("--"):
            spelled, equals, rest = word.partition("=")
            name = canonical(spelled[2:])
            value = rest if equals else None
        elif re.match(r"-[A-Za-z]", word):
            spelled, equals = word[:2], "="[: word[2:3] == "="]
            name, value = SHORT.get(word[1]), word[2:] or None
        else:
            spelled, equals = word, ""
        if value is not None:
            value_start = end - len(value)
        elif name is not None and takes_value(name) and index < len(words):
            value, value_start, end = words[index]
            index += 1
        yield Directive(number, spelled, name, value, start, end, value_start, bool(equals))


def split_words(text: str) -> list[tuple[str, int, int]]:
    r"""Split a directive as sbatch does: quotes group, backslash escapes, `#` ends the line.

    Returns each word with its first and last column.

    >>> split_words(' --job-name="my job" -N 2 # two')
    [('--job-name=my job', 1, 20), ('-N', 21, 23), ('2', 24, 25)]
    """
    words: list[tuple[str, int, int]] = []
    word: list[str] = []
    start = 0
    started = escaped = False
    quote = ""
    end = len(text)
    for position, character in enumerate(text):
        if not started and not character.isspace():
            start = position
        if escaped or (quote and character not in (quote, "\\")):
            word.append(character)
            escaped = False
        elif character == "\\":
            escaped = started = True
        elif character == quote:
            quote = ""
        elif character in "\"'":
            quote, started = character, True
        elif character == "#":
            end = position
            break
        elif character.isspace():
            if started:
                words.append(("".join(word), start, position))
            word, started = [], False
        else:
            word.append(character)
            started = True
    if started:
        words.append(("".join(word), start, end))
    return words
