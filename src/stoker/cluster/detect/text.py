"""Write a detected cluster as TOML: what is known as facts, the rest as comments."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.units import printable


def render_toml(
    path: Sequence[str], table: Mapping[str, Any], comments: Mapping[tuple[str, ...], Sequence[str]]
) -> str:
    """Return a table and those inside it; the comments stand at the end of the table they belong to.

    >>> print(render_toml(["cluster", "my-box"], {"title": "x"}, {("cluster", "my-box"): ["y"]}), end="")
    [cluster.my-box]
    title = "x"
    # y
    """
    return "\n".join(_blocks(tuple(path), table, comments))


def _blocks(
    path: tuple[str, ...],
    table: Mapping[str, Any],
    comments: Mapping[tuple[str, ...], Sequence[str]],
) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    facts = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in inner]
    facts += [f"# {printable(line)}" for line in comments.get(path, ())]
    if facts:
        yield "\n".join([f"[{'.'.join(map(_key, path))}]", *facts, ""])
    for key, value in inner.items():
        yield from _blocks((*path, key), value, comments)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _string(text: str) -> str:
    if "\\" in text and "'" not in text and text.isprintable():
        # A pattern reads better without doubled backslashes.
        return f"'{text}'"
    return json.dumps(printable(text), ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
