"""What DeepSpeed needs before it starts: batch sizes that fit the ranks, and a compiler."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.errors import SpecError

# A file of JSON, or what a script says itself.
Config = str | dict[str, object]

_KEYWORDS = ("config", "config_params", "deepspeed")
_OPTIONS = ("--deepspeed_config", "--deepspeed-config", "--deepspeed", "--ds_config")
_TOTAL, _EACH = "train_batch_size", "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_COMPILERS = ("c++", "g++", "clang++")


def find_config(words: Sequence[str]) -> str | None:
    """Return the file of the configuration that a script is given.

    >>> find_config(["train.py", "--deepspeed_config=ds.json"])
    'ds.json'
    """
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in _OPTIONS and value.endswith(".json"):
            return value
    return None


def find_told(call: ast.Call, tree: ast.Module) -> Config | None:
    """Return the configuration that a call in a script names: a file, or a dictionary.

    >>> tree = ast.parse("c = {'train_batch_size': 8}\\ndeepspeed.initialize(config=c)")
    >>> find_told(tree.body[1].value, tree)
    {'train_batch_size': 8}
    """
    given = next((each.value for each in call.keywords if each.arg in _KEYWORDS), None)
    if isinstance(given, ast.Name):
        given = _assigned_once(given.id, tree)
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return given.value if given.value.endswith(".json") else None
    if not isinstance(given, ast.Dict):
        return None
    known: dict[str, object] = {}
    for key, value in zip(given.keys, given.values, strict=True):
        if not isinstance(key, ast.Constant):
            return None  # a dictionary taken from elsewhere may say anything
        with suppress(ValueError, TypeError):
            known[str(key.value)] = ast.literal_eval(value)
        # What is computed is not known here, but it is given.
        known.setdefault(str(key.value), "computed")
    return known


def _assigned_once(name: str, tree: ast.Module) -> ast.expr | None:
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
    ]
    return values[0] if len(values) == 1 else None


def check_config(config: Config, folder: Path, world: int, *, must_exist: bool = True) -> None:
    """Raise if DeepSpeed would refuse this configuration on so many ranks."""
    if not isinstance(config, str):
        _check_sizes(config, "the script", world)
        return
    path = folder / config
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        if not must_exist:
            return
        raise SpecError(
            f"there is no DeepSpeed configuration `{config}`",
            why="the script is given it",
            fix="check the path",
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(
            f"the DeepSpeed configuration `{config}` cannot be read",
            why=str(error),
            fix="it must be JSON",
        ) from None
    if isinstance(told, dict):
        _check_sizes(told, f"`{config}`", world)


def _check_sizes(told: Mapping[str, object], where: str, world: int) -> None:
    zero = told.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if stage not in (0, 1, 2, 3):
        raise SpecError(
            f"ZeRO stage {stage} in {where}", why="there are stages 0 to 3", fix="take one of them"
        )
    total, each, steps = (told.get(name) for name in (_TOTAL, _EACH, _STEPS))
    given = [value for value in (total, each, steps) if value is not None]
    # "auto", or computed: who fills it in knows the ranks.
    if not isinstance(total, int) or not all(isinstance(v, int) and v > 0 for v in given):
        return
    rest = world * (each if isinstance(each, int) else 1) * (steps if isinstance(steps, int) else 1)
    is_whole = isinstance(each, int) and isinstance(steps, int)
    if total == rest if is_whole else total % rest == 0:
        return
    fitting = rest if isinstance(each, int) else max(1, total // rest) * rest
    raise SpecError(
        f"{_TOTAL} {total} in {where} does not fit {world} ranks",
        why=f"it must be {_EACH} × {_STEPS} × ranks; the rest of it makes {rest}",
        fix=f"{_TOTAL}: {fitting}, or leave {_TOTAL} out",
    )


def refuse_without_compiler(environ: Mapping[str, str]) -> None:
    """Raise where DeepSpeed cannot build what it needs on CPUs."""
    from shutil import which

    names = (environ.get("CXX"), *_COMPILERS)
    if any(which(name, path=environ.get("PATH")) for name in names if name):
        return
    raise SpecError(
        "DeepSpeed without a C++ compiler",
        why="on CPUs it builds its communication when it first starts",
        fix="module load gcc, or install g++; CXX may name one",
    )
