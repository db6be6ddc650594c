"""Causes that are planted in small trainings, what must be found of each, and how to run them.

The tests ask whether the cause comes first; benchmarks/planted.py also mends it and measures what
that gains, which takes a quiet machine.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from patience import Done, run_ranks
from stoker.advise.finding import Finding
from stoker.advise.findings import find
from stoker.watch.folder import RunFolder
from stoker.watch.limits import read_cgroup
from stoker.watch.series import known_number
from stoker.watch.summary import Summary, read_summary

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests/planted"
JOB = {"SLURM_JOB_ID": "4211", "SLURM_JOB_NAME": "train", "SLURM_CPUS_PER_TASK": "1"}
# How control groups of both versions call what is used, and what may be.
NAMES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes"), 2: ("memory.current", "memory.max"),
}  # fmt: skip
WIDE_JOB = {**JOB, "SLURM_CPUS_PER_TASK": "16"}
LIMIT_S = 300.0


@dataclass(frozen=True)
class Cause:
    """One training, and what is wrong with it."""

    script: str
    # The finding that comes first; None if there is nothing to find.
    key: str | None = None
    words: tuple[str, ...] = ()
    # What the training is given once it is mended; the finding's figures are filled in.
    mended: tuple[str, ...] | None = None
    mended_environ: Mapping[str, str] = field(default_factory=dict)
    # What the mending changes: the "loop" (all but the start), its "steps", or the "start".
    changes: str = "loop"
    # Stands in what the finding says.
    told: str = ""
    venv: str = "torch"
    # Ranks of torchrun, or the same program several times side by side.
    ranks: int = 1
    copies: int = 1
    cores: str | None = None
    # In a control group that may have so much memory; and whether that ends the training.
    memory_mb: int | None = None
    is_killed: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    # Around the present, when the job began and when its time is over.
    job_s: tuple[int, int] | None = None
    device: str = "cpu"
    # How many times the samples a step of the mended training has.
    samples: float = 1.0


def _line(script: str, text: str) -> str:
    """Return the place of a line, as a finding names it."""
    lines = (PLANTED / f"{script}.py").read_text().splitlines()
    return f"{script}.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


SLOW_LINE = _line("loading_line", "sum(row")
SAVING_LINE = _line("reserved_saving", "torch.save")
FAIR = {**JOB, "SLURM_MEM_PER_NODE": "2048"}

CAUSES = {
    "too few workers": Cause("loading_workers", "loader-workers"),
    "too few workers that wait": Cause(
        "loading_workers", "loader-workers", ("asked=1",), ("asked=1", "workers=2")
    ),
    "too many workers": Cause(
        "loading_workers", "loader-crowded", ("workers=8", "device_ms=1")
    ),
    "too few cores": Cause(
        "loading_workers", "loader-cpus", ("workers=1",), told="--cpus-per-task=", cores="0"
    ),
    "one slow line": Cause("loading_line", "loader-line", (), ("slow=0",), told=SLOW_LINE),
    "one slow line in a worker": Cause(
        "loading_line", "loader-line", ("workers=1",), told=SLOW_LINE
    ),
    "slow storage": Cause("loading_pipe", "loader-storage", (), ("pause_ms=0",)),
    "small files": Cause("loading_files", "loader-files", (), ("packed=1",)),
    "new workers in each epoch": Cause("loading_restart", "loader-restart", (), ("persistent=1",)),
    "serial pipeline": Cause(
        "loading_tensorflow", "tensorflow-pipeline", (), ("fixed=1",), venv="tf"
    ),
    "one slow rank": Cause(
        "rank_slow", "slow-rank", (), ("fixed",), changes="steps", told="rank_slow.py:41", ranks=2
    ),
    "gradients in crumbs": Cause(
        "rank_buckets",
        "exposed-communication",
        (),
        ("fixed",),
        changes="steps",
        told="fewer and larger messages",
        ranks=2,
    ),
    "gradients sent by hand": Cause(
        "rank_by_hand",
        "exposed-communication",
        (),
        ("fixed",),
        changes="steps",
        told="instead of rank_by_hand.py:15",
        ranks=2,
    ),
    "much validation": Cause("reserved_validation", "validation", (), ("every={rarer:g}",)),
    "saving after each epoch": Cause(
        "reserved_saving", "saving", (), ("every={rarer:g}",), told=SAVING_LINE
    ),
    "saving within epochs": Cause(
        "reserved_saving", "saving", ("within=25",), ("within=25", "every={rarer:g}"),
        told=SAVING_LINE,
    ),
    "pictures between epochs": Cause(
        "reserved_plots", "between-epochs", (), ("pause=0",), told="reserved_plots.py:11"
    ),
    "a long start": Cause(
        "reserved_start", "long-start", (), ("cached=1",), changes="start",
        told="reserved_start.py:12",
    ),
    "a leak": Cause("reserved_leak", "rising-memory", job_s=(0, 24 * 3600)),
    "memory all but full": Cause(
        "reserved_memory", "near-memory-limit", told="--mem=", memory_mb=1000
    ),
    "killed for its memory": Cause(
        "reserved_memory", "killed-for-memory", ("share=9",), told="--mem=", memory_mb=1000,
        is_killed=True,
    ),
    "crowded cores": Cause(
        "reserved_threads",
        "crowded-cores",
        ("300",),
        ("300",),
        {"OMP_NUM_THREADS": "1"},
        copies=2,
        environ={"OMP_NUM_THREADS": "8"},
    ),
    "idle CPUs": Cause(
        "reserved_healthy", "unused-cpus", ("epochs=9",),
        environ={**JOB, "SLURM_CPUS_PER_TASK": "16"},
    ),
    "idle memory": Cause(
        "reserved_healthy", "unused-memory", ("epochs=9",), told="Ask for --mem=2G.",
        environ={**JOB, "SLURM_MEM_PER_NODE": str(400 * 1024)},
    ),
    "a long time limit": Cause(
        "reserved_healthy", "long-time-limit", ("epochs=1",), environ=JOB, job_s=(-900, 86400)
    ),
    "small kernels": Cause(
        "device_launch", "launch-bound", (), ("fixed",), changes="steps", device="cuda", environ=JOB
    ),
    "a loop that waits for the GPU": Cause(
        "device_sync", "sync-lines", (), ("fixed",), changes="steps", device="cuda", environ=JOB
    ),
    "tensor cores idle": Cause(
        "device_float32", "tensor-cores-idle", (), ("fixed",), changes="steps", device="cuda",
        environ=JOB,
    ),
    "slow code on the host": Cause(
        "device_host", "host-code", (), ("fixed",), changes="steps", device="cuda", environ=JOB
    ),
    "a small batch": Cause(
        "device_batch", "batch-too-small", (), ("fixed",), changes="steps", device="cuda",
        environ=JOB, samples=4.0,
    ),
    "pageable copies": Cause(
        "device_copies", "loader-pinning", (), ("fixed",), changes="steps", device="cuda",
        environ=WIDE_JOB,
    ),
    "too few workers for a GPU": Cause(
        "device_pictures", "loader-workers", ("workers=2",), ("workers={workers_to:g}",),
        changes="steps", device="cuda", environ=WIDE_JOB,
    ),
    "workers that are waited for": Cause(
        "device_pictures", "slow-end", ("workers=12", "height=150", "leave=1"),
        ("workers=12", "height=150"), device="cuda", environ=WIDE_JOB,
    ),
    "a GPU for a CPU job": Cause("device_on_cpu", "gpu-for-cpu-job", device="cuda", environ=JOB),
    "a GPU used now and then": Cause(
        "device_idle", "gpu-mostly-idle", told="device_idle.py:", device="cuda", environ=JOB
    ),
    "healthy: a busy GPU": Cause("device_healthy", device="cuda", environ=JOB),
    "healthy: pictures for a GPU": Cause(
        "device_pictures", words=("workers=14", "height=150", "batch=256"), device="cuda",
        environ=WIDE_JOB,
    ),
    "healthy: layers unfrozen": Cause("reserved_freeze"),
    "healthy: rows in memory": Cause("loading_healthy"),
    "healthy: workers that keep up": Cause("loading_healthy", words=("kind=workers",)),
    "healthy: a pipeline in parallel": Cause(
        "loading_tensorflow", words=("fixed=1", "healthy=1"), venv="tf"
    ),
    "healthy: two ranks": Cause("rank_healthy", ranks=2),
    "healthy: a job": Cause(
        "reserved_healthy", words=("epochs=5",), environ=FAIR, job_s=(-900, 1800)
    ),
    "healthy: a job with short epochs": Cause(
        "reserved_healthy", words=("epochs=12", "batches=60", "held_out=5"), environ=FAIR,
        job_s=(-900, 1800),
    ),
}  # fmt: skip


def on(device: str) -> dict[str, Cause]:
    """Return the causes that can be planted on a device."""
    return {name: cause for name, cause in CAUSES.items() if cause.device == device}


def run_cause(
    cause: Cause,
    folder: Path,
    words: tuple[str, ...],
    environ: Mapping[str, str],
    programs: Path | None = None,
) -> Summary:
    """Run a training under the real `stoker run`, and read what was recorded.

    The framework's programs are those of its environment here, or in `programs`.
    """
    found = programs or ROOT / f".venv-{cause.venv}/bin"
    program = [str(PLANTED / f"{cause.script}.py"), *words]
    if cause.ranks > 1:
        launcher = [str(found / "torchrun"), "--standalone", f"--nproc-per-node={cause.ranks}"]
        program = ["--", *launcher, *program]
    elif cause.copies > 1:
        each = " ".join([str(found / "python"), *program])
        program = ["--", "bash", "-c", "; ".join([" & ".join([each] * cause.copies), "wait"])]
    now = int(time.time())
    if cause.job_s is not None:
        names = ("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME")
        environ = dict(
            environ, **{name: str(now + s) for name, s in zip(names, cause.job_s, strict=True)}
        )

    def run(place: Path) -> Done:
        group = None if cause.memory_mb is None else MemoryGroup(cause.memory_mb)
        return subprocess.run(
            [
                *([] if group is None else group.command),
                *([] if cause.cores is None else ["taskset", "-c", cause.cores]),
                sys.executable, "-m", "stoker", "run", "--quiet", "-o", str(place / "run"),
                "--python", str(found / "python"), *program,
            ],
            cwd=place,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(place),
                **({} if group is None else group.environ),
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )  # fmt: skip

    place, done = run_ranks(run, folder)
    if bool(done.returncode) != cause.is_killed:
        raise RuntimeError(done.stderr)
    return read_summary(RunFolder(place / "run"))


class MemoryGroup:
    """A control group with a limit of memory, below the one that we are in; goes with us."""

    def __init__(self, megabytes: int) -> None:
        here = read_cgroup("memory", os.getpid())
        if here is None:
            raise OSError("no control group for memory")
        used, limit = NAMES[here.version]
        self._folder = Path(here.folders[0]) / f"planted-{os.getpid()}"
        self._folder.mkdir(exist_ok=True)
        (self._folder / limit).write_text(str(megabytes << 20))
        self.environ = {"STOKER_PLANTED_MEMORY": f"{self._folder / used}:{self._folder / limit}"}
        atexit.register(self._remove)

    @property
    def command(self) -> list[str]:
        """What joins the group and becomes the command that follows."""
        return ["sh", "-c", f'echo $$ > {self._folder}/cgroup.procs; exec "$@"', "sh"]

    def _remove(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()


def can_limit_memory() -> bool:
    """Say whether control groups can be made here."""
    try:
        return MemoryGroup(1000) is not None
    except OSError:
        return False


def serious(summary: Summary) -> list[Finding]:
    """Return the findings that are more than information."""
    return [each for each in find(summary) if each.level != "information"]


def says(finding: Finding, told: str) -> bool:
    """Say whether a finding names what it should."""
    return told in f"{finding.what} {finding.why} {finding.fix}"


def is_right(cause: Cause, summary: Summary) -> bool:
    """Say whether the cause comes first and no other is called a problem."""
    findings = serious(summary)
    if cause.key is None or not findings:
        return cause.key is None and not findings
    problems = [each.key for each in findings if each.level == "problem"]
    return (
        findings[0].key == cause.key
        and set(problems) <= {cause.key}
        and says(findings[0], cause.told)
    )


def others(summary: Summary) -> float:
    """Return the cores of the machine that somebody else used."""
    machine = summary.machines[0]
    cores = known_number(machine.facts.get("cores_machine")) or 0.0
    whole = cores * machine.stats["cpu.machine_pct"].mean / 100
    return whole - machine.stats["cpu.cores"].mean
