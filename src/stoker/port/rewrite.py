"""Port one script: read it, judge it, rewrite it, and look at what came out."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass, field

from stoker.errors import ScriptError
from stoker.port import accelerate, ddp, deepspeed, fsdp, horovod
from stoker.port.common import Port
from stoker.port.edits import Edits, UnreachableError, apply_edits
from stoker.port.judge import Refusal, judge
from stoker.port.prelude import (
    HOROVOD_RANKS,
    HOROVOD_START,
    MARK,
    RANKS,
    SEED,
    START,
    write_prelude,
)
from stoker.port.script import Script
from stoker.port.training import Training

_MODULES = {
    "ddp": ddp,
    "fsdp": fsdp,
    "deepspeed": deepspeed,
    "horovod": horovod,
    "accelerate": accelerate,
}
TARGETS = tuple(_MODULES)


@dataclass(frozen=True)
class Ported:
    """The new text of a script, or why there is none."""

    name: str
    target: str
    before: str
    after: str
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    is_old: bool = field(default=False)

    @property
    def diff(self) -> str:
        """The change as `patch` reads it."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.name}",
            f"b/{self.name}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
                       for line in lines)  # fmt: skip


def port_script(text: str, target: str, name: str = "train.py") -> Ported:
    """Return the ported script; one that cannot be ported safely comes back with refusals."""
    if MARK.split("{")[0] in text:
        return Ported(name, target, text, text, is_old=True)
    script = _read(text, name)
    training = Training(script)
    refusals = judge(training, target)
    if refusals:
        return Ported(name, target, text, text, tuple(refusals))
    port = Port(script, training, Edits(text.splitlines()))
    try:
        after = _rewrite(port, target)
    except UnreachableError as error:
        return Ported(name, target, text, text, (_unreachable(error.line),))
    _verify(after, name)
    return Ported(name, target, text, after, (), tuple(port.notes))


def _read(text: str, name: str) -> Script:
    try:
        return Script(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}:{line}" if line else name
        raise ScriptError(
            f"`{where}` cannot be read as Python", why=str(error), fix="run it with python first"
        ) from None


def _unreachable(line: int) -> Refusal:
    return Refusal(line, "this line cannot be rewritten by itself",
                   "several statements share it, or it is written in a way that was not foreseen",
                   "put each statement on a line of its own")  # fmt: skip


def _rewrite(port: Port, target: str) -> str:
    module = _MODULES[target]
    module.rewrite(port)
    imports = {"import atexit", "import datetime", "import os", "import subprocess", "import torch",
               "import torch.distributed", *module.IMPORTS}  # fmt: skip
    if target == "horovod":
        imports -= {"import datetime", "import subprocess", "import torch.distributed"}
    if any("contextlib" in header for _, header in port.edits.blocks.values()):
        imports.add("import contextlib")
    start = HOROVOD_START if target == "horovod" else START
    start = start.replace("{seed}", _seed(port))
    if target == "accelerate":
        has_unused = "accelerate-unused" in port.helpers
        start = accelerate.add_start(start, has_unused=has_unused)
        if has_unused:
            imports.add("from accelerate.utils import DistributedDataParallelKwargs")
    ranks = HOROVOD_RANKS if target == "horovod" else RANKS
    body = apply_edits(port.script.text, _with_start(port))
    return _insert(body, write_prelude(target, port.helpers, start, imports, ranks))


def _seed(port: Port) -> str:
    """Return the lines that give all ranks one seed: for what the script does not seed itself."""
    script = port.script
    others = ""
    if "random" in script.imports.values() and not any(script.calls("random.seed")):
        others += "        random.seed(seed)\n"
    numpy = next((name for name, full in script.imports.items() if full == "numpy"), "")
    if numpy and not any(script.calls("numpy.random.seed")):
        others += f"        {numpy}.random.seed(seed)\n"
    return SEED.replace("{others}", others)


def _with_start(port: Port) -> Edits:
    """Have the ranks meet where the program starts, and loggers speak on the first only."""
    tree = port.script.tree
    entry = next((each for each in tree.body if ddp.is_entry(each)), None)
    text = "start_processes()"
    if "logging" in port.script.imports.values():
        text_log = "logging.disable(logging.CRITICAL if RANK else logging.NOTSET)"
    else:
        text_log = ""
    first = entry.body[0] if isinstance(entry, ast.If) and _is_idle(port) else None
    if first is None:
        first = next(each for each in tree.body if not _is_head(each) and not _is_definition(each))
    port.edits.before.setdefault(port.edits.place(first), []).insert(0, text)
    if text_log:
        port.edits.before[port.edits.place(first)].insert(1, text_log)
    return port.edits


def _is_idle(port: Port) -> bool:
    """Whether nothing of the training happens outside of functions and the main block."""
    for each in port.script.tree.body:
        if _is_head(each) or ddp.is_entry(each):
            continue
        if _is_definition(each):
            continue
        if any(isinstance(node, ast.Call) for node in ast.walk(each)):
            return False
    return True


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _is_head(node: ast.stmt) -> bool:
    """Whether a statement belongs to the imports at the top."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Try) and all(
        isinstance(each, ast.Import | ast.ImportFrom) for each in node.body
    )


def _insert(text: str, prelude: str) -> str:
    """Return the text with the prelude below its imports."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    at = 0
    for each in tree.body:
        if not _is_head(each):
            break
        at = each.end_lineno or 0
    if at == 0:  # a comment or a shebang stays at the top
        while at < len(lines) and lines[at].startswith("#"):
            at += 1
    rest = "".join(lines[at:]).lstrip("\n")
    return "".join(lines[:at]) + "\n" + prelude + "\n\n" + rest


def _verify(text: str, name: str) -> None:
    try:
        compile(text, name, "exec")
    except SyntaxError as error:
        raise AssertionError(f"the port of {name} is not Python: {error}") from error
