"""Findings about a batch script as text for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stoker.check.findings import SEVERITIES
from stoker.check.lint import Checked
from stoker.report.table import render_advice
from stoker.units import plural

FORMAT = 1
# A person reads this many of one kind; JSON has them all.
MAX_PER_RULE = 20


def render_checked(checked: Checked, name: str) -> str:
    """Return the findings, worst first, with place, code, why and fix."""
    seen = Counter[str]()
    parts = []
    for each in checked.findings:
        seen[each.code] += 1
        if seen[each.code] <= MAX_PER_RULE:
            advice = render_advice(f"{each.what} [{each.code}]", each.why, each.fix, each.severity)
            parts.append(f"{name}:{each.line}: {advice}")
    for code, count in seen.items():
        if count > MAX_PER_RULE:
            parts.append(f"{name}: … and {count - MAX_PER_RULE} more of {code}")
    return "\n".join(parts)


def render_summary(checked: Checked, name: str) -> str:
    """Return one line on what was found, and one on the cluster it was checked for."""
    counts = Counter(each.severity for each in checked.findings)
    found = ", ".join(
        plural(counts[severity], severity, "advice" if severity == "advice" else None)
        for severity in SEVERITIES
        if counts[severity]
    )
    lines = [f"{name}: {found or 'nothing wrong found'}"]
    cluster = checked.cluster
    if cluster is not None and cluster.is_retired:
        since = f" since {cluster.retired}" if cluster.retired else ""
        after = (
            f"; stoker plan --cluster {cluster.successor} plans for its successor"
            if cluster.successor
            else ""
        )
        lines.append(f"note: {cluster.title} is retired{since}{after}")
    if checked.guess is not None:
        signs = ", ".join(checked.guess.signs)
        lines.append(
            f"checked for {checked.guess.cluster.title}, guessed from {signs}; "
            "--cluster names another, --cluster none turns it off"
        )
    elif cluster is not None:
        lines.append(f"checked for {cluster.title}")
    else:
        lines.append("no cluster known: limits were not checked; --cluster NAME adds them")
    return "\n".join(lines)


def checked_json(checked: Checked, name: str) -> dict[str, Any]:
    """Return the findings as plain values."""
    return {
        "format": FORMAT,
        "file": name,
        "cluster": checked.cluster.name if checked.cluster else None,
        "cluster_status": checked.cluster.status if checked.cluster else None,
        "guessed_from": list(checked.guess.signs) if checked.guess else None,
        "findings": [
            {
                "code": each.code,
                "severity": each.severity,
                "line": each.line,
                "what": each.what,
                "why": each.why,
                "fix": each.fix,
                "can_fix": bool(each.edits),
            }
            for each in checked.findings
        ],
    }
