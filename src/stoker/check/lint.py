"""Check a batch script: run every rule, sort what they find, and apply what can be applied."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.check.batch import Edit, parse_batch
from stoker.check.findings import SEVERITIES, Finding, Subject
from stoker.check.guess import Guess, guess_cluster
from stoker.check.launches import find_launches
from stoker.check.rules import RULES
from stoker.cluster.profile import Cluster

# Fixing one thing may uncover another; more rounds than this never help.
MAX_ROUNDS = 10


@dataclass(frozen=True)
class Checked:
    """What was found in one script, and for which cluster it was checked."""

    findings: tuple[Finding, ...]
    cluster: Cluster | None
    guess: Guess | None = None

    @property
    def has_errors(self) -> bool:
        """Whether anything found keeps the job from doing what it should."""
        return any(finding.severity == "error" for finding in self.findings)


@dataclass(frozen=True)
class Settings:
    """How to check: for which cluster and Slurm, seen from which folder."""

    cluster: Cluster | None = None
    guess_from: tuple[Cluster, ...] = ()
    slurm_version: tuple[int, int] | None = None
    folder: Path | None = None
    environ: frozenset[str] = frozenset()


def check_script(text: str, settings: Settings | None = None) -> Checked:
    """Return everything that the rules find in a batch script."""
    settings = settings or Settings()
    script = parse_batch(text)
    cluster, guess = settings.cluster, None
    if cluster is None and settings.guess_from:
        guess = guess_cluster(script, settings.guess_from)
        cluster = guess.cluster if guess else None
    version = settings.slurm_version or parse_version(cluster.slurm.version if cluster else None)
    subject = Subject(
        script, find_launches(script), cluster, version, settings.folder, settings.environ
    )
    findings = [finding for rule in RULES for finding in rule.find(subject)]
    findings.sort(key=lambda each: (SEVERITIES.index(each.severity), each.line, each.code))
    return Checked(tuple(findings), cluster, guess)


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Read a Slurm version: `23.02.7` → (23, 2)."""
    parts = (text or "").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def fix_script(text: str, settings: Settings | None = None) -> str:
    """Return the script with every mechanical fix applied."""
    settings = settings or Settings()
    # The cluster is guessed from the script as it was, not as the fixes leave it.
    settings = replace(settings, cluster=check_script(text, settings).cluster, guess_from=())
    for _ in range(MAX_ROUNDS):
        fixed = _apply(text, check_script(text, settings).findings)
        if fixed == text:
            break
        text = fixed
    return text


def _apply(text: str, findings: Iterable[Finding]) -> str:
    lines: list[tuple[str, ...]] = [(line,) for line in text.split("\n")]
    touched: set[int] = set()
    for finding in findings:
        if any(edit.line in touched for edit in finding.edits):
            continue  # the next round sees what this one made of the line
        for edit in finding.edits:
            _edit(lines, edit)
            touched.add(edit.line)
    return "\n".join(line for group in lines for line in group)


def _edit(lines: list[tuple[str, ...]], edit: Edit) -> None:
    if 0 < edit.line <= len(lines):
        lines[edit.line - 1] = edit.new


def render_diff(old: str, new: str, name: str) -> str:
    """Return the change as a unified diff that `patch` takes."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    # str.splitlines would also split at form feeds and other marks that patch keeps in a line.
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
