"""The units people type and Slurm prints: times, memory sizes, counts.

Seconds and GiB inside; human forms only at the edges.
"""

from __future__ import annotations

import math
import re

from stoker.errors import UsageError

_SLURM_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)"
    r"|(?P<m>\d+):(?P<ms>\d+)"
    r"|(?P<minutes>\d+))$"
)
_HUMAN_TIME = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)\s*d(?:ays?)?)?\s*"
    r"(?:(?P<h>\d+(?:\.\d+)?)\s*h(?:ours?|rs?)?)?\s*"
    r"(?:(?P<m>\d+(?:\.\d+)?)\s*m(?:in(?:ute)?s?)?)?\s*"
    r"(?:(?P<s>\d+(?:\.\d+)?)\s*s(?:ec(?:ond)?s?)?)?$"
)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)i?B?$", re.IGNORECASE)
_GIB_PER_UNIT = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}

DAY_S = 86_400
GIB_PER_GB = 1e9 / 2**30
# A measured number below this says no more than that it is small.
SMALLEST_SHOWN = 0.001


def parse_slurm_time(text: str) -> int | None:
    """Read a time as Slurm does and return seconds; `None` if Slurm would refuse it.

    >>> parse_slurm_time("2-03:00:00"), parse_slurm_time("90"), parse_slurm_time("1h")
    (183600, 5400, None)
    """
    match = _SLURM_TIME.match(text.strip())
    if not match:
        return None
    part = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    if "minutes" in part:
        return part["minutes"] * 60
    if "m" in part:
        return part["m"] * 60 + part["ms"]
    if "h" in part:
        return part["h"] * 3600 + part["hm"] * 60 + part["hs"]
    return part["days"] * DAY_S + part["dh"] * 3600 + part.get("dm", 0) * 60 + part.get("ds", 0)


def parse_time(text: str) -> int:
    """Read a time as people or Slurm write it and return seconds.

    >>> parse_time("1h"), parse_time("1d12h"), parse_time("90m"), parse_time("36:00:00")
    (3600, 129600, 5400, 129600)
    """
    seconds = parse_slurm_time(text)
    match = _HUMAN_TIME.match(text.strip().lower()) if seconds is None else None
    if match and any(match.groupdict().values()):
        part = {name: float(value or 0) for name, value in match.groupdict().items()}
        seconds = round(part["d"] * DAY_S + part["h"] * 3600 + part["m"] * 60 + part["s"])
    if not seconds:
        raise UsageError(
            f"`{text}` is not a time",
            why="a time is a number with d, h, m or s, or one of Slurm's forms",
            fix="write for example 90m, 36h, 1d12h, 12:00:00 or 2-00:00:00",
        )
    return seconds


def render_time(seconds: int) -> str:
    """Write a time as Slurm reads it.

    >>> render_time(3600), render_time(183600)
    ('01:00:00', '2-03:00:00')
    """
    days, rest = divmod(seconds, DAY_S)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def render_hours(seconds: int) -> str:
    """Write a time for people, in hours or minutes.

    >>> render_hours(129600), render_hours(900)
    ('36 h', '15 min')
    """
    if seconds < 3600 or seconds % 60:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h"


def parse_gib(text: str) -> float:
    """Read a size and return GiB; Slurm's `G` is 2^30 bytes, and so is ours.

    >>> parse_gib("64G"), parse_gib("512M"), parse_gib("1.5T")
    (64.0, 0.5, 1536.0)
    """
    match = _SIZE.match(text.strip())
    if not match or not match["unit"]:
        raise UsageError(
            f"`{text}` is not a size",
            why="a size is a number with a unit: K, M, G or T (powers of 1024, as in Slurm)",
            fix="write for example 64G or 1.5T",
        )
    return float(match["number"]) * _GIB_PER_UNIT[match["unit"].upper()]


def parse_memory(text: str) -> float:
    """Read a memory size of at least one MiB, in GiB; 0 would mean the whole node to Slurm."""
    gib = parse_gib(text)
    if gib < 1 / 1024:
        raise UsageError(
            f"`{text}` is no memory", why="it is below 1 MiB", fix="write for example 64G"
        )
    return gib


def parse_count(text: str) -> int:
    """Read a whole number that is not negative."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(
            f"`{text}` is not a whole number", why="it counts something", fix="write for example 4"
        )
    return int(text)


def parse_positive(text: str) -> int:
    """Read a whole number above zero."""
    number = parse_count(text)
    if number == 0:
        raise UsageError("0 is too few", why="it must be at least 1", fix="write for example 1")
    return number


def parse_name(text: str) -> str:
    """Read a name: not empty, one line."""
    if not text.strip() or re.search(r"[\n\r\0]", text):
        raise UsageError(
            f"`{text}` is not a name", why="it is empty or has a line break", fix="give a name"
        )
    return text


def parse_slurm_mem(text: str) -> float | None:
    """Read a `--mem` value as Slurm does (no unit means MiB); `None` if Slurm would refuse it.

    >>> parse_slurm_mem("64G"), parse_slurm_mem("2048"), parse_slurm_mem("1.5G")
    (64.0, 2.0, None)
    """
    match = re.fullmatch(r"([0-9]+)([KMGTP]?)B?", text.strip(), re.IGNORECASE)
    return float(match[1]) * _GIB_PER_UNIT[match[2].upper() or "M"] if match else None


def render_mem(gib: float) -> str:
    """Write GiB as Slurm reads it, in the largest unit that keeps it whole.

    >>> render_mem(64.0), render_mem(17.5)
    ('64G', '17920M')
    """
    return f"{gib:.0f}G" if gib == int(gib) else f"{int(gib * 1024)}M"


def plural(count: float, noun: str, many: str | None = None) -> str:
    """Write a count with its noun.

    >>> plural(1, "node"), plural(2, "process", "processes"), plural(1234567, "step")
    ('1 node', '2 processes', '1,234,567 steps')
    """
    number = f"{count:,.0f}" if count == int(count) else f"{count:g}"
    return f"{number} {noun if count == 1 else many or noun + 's'}"


def render_part(part: float, whole: float) -> str:
    """Write a part of a duration, in the unit that suits the whole.

    >>> render_part(0.0004, 0.012)
    '0.4 ms'
    """
    if whole < 1e-3:
        return f"{render_number(part * 1e6)} µs"
    return f"{render_number(part * 1e3)} ms" if whole < 1 else f"{render_number(part)} s"


def render_share(share: float) -> str:
    """Write a share as percent.

    >>> render_share(0.624), render_share(0.004), render_share(1e-5)
    ('62 %', '0.4 %', '<0.1 %')
    """
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.00995 else f"{100 * share:.0f} %"


def render_seconds(seconds: float) -> str:
    """Write a duration for people.

    >>> render_seconds(0.0312), render_seconds(4.25), render_seconds(380), render_seconds(2e-5)
    ('31 ms', '4.2 s', '00:06:20', '20 µs')
    """
    if not math.isfinite(seconds):
        return "unknown"
    return render_time(round(seconds)) if seconds >= 120 else render_part(seconds, seconds)


def render_number(value: float) -> str:
    """Write a measured number with the digits that mean something.

    >>> render_number(412.3), render_number(3.14159), render_number(0.0312), render_number(5e-5)
    ('412', '3.1', '0.031', '<0.001')
    """
    if 0 < value < SMALLEST_SHOWN:
        return f"<{SMALLEST_SHOWN:g}"
    if abs(value) >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 0.95 else f"{value:.2g}"


def printable(text: str) -> str:
    """Return text without what a terminal would take for a command."""
    return "".join(each if each.isprintable() else " " for each in text)
