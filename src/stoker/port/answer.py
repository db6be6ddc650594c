"""What a port says, as text for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from stoker.port.compare import Comparison
from stoker.port.rewrite import Ported

FORMAT = 1


def render_refusals(ported: Ported) -> str:
    """Return each refusal with its line, why and fix."""
    return "\n".join(
        f"{ported.name}:{each.line}: error: {each.what}\n  why: {each.why}\n  fix: {each.fix}"
        for each in ported.refusals
    )


def render_comparison(found: Comparison) -> str:
    """Return the losses side by side."""
    lines = [f"step  one process  {found.ranks} ranks"]
    for step in range(max(len(found.alone), len(found.ported))):
        pair = [
            f"{values[step]:.6f}" if step < len(values) else "-"
            for values in (found.alone, found.ported)
        ]
        lines.append(f"{step + 1:>4}  {pair[0]:>11}  {pair[1]:>7}")
    verdict = "the same losses" if found.is_same else "OTHER LOSSES"
    lines.append(f"{verdict}: the largest difference is {found.worst:.2g} of the loss")
    return "\n".join(lines)


def ported_json(ported: Ported, found: Comparison | None) -> dict[str, Any]:
    """Return what was done as plain values."""
    return {
        "format": FORMAT,
        "file": ported.name,
        "target": ported.target,
        "ported_before": ported.is_old,
        "refusals": [
            {"line": each.line, "what": each.what, "why": each.why, "fix": each.fix}
            for each in ported.refusals
        ],
        "notes": list(ported.notes),
        "diff": ported.diff,
        "check": found
        and {
            "same": found.is_same,
            "ranks": found.ranks,
            "alone": list(found.alone),
            "ported": list(found.ported),
            "worst": found.worst,
        },
    }
