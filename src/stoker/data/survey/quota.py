"""How many more files a person may have on a file system: asked of `lfs quota`, of `quota`, of the disk."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from stoker.data.mounts import mount_of

# A server that is away must not keep anybody waiting.
ANSWER_S = 5.0


class Quota(NamedTuple):
    """Files that are there, and how many may be; who says so."""

    files: int
    limit: int
    source: str


def read_quota(path: Path, kind: str) -> Quota | None:
    """Return the tightest limit on the number of files; `None` where none is known."""
    found = _lustre(path) if kind == "lustre" else _others(path)
    if not found:
        found = _disk(path)
    return min(found, key=lambda each: each.limit - each.files, default=None)


def _lustre(path: Path) -> list[Quota]:
    questions = [["-u", _person()], ["-g", str(os.getgid())]]
    project = _answer(["lfs", "project", "-d", str(path)]).split()
    if project and project[0].isdecimal() and project[0] != "0":
        questions.append(["-p", project[0]])
    found = []
    for who in questions:
        words = ["lfs", "quota", "-q", *who, str(path)]
        limits = parse_quota(_answer(words))
        found += [Quota(*each, " ".join(words[:4])) for each in limits.values()]
    return found


def _others(path: Path) -> list[Quota]:
    limits = parse_quota(_answer(["quota", "-w"]))
    mount = mount_of(path)
    return [
        Quota(*each, "quota")
        for name, each in limits.items()
        if mount is not None and name == mount.device
    ]


def _disk(path: Path) -> list[Quota]:
    found = os.statvfs(path)
    # Some file systems have as many as there is room for, and say 0.
    if not found.f_files:
        return []
    return [Quota(found.f_files - found.f_favail, found.f_files, "df -i")]


def parse_quota(text: str) -> dict[str, tuple[int, int]]:
    """Return files and their limit by file system, where there is one.

    Both commands print a file system, then blocks, quota, limit and grace, then the same of
    files. `lfs` puts a long name on a line of its own. A star marks what is exceeded.

    >>> parse_quota("/scratch\\n  812 0 0 - 400123* 400000 500000 6d\\n")
    {'/scratch': (400123, 500000)}
    """
    found, words = {}, text.split()
    for at, name in enumerate(words):
        if "/" not in name:
            continue
        row = takewhile(lambda word: "/" not in word, words[at + 1 : at + 9])
        # Without a time of grace, `quota` leaves its place empty.
        plain = (each.strip("[]*") for each in row)
        numbers = [int(each) for each in plain if re.fullmatch("[0-9]{1,18}", each)]
        if len(numbers) == 6 and (limit := numbers[5] or numbers[4]):
            found[name] = (numbers[3], limit)
    return found


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _answer(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
