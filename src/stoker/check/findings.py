"""Finding: one thing that is wrong with a script; and the rules that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from stoker.check.batch import BatchScript, Edit
from stoker.check.launches import Launch
from stoker.cluster.profile import Cluster, Gpu, Partition

Severity = Literal["error", "warning", "advice"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advice")


@dataclass(frozen=True)
class Hit:
    """What a rule says about one place; the rule itself adds code and severity."""

    line: int
    what: str
    why: str
    fix: str
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, why, and what to do about it."""

    code: str
    severity: Severity
    line: int
    what: str
    why: str
    fix: str
    edits: tuple[Edit, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Subject:
    """Everything that a rule may look at."""

    script: BatchScript
    launches: tuple[Launch, ...]
    cluster: Cluster | None = None
    slurm_version: tuple[int, int] | None = None
    folder: Path | None = None
    environ: frozenset[str] = frozenset()

    @property
    def is_multi_node(self) -> bool:
        """Whether the header asks for more than one node."""
        return (self.script.nodes or 1) > 1

    @cached_property
    def queues(self) -> list[Partition]:
        """Return the profile's queues that this script's --partition and --qos can mean."""
        cluster, script = self.cluster, self.script
        if cluster is None or script.is_het:
            return []
        partition, qos = script.value("partition"), script.value("qos")
        if cluster.slurm.partition == "never":
            partition = None  # the site does not look at it
        if partition is None and qos is None:
            return [queue for queue in cluster.partition.values() if queue.automatic]
        found = []
        for queue in cluster.partition.values():
            if queue.slurm_name != (partition or "") or queue.automatic:
                continue
            if queue.qos is not None and queue.qos != qos:
                continue
            found.append(queue)
        return found

    @cached_property
    def kinds(self) -> list[Gpu]:
        """Return the GPU kinds that the request can mean."""
        cluster, gpu = self.cluster, self.script.gpu
        if cluster is None or gpu is None or self.script.is_het:
            return []
        kinds = list(cluster.gpu.values())
        if gpu.type is not None:
            return [each for each in kinds if gpu.type in (each.type, *each.aliases)]
        queues = self.queues or list(cluster.partition.values())
        names = {name for queue in queues for name in queue.gpus}
        whole = [each for each in kinds if each.slice_of is None]
        return [each for each in whole if each.name in names] or whole


RuleFunction = Callable[[Subject], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """One rule: its code, how bad a hit is, and the function that looks."""

    code: str
    severity: Severity
    function: RuleFunction

    @property
    def title(self) -> str:
        """What the rule is about, in a sentence."""
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def find(self, subject: Subject) -> Iterator[Finding]:
        """Yield what this rule finds."""
        for hit in self.function(subject):
            yield Finding(
                self.code,
                hit.severity or self.severity,
                hit.line,
                hit.what,
                hit.why,
                hit.fix,
                hit.edits,
            )


def rule(code: str, severity: Severity) -> Callable[[RuleFunction], Rule]:
    """Make a rule of a function; its docstring says what it is about."""

    def make(function: RuleFunction) -> Rule:
        return Rule(code, severity, function)

    return make
