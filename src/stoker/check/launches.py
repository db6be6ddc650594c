"""What a batch script starts: srun or mpirun around torchrun, deepspeed, accelerate or python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.check.batch import BatchScript
from stoker.check.options import SRUN_SHORT, SRUN_VALUED
from stoker.check.shell import Command, Word, split_commands

STARTERS = frozenset(["srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "prun", "ibrun"])
_LAUNCHERS = {
    "torchrun": "torchrun",
    "torchrun-hpc": "torchrun",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "horovodrun": "horovodrun",
    "python": "python",
    "python3": "python",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
# Their words are text or files, not commands to run.
_NOT_RUN = frozenset(
    [
        "echo",
        "printf",
        "cat",
        "which",
        "type",
        "pip",
        "pip3",
        "conda",
        "mamba",
        "module",
        "ml",
        "source",
        ".",
        "cd",
        "rm",
        "cp",
        "mv",
        "mkdir",
        "ls",
        "git",
        "export",
        "set",
        "unset",
        "trap",
        "wget",
        "curl",
        "grep",
        "sed",
        "awk",
        "tar",
        "rsync",
        "test",
        "[",
        "[[",
        "sbatch",
        "scancel",
        "kill",
        "ps",
    ]
)
_FLAGS = frozenset(
    [
        "standalone",
        "module",
        "m",
        "no_python",
        "run_path",
        "use_env",
        "multi_gpu",
        "cpu",
        "mps",
        "tpu",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_xpu",
        "debug",
        "no_local_rank",
        "no_ssh",
        "enable_each_rank_log",
        "bind_cores_to_rank",
        "quiet",
        "verbose",
        "gloo",
        "mpi",
    ]
)
_MAX_EXPANSIONS = 3
_MAX_VALUE = 2000


@dataclass(frozen=True)
class Launch:
    """One line that starts the training."""

    line: int
    end_line: int
    starter: str | None
    starter_options: dict[str, str | None]
    launcher: str
    module: str | None
    options: dict[str, str | None]
    program: tuple[str, ...]
    before: tuple[str, ...]
    raw: str
    in_background: bool = False

    @property
    def is_distributed(self) -> bool:
        """Whether the launcher is one that starts processes by itself."""
        return self.launcher in ("torchrun", "deepspeed", "accelerate")

    def number(self, *names: str) -> int | None:
        """The value of a launcher option that is a plain number."""
        for name in names:
            text = self.options.get(name)
            if text is not None and re.fullmatch(r"[0-9]{1,6}", text):
                return int(text)
        return None


def find_launches(script: BatchScript) -> tuple[Launch, ...]:
    """Return what the script starts, variables with a known value filled in."""
    values = _known_values(script)
    return tuple(
        launch for command in script.commands for launch in _launches(command, values, script)
    )


def _known_values(script: BatchScript) -> dict[str, str]:
    """Return the variables that are set once, to something that can be read."""
    seen: dict[str, list[str]] = {}
    for each in script.assignments:
        seen.setdefault(each.name, []).append(each.value)
    return {
        name: values[0]
        for name, values in seen.items()
        if len(values) == 1 and len(values[0]) < _MAX_VALUE and "$(" not in values[0]
    }


def _expand(text: str, values: dict[str, str]) -> str:
    for _ in range(_MAX_EXPANSIONS):
        new = re.sub(
            r"\$(?:\{(\w+)\}|(\w+))",
            lambda match: values.get(match[1] or match[2], match[0]),
            text,
        )
        if new == text or len(new) > 10 * _MAX_VALUE:
            break
        text = new
    return text


def _words(words: Sequence[Word], values: dict[str, str]) -> list[str]:
    """Return the words' texts; an unquoted variable may become several words."""
    texts: list[str] = []
    for word in words:
        if word.is_single:
            texts.append(word.text)
        elif re.fullmatch(r"\$(\{\w+\}|\w+)", word.raw):
            texts.extend(_expand(word.text, values).split() or [""])
        else:
            texts.append(_expand(word.text, values))
    return texts


def _launches(command: Command, values: dict[str, str], script: BatchScript) -> Iterator[Launch]:
    words = _words(command.words, values)
    if not words:
        return
    name = words[0].rsplit("/", 1)[-1]
    if name in _NOT_RUN:
        return
    starter, starter_options = None, dict[str, str | None]()
    if name in STARTERS:
        starter = name
        starter_options, words = _split_options(words[1:], SRUN_VALUED, SRUN_SHORT)
    raw = "\n".join(script.lines[command.line - 1 : command.end_line])
    shell = _shell_text(words)
    if shell is not None:
        for inner in split_commands(shell):
            for launch in _launches(inner, values, script):
                yield Launch(
                    command.line, command.end_line, launch.starter or starter,
                    launch.starter_options or starter_options, launch.launcher, launch.module,
                    launch.options, launch.program, launch.before, raw, command.in_background,
                )  # fmt: skip
        return
    found = _find_launcher(words)
    if found is None:
        if starter is not None:
            yield Launch(command.line, command.end_line, starter, starter_options, "other", None, {},
                         tuple(words), (), raw, command.in_background)  # fmt: skip
        return
    index, launcher, module, rest = found
    options, program = _launcher_options(launcher, rest)
    if not program and module is None:
        return  # a word such as a `case` label, not a command
    yield Launch(
        command.line, command.end_line, starter, starter_options, launcher, module, options,
        tuple(program), tuple(words[:index]), raw, command.in_background,
    )  # fmt: skip


def _shell_text(words: list[str]) -> str | None:
    """Return the text after `bash -c`, wherever it stands."""
    for index, word in enumerate(words[:-2]):
        if word.rsplit("/", 1)[-1] in ("bash", "sh") and re.fullmatch(
            r"-l?c|-cl|-xc|-ec", words[index + 1]
        ):
            return words[index + 2].replace('\\"', '"').replace("\\$", "$")
    return None


def _find_launcher(words: list[str]) -> tuple[int, str, str | None, list[str]] | None:
    """Return where the launcher stands behind containers and other wrappers."""
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        name = "python" if re.fullmatch(r"python3?(\.\d+)?", name) else name
        if name not in _LAUNCHERS:
            continue
        rest = words[index + 1 :]
        launcher = _LAUNCHERS[name]
        if launcher == "python":
            while rest and re.fullmatch(r"-[uOBEsSIv]+", rest[0]):
                rest = rest[1:]
            if rest[:1] == ["-m"] and len(rest) > 1:
                module = rest[1]
                return index, _MODULES.get(module, "python"), module, rest[2:]
            if rest[:1] and rest[0].startswith("-c"):
                continue
        elif launcher == "accelerate":
            if rest[:1] != ["launch"]:
                continue
            rest = rest[1:]
        return index, launcher, None, rest
    return None


def _split_options(
    words: list[str], valued: frozenset[str], short: dict[str, str]
) -> tuple[dict[str, str | None], list[str]]:
    """Split the options of srun off; what follows is the command."""
    options: dict[str, str | None] = {}
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            takes = name in valued
        elif re.match(r"-[A-Za-z]", word):
            name = short.get(word[1], word[1])
            value, equals = word[2:], "=" if len(word) > 2 else ""
            takes = name in valued
        else:
            break
        index += 1
        if not equals and takes and index < len(words):
            value, index = words[index], index + 1
        options[name] = value or None
    return options, words[index:]


def _launcher_options(launcher: str, words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Split a launcher's own options off; what follows is the script and its arguments."""
    options: dict[str, str | None] = {}
    if launcher == "python":
        return options, words
    index = 0
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "--":
            return options, words[index + 1 :]
        name, equals, value = words[index].lstrip("-").partition("=")
        name = name.replace("-", "_")
        index += 1
        follows = index < len(words) and not words[index].startswith("-")
        if not equals and name not in _FLAGS and follows and not words[index].endswith(".py"):
            value, index = words[index], index + 1
        options[name] = value or None
    return options, words[index:]
