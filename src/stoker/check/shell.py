"""Split a shell script into commands and words, as far as that can be done without a shell.

Unknown constructs are skipped. Nothing here raises, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
      (?P<join>\\\r?\n)
    | (?P<newline>\r?\n)
    | (?P<space>[ \t\f\v\r]+)
    | (?P<comment>\#[^\n]*)
    | (?P<heredoc><<-?[ \t]*(?P<quote>["']?)(?P<tag>[A-Za-z_][A-Za-z0-9_]*)(?P=quote))
    | (?P<herestring><<<)
    | (?P<redirect>[0-9]*(?:&>>?|>>|>\||>&|<&|<>|>|<))
    | (?P<separator>&&|\|\||;;|\|&|[;|&])
    | (?P<paren>[()])
    | (?P<single>\$?'[^']*')
    | (?P<double>"(?:\\.|\$\((?:[^()]|\([^()]*\))*\)|\$(?!\()|[^"\\$])*")
    | (?P<substitution>\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`)
    | (?P<escaped>\\.)
    | (?P<parameter>\$\{[^}\n]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\$[0-9@*\#?$!-])
    | (?P<plain>[^\s\\'"`$#;&|()<>]+|\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_KEYWORDS = frozenset(
    ["if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "in", "!", "{", "}",
     "time", "exec", "command", "nohup", "eval", "builtin", "[[", "]]"]
)  # fmt: skip
_DECLARERS = frozenset(["export", "declare", "local", "readonly", "typeset"])


@dataclass(frozen=True)
class Word:
    """One shell word: as written, and with its quotes taken off (variables stay)."""

    raw: str
    text: str
    is_single: bool = False


@dataclass(frozen=True)
class Assignment:
    """`NAME=value`, with or without export."""

    line: int
    name: str
    value: str
    raw: str


@dataclass(frozen=True)
class Command:
    """One simple command with the variables set before it."""

    line: int
    end_line: int
    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    in_background: bool = False

    @property
    def texts(self) -> list[str]:
        """The words without their quotes."""
        return [word.text for word in self.words]

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return self.words[0].text.rsplit("/", 1)[-1] if self.words else ""


@dataclass
class _State:
    line: int
    start: int = 0
    parts: list[tuple[str, str]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    skip_next: bool = False
    tags: list[str] = field(default_factory=list)


def split_commands(text: str, first_line: int = 1) -> Iterator[Command]:
    """Yield the simple commands of a script in order."""
    state = _State(first_line, first_line)
    position, size = 0, len(text)
    while position < size:
        match = _TOKEN.match(text, position)
        if match is None:  # cannot happen: the last alternative takes anything
            break
        kind, token = match.lastgroup or "", match.group()
        if kind in ("tag", "quote"):
            kind = "heredoc"
        position = match.end()
        if kind == "newline":
            yield from _end(state, token)
            state.line += 1
            for tag in state.tags:
                position, passed = _skip_heredoc(text, position, tag)
                state.line += passed
            state.tags = []
            continue
        yield from _take(state, kind, token, match)
        state.line += token.count("\n")
    yield from _end(state, "")


def _take(state: _State, kind: str, token: str, match: re.Match[str]) -> Iterator[Command]:
    if kind in ("space", "join"):
        _close_word(state)
    elif kind == "comment":
        if state.parts:
            # `a#b` is a word; give the rest of the line back as plain text.
            state.parts.append(("plain", token.split(" ", 1)[0]))
    elif kind == "heredoc":
        _close_word(state)
        state.tags.append(match["tag"])
    elif kind in ("redirect", "herestring"):
        if state.parts and "".join(part for _, part in state.parts).isdigit():
            state.parts = []
        _close_word(state)
        state.skip_next = True
    elif kind in ("separator", "paren"):
        yield from _end(state, token)
    else:
        if not state.parts and not state.words:
            state.start = state.line
        state.parts.append((kind, token))


def _close_word(state: _State) -> None:
    if not state.parts:
        return
    raw = "".join(token for _, token in state.parts)
    text = "".join(_unquote(kind, token) for kind, token in state.parts)
    single = any(kind == "single" for kind, _ in state.parts)
    state.parts = []
    if state.skip_next:
        state.skip_next = False
        return
    state.words.append(Word(raw, text, single))


def _unquote(kind: str, token: str) -> str:
    if kind == "single":
        return token[2:-1] if token.startswith("$") else token[1:-1]
    if kind == "double":
        return token[1:-1]
    if kind == "escaped":
        return token[1:]
    return token


def _end(state: _State, separator: str) -> Iterator[Command]:
    _close_word(state)
    state.skip_next = False
    words = state.words
    state.words = []
    start = state.start
    assignments: list[Assignment] = []
    while words:
        first = words[0]
        match = _ASSIGNMENT.fullmatch(first.text)
        is_set = match is not None and _ASSIGNMENT.match(first.raw) is not None
        if match is not None and is_set:
            value = _ASSIGNMENT.fullmatch(first.raw)
            raw = value[2] if value else match[2]
            assignments.append(Assignment(start, match[1], match[2], raw))
        elif first.text not in _KEYWORDS and first.text not in _DECLARERS:
            break
        words = words[1:]
    if words or assignments:
        yield Command(start, state.line, tuple(words), tuple(assignments), separator == "&")


def _skip_heredoc(text: str, position: int, tag: str) -> tuple[int, int]:
    """Return where a here-document ends, and how many lines it had."""
    end = re.compile(rf"^\t*{re.escape(tag)}\r?$", re.MULTILINE).search(text, position)
    if end is None:
        return len(text), text.count("\n", position)
    stop = text.find("\n", end.end())
    stop = len(text) if stop < 0 else stop + 1
    return stop, text.count("\n", position, stop)
