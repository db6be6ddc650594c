"""Text into shell words and #SBATCH values, so that every byte survives."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAFE = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*\Z")
# Control characters, bytes that are not UTF-8 (surrogates), and characters that look like
# quotes or spaces: editors and ShellCheck trip over them, so they are written as bytes.
_ODD = re.compile(
    "[\x00-\x1f\x7f-\xa0\u2000-\u200f\u2018-\u201f\u2028-\u202f\u2060\ufeff\ud800-\udfff]"
)
_NEEDS_BACKSLASH = re.compile(r'([\\"$`])')
_NAMED_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}
_SAFE_DIRECTIVE = re.compile(r"[\w@%+=:,./\[\]<>&|*-]+\Z", re.ASCII)

LINE_WIDTH = 96


def quote(text: str) -> str:
    r"""Return one shell word that bash reads back as `text`.

    >>> print(quote("train.py"), quote("two words"), quote("$(date)"), quote("a\nb"))
    train.py 'two words' "\$(date)" $'a\nb'
    """
    if _SAFE.match(text):
        return text
    if _ODD.search(text):
        return "$'" + "".join(_escape(character) for character in text) + "'"
    if text.startswith("~"):
        return "\\~" + (quote(text[1:]) if len(text) > 1 else "")
    if re.search(r"['\\$`]", text):
        return '"' + _NEEDS_BACKSLASH.sub(r"\\\1", text) + '"'
    return f"'{text}'"


def _escape(character: str) -> str:
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    if _ODD.match(character):
        return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    return character


def comment(text: str) -> str:
    """Return a comment line; whatever the text holds, it stays one line."""
    return "# " + re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]+", " ", text)


def quote_directive(value: str) -> str:
    r"""Return a #SBATCH value as sbatch's own parser reads it back.

    sbatch strips quotes, takes a backslash as an escape, and ends a line at `#`.

    >>> print(quote_directive("gpu:v100:4"), quote_directive("my job"))
    gpu:v100:4 "my job"
    """
    if _SAFE_DIRECTIVE.match(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def wrap(*groups: Iterable[str], indent: str = "    ") -> str:
    """Return one command; every group of words starts a line, and long lines are broken."""
    lines: list[str] = []
    for group in groups:
        line = ""
        for word in group:
            if line and len(line) + 1 + len(word) > LINE_WIDTH:
                lines.append(line)
                line = ""
            start = indent if lines else ""
            line = f"{line} {word}" if line else start + word
        if line:
            lines.append(line)
    return " \\\n".join(lines)
