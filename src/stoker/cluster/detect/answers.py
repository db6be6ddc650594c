"""Read what Slurm's commands print: settings, partitions, nodes, resources and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.units import parse_slurm_mem, parse_slurm_time

# What Slurm writes where there is no value.
EMPTY = ("", "(null)", "N/A", "n/a", "none", "NONE", "UNLIMITED", "INFINITE", "(null type)")
# A list of hosts that names more than this is damaged.
MAX_HOSTS = 200_000

_SETTING = re.compile(r"^(\S+)\s*=\s?(.*)$")
_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=")
_SUFFIX = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True)
class Gres:
    """One generic resource of a node: `gpu:a100:4(S:0-1)`."""

    name: str
    type: str | None
    count: int


def read_settings(output: str) -> dict[str, str]:
    """Read `scontrol show config`.

    >>> read_settings("ClusterName             = mini\\nGresTypes = gpu,nvme\\n")["ClusterName"]
    'mini'
    """
    matches = filter(None, map(_SETTING.match, output.splitlines()))
    return {match[1]: match[2].strip() for match in matches}


def read_records(output: str) -> list[dict[str, str]]:
    """Read `scontrol show -o`: a record a line, `Key=value`, values may hold spaces and `=`.

    >>> read_records("NodeName=a OS=Linux 6.1 #1 CfgTRES=cpu=4,mem=1G\\n")
    [{'NodeName': 'a', 'OS': 'Linux 6.1 #1', 'CfgTRES': 'cpu=4,mem=1G'}]
    """
    records = []
    for line in output.splitlines():
        keys = list(_KEY.finditer(line))
        ends = [key.start() for key in keys[1:]] + [len(line)]
        record: dict[str, str] = {}
        for key, end in zip(keys, ends, strict=False):
            # Free text such as a reason comes late and may look like a key: the first one holds.
            record.setdefault(key[1], line[key.end() : end].strip())
        if record:
            records.append(record)
    return records


def known(value: str | None) -> str | None:
    """Return a value, or `None` where Slurm says that there is none."""
    return None if value is None or value.strip() in EMPTY else value.strip()


def read_int(value: str | None) -> int | None:
    """Return the number that a value begins with: `190000+` is at least 190000.

    >>> read_int("40+"), read_int("UNLIMITED")
    (40, None)
    """
    match = re.match(r"\d{1,15}", value or "")
    return int(match[0]) if match else None


def read_time(value: str | None) -> int | None:
    """Return a time limit in seconds; `None` where there is no limit."""
    return parse_slurm_time(value) if known(value) and value else None


def split_list(text: str) -> list[str]:
    """Split at the commas that stand outside of brackets.

    >>> split_list("gpu:a100:4(S:0,2),nvme:3600")
    ['gpu:a100:4(S:0,2)', 'nvme:3600']
    """
    parts, depth, start = [], 0, 0
    for index, each in enumerate(text):
        depth += (each in "([") - (each in ")]")
        if each == "," and depth <= 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in (*parts, text[start:]) if part]


def read_gres(text: str | None) -> tuple[Gres, ...]:
    """Read the resources of a node.

    >>> read_gres("gpu:a100:4(S:0-1),nvme:3600")
    (Gres(name='gpu', type='a100', count=4), Gres(name='nvme', type=None, count=3600))
    """
    found = []
    for part in split_list(known(text) or ""):
        words = [word for word in re.sub(r"\(.*", "", part).split(":") if word != "no_consume"]
        count = _count(words[-1]) if len(words) > 1 else 1
        if count is None:
            # A type without a number is one of it.
            words, count = [*words, "1"], 1
        kind = ":".join(words[1:-1]) if len(words) > 2 else None
        if words[0]:
            found.append(Gres(words[0], kind or None, count))
    return tuple(found)


def _count(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,15})([KMGTP]?)B?", text, re.IGNORECASE)
    return int(match[1]) * _SUFFIX[match[2].upper()] if match else None


def read_limits(text: str | None) -> dict[str, float]:
    """Read limits of trackable resources; memory in GiB.

    >>> read_limits("cpu=40,gres/gpu=8,mem=1T")
    {'cpu': 40.0, 'gres/gpu': 8.0, 'mem': 1024.0}
    """
    limits = {}
    for part in (known(text) or "").split(","):
        name, _, value = part.partition("=")
        if name == "mem":
            number = parse_slurm_mem(value)
        else:
            number = float(value) if re.fullmatch(r"\d{1,15}", value) else None
        if number is not None:
            limits[name] = number
    return limits


def hosts(text: str) -> Iterator[str]:
    """Yield the names that a list of Slurm's stands for.

    >>> list(hosts("login,r[1-2]g[08-09]"))
    ['login', 'r1g08', 'r1g09', 'r2g08', 'r2g09']
    """
    count = 0
    for part in split_list(text):
        for name in _expand(part):
            count += 1
            if count > MAX_HOSTS:
                return
            yield name


def _expand(text: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)$", text)
    if not match:
        yield text
        return
    for part in match[2].split(","):
        low, _, high = part.partition("-")
        if not (low.isascii() and low.isdigit() and (not high or high.isdigit())):
            continue
        for number in range(int(low), int(high or low) + 1):
            for rest in _expand(match[3]):
                yield f"{match[1]}{number:0{len(low)}d}{rest}"
