"""What a machine has and what a folder holds, as text for people and as facts for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stoker.advise.equipment import Item
from stoker.data.survey.race import Race
from stoker.data.survey.survey import Survey
from stoker.errors import StokerError
from stoker.report.table import render_bar, render_table
from stoker.units import plural, printable, render_number, render_share

FORMAT = 1


# -- the machine


def render_items(items: Iterable[Item]) -> str:
    """Return one line for each thing."""
    rows = []
    for each in items:
        more = f"; fix: {each.fix}" if each.fix else ""
        state = "ok" if each.is_there else "missing"
        rows.append((state, each.name, printable(each.what + more)))
    return render_table(rows)


def items_json(items: Iterable[Item]) -> dict[str, Any]:
    """Return the same for programs."""
    return {"format": FORMAT, "items": [each._asdict() for each in items]}


# -- a folder


def render_survey(found: Survey, raced: Race | StokerError | None) -> str:
    """Return what is in a folder, and what packing would bring."""
    rows = [
        ("files", _files(found)),
        ("sizes", f"{render_size(found.mean_size)} on average{_asked(found)}"),
        ("on", f"{found.file_system}, {render_size(found.free_bytes)} free"),
        *([("quota", _quota(found))] if found.quota else []),
        ("packed", _packed(found)),
        *([("reading", _raced(raced))] if raced else []),
        *(("note", each) for each in _notes(found, raced)),
    ]
    lines = [show(str(found.path)), render_table([(name, show(text)) for name, text in rows]), ""]
    return "\n".join([*lines, *_histogram(found)])


def survey_json(found: Survey, raced: Race | StokerError | None) -> dict[str, Any]:
    """Return the same for programs."""
    told: dict[str, Any] = {
        "format": FORMAT, "path": show(str(found.path)), "file_system": found.file_system,
        "files": found.files, "expected_files": found.expected_files, "is_whole": found.is_whole,
        "folders": found.folders, "bytes": found.bytes, "is_exact": found.is_exact,
        "mean_size": round(found.mean_size), "classes": found.classes,
        "histogram": [{"below": end, "share": share} for end, share in found.histogram()],
        "hidden": found.hidden, "broken_links": found.broken_links,
        "unreadable_folders": len(found.unreadable), "free_bytes": found.free_bytes,
        "quota": found.quota and found.quota._asdict(), "is_packed": found.is_packed,
        "is_worth": found.is_worth, "shards": found.shards, "shard_bytes": found.shard_bytes,
        "packed_bytes": found.packed_bytes, "next": next_command(found),
    }  # fmt: skip
    if isinstance(raced, Race):
        told["reading"] = {
            "files": raced.files, "bytes": raced.bytes, "is_cold": raced.is_cold,
            "files_per_s": list(raced.plain), "packed_per_s": list(raced.packed),
            "gain": [min(raced.gains), max(raced.gains)],
        }  # fmt: skip
    return told


def next_command(found: Survey) -> str:
    """Return what to type next."""
    place = found.path
    here = shlex.quote(show(str(place)))
    if found.is_packed:
        return f"stoker verify {here}"
    if found.is_unfinished:
        return f"stoker pack SRC {here}, as it was begun: it goes on where it was"
    if found.has_archives:
        return f"stoker index {here}"
    if not found.is_worth:
        return f"stoker submit --data {here} …, to read it from the local disk of each node"
    size = found.shard_bytes >> 30
    option = f" --shard-size {size}G" if size != 1 else ""
    has_room = found.packed_bytes <= found.free_bytes
    out = shlex.quote(show(str(_out(place)))) if has_room else "OUT"
    return f"stoker pack {here} {out}{option}"


def _out(place: Path) -> Path:
    home = place.resolve() if place.name in ("", "..") else place
    return home.parent / f"{home.name or 'data'}-packed"


def _files(found: Survey) -> str:
    if found.is_whole:
        about = "" if found.is_exact else "about "
        where = plural(found.folders, "folder")
        return f"{found.files:,} in {where}, {about}{render_size(found.bytes)}"
    guess = ""
    if found.expected_files > found.files:
        guess = f", perhaps {found.expected_files:,}, about {render_size(found.bytes)}"
    return f"at least {found.files:,}{guess}: not all were counted (--limit)"


def _asked(found: Survey) -> str:
    if found.is_exact:
        return ""
    return f", of {len(found.sizes):,} drawn by chance"


def _quota(found: Survey) -> str:
    assert found.quota
    files, limit, source = found.quota
    return f"{files:,} files of {limit:,} ({render_share(files / max(1, limit))}), says {source}"


def _packed(found: Survey) -> str:
    if found.is_packed:
        return "it is packed already"
    if found.is_unfinished:
        return "packing was interrupted: these are not all of the samples"
    if found.has_archives:
        return "these are archives: with an index, stoker.open reads them as they are"
    what = f"{plural(found.shards, 'file')} and an index, about {render_size(found.packed_bytes)}"
    return what if found.is_worth else f"{what}; these are not many small files"


def _raced(raced: Race | StokerError) -> str:
    if isinstance(raced, StokerError):
        return f"not measured: {raced.what}; {raced.why}"
    low, high = min(raced.gains), max(raced.gains)
    state = {True: "cold", False: "warm, from memory", None: "cold or not: it does not tell"}
    times = f"{render_number(low)} to {render_number(high)} times as fast"
    return (
        f"packed {times} ({state[raced.is_cold]}): {_speed(raced.plain)} files/s as they are, "
        f"{_speed(raced.packed)} packed; {raced.files:,} files, one thread, "
        f"{plural(len(raced.plain), 'round')}"
    )


def _speed(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}"


def _notes(found: Survey, raced: Race | StokerError | None) -> list[str]:
    notes = []
    if found.unreadable:
        count = plural(len(found.unreadable), "folder")
        notes.append(f"{count} cannot be read, `{found.unreadable[0]}` first: packing stops there")
    if found.broken_links:
        count = plural(found.broken_links, "link")
        notes.append(f"{count} to nothing: packing stops at the first")
    if found.hidden:
        count = plural(found.hidden, "entry", "entries")
        notes.append(f"{count} left out: hidden, devices or pipes")
    if isinstance(raced, Race) and raced.unreadable:
        count = plural(len(raced.unreadable), "file")
        notes.append(f"{count} cannot be read: {raced.unreadable[0]}")
    if not found.is_packed and found.packed_bytes > found.free_bytes:
        notes.append("there is no room for a packed copy here: OUT must be on another disk")
    return notes


def _histogram(found: Survey) -> list[str]:
    rows = []
    for end, share in found.histogram():
        name = f"below {render_size(end)}" if end else "larger"
        rows.append((name, f"{render_share(share):>6}", f"|{render_bar(share, 30)}|"))
    return [line.rstrip("| ") for line in render_table(rows).splitlines()]


def render_size(size: float) -> str:
    """Write bytes for people, in powers of 1024.

    >>> render_size(106_000), render_size(1 << 30), render_size(12)
    ('104 KiB', '1 GiB', '12 bytes')
    """
    for unit, one in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= one:
            return f"{render_number(size / one).removesuffix('.0')} {unit}"
    return plural(round(size), "byte")


def show(text: str) -> str:
    """Return a text with a name in it that any terminal can print."""
    return printable(text.encode("utf-8", "backslashreplace").decode())
