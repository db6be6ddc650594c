"""A detected cluster as JSON, and what to know about it as talk."""

from __future__ import annotations

import datetime as dt
from typing import Any

from stoker.cluster.detect import Detected
from stoker.units import plural, printable

FORMAT = 1


def detected_json(found: Detected) -> dict[str, Any]:
    """Return a detected profile, what is unknown in it, and what a shipped one tells differently."""
    return {
        "format": FORMAT,
        "name": found.name,
        "shipped": found.shipped,
        "cluster": _plain(found.table),
        "unknown": [{"fact": each.fact, "why": each.why} for each in found.unknown],
        "differences": [
            {"fact": each.fact, "shipped": _plain(each.shipped), "here": _plain(each.here)}
            for each in found.differences
        ],
    }


def render_detected(found: Detected) -> str:
    """Return what was found in a line, what a shipped profile tells differently, what is unknown."""
    gpus, queues = len(found.table["gpu"]), len(found.table["partition"])
    lines = [f"{found.name}: {plural(gpus, 'kind')} of GPU, {plural(queues, 'queue')}"]
    if found.shipped:
        count = plural(len(found.differences), "fact") if found.differences else "no fact"
        verb = "differs" if len(found.differences) <= 1 else "differ"
        lines.append(
            f"a profile `{found.name}` comes with Stoker; {count} {verb}; the detected one is laid over it"
        )
    for each in found.differences:
        lines.append(
            f"  {each.fact}: {_word(each.shipped)} in the shipped one, {_word(each.here)} here"
        )
    if found.unknown:
        lines.append("unknown")
        lines += [f"  {each.fact}: {each.why}" for each in found.unknown]
    return "\n".join(printable(line) for line in lines)


def _word(value: Any) -> str:
    return "not there" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.isoformat() if isinstance(value, dt.date) else value
