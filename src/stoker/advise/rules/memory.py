"""Host memory: a run that was killed for it, comes near its limit, keeps growing, or swaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stoker.advise.finding import Finding, Rule
from stoker.advise.repeat import announce
from stoker.advise.verdict import WORTH_SHARE, median
from stoker.units import render_mem, render_number, render_seconds, render_share
from stoker.watch.series import Row, known_number
from stoker.watch.summary import Machine, Summary

SIGKILL = 9
# A shell, srun and many launchers tell of a signal by 128 and its number.
KILLED = (-SIGKILL, 128 + SIGKILL)
# Readings are a second apart, and a training fills the last tenth in less.
FULL_SHARE = 0.9
# A limit a fifth above what was used leaves room for longer batches and other nodes.
SPARE = 1.25
# A leak shows in each part of the run, not only in one where something was loaded.
PARTS = 6
MIN_ROWS = 4 * PARTS
MIN_RISE_S = 20.0
MAX_MACHINES = 8
MEMORY = ("mem.rss_gib", "mem.shm_gib", "mem.cgroup_gib", "mem.machine_gib")
# Allocators give memory back late and workers touch shared pages: less growth than this is usual.
MIN_RISE_GIB = 0.1
MIN_RISE_SHARE = 0.1
# How much of the mean rise each part must show.
STEADY_RISE = 0.4
# Pages that come back from swap as a trickle are those of programs that slept.
MIN_SWAP_MB_S = 1.0


@dataclass(frozen=True)
class Held:
    """What a run holds on the machine where it comes nearest to the limit, in GiB."""

    host: str
    # The most at any reading; 0 where it is not known.
    most_gib: float
    limit_gib: float
    # Whether the limit is the job's own, not the machine's.
    is_own: bool

    @property
    def share(self) -> float:
        """That, as a part of the limit."""
        return self.most_gib / self.limit_gib

    def limit(self) -> str:
        """Write the limit for people."""
        whose = "the job's limit" if self.is_own else f"what {self.host} has"
        return f"{render_number(self.limit_gib)} GiB, {whose}"

    def fix(self) -> str:
        """Write what to ask for, or what to hold less of."""
        if not self.is_own:
            return "Hold less data in memory (memory-map it, fewer loader workers), or use a larger node."
        wanted = render_mem(math.ceil(max(SPARE * self.most_gib, SPARE * self.limit_gib)))
        return f"Ask for more (--mem={wanted}), or hold less: memory-map the data, fewer loader workers."


def read_held(summary: Summary) -> Held | None:
    """Return the memory of the machine that came nearest to its limit; None where none is known."""
    found = [held for machine in summary.machines if (held := _held(machine)) is not None]
    return max(found, key=lambda held: held.share, default=None)


def killed_for_memory(summary: Summary) -> Finding | None:
    """The kernel ended the run, or a process of it, because memory was full."""
    kills = max((_kills(machine) for machine in summary.machines), default=0.0)
    held = read_held(summary)
    was_full = held is not None and held.is_own and held.share >= FULL_SHARE
    is_over = summary.state in ("killed", "failed", "lost")
    exit_code = known_number(summary.run.get("exit"))
    was_killed = exit_code in KILLED or summary.state == "lost"
    if not is_over or not (kills or (was_killed and was_full)):
        return None
    why = (
        f"The kernel killed {kills:.0f} of the job's processes because its memory was full."
        if kills
        else "It ended without a word of its own while its memory was full."
    )
    if held is not None:
        why += f" The last readings saw up to {render_number(held.most_gib)} GiB of {held.limit()}."
    return Finding(
        key="killed-for-memory",
        level="problem",
        what="The run was ended because it needed more memory than it may use.",
        why=why,
        fix="Ask for more memory (--mem)." if held is None else held.fix(),
        confidence="high" if kills else "medium",
        safety="A",
        figures={"oom_kills": kills, **_figures(held)},
    )


def rising_memory(summary: Summary) -> Finding | None:
    """Memory grows from beginning to end, as with a leak."""
    if killed_for_memory(summary) is not None:
        return None
    # What grows also spreads; rows are read of a few machines only, of a thousand too.
    spread = sorted(summary.machines, key=_spread_gib, reverse=True)[:MAX_MACHINES]
    found = [each for machine in spread if (each := _rise(machine)) is not None]
    rise = max(found, key=lambda each: each.gib_per_s, default=None)
    if rise is None:
        return None
    left_s = max(0.0, rise.held.limit_gib - rise.last_gib) / rise.gib_per_s
    job_left_s = _job_left_s(summary)
    # Soon is within what the job may still run; where that is not known, within as long again.
    is_soon = left_s < (summary.wall_s if job_left_s is None else job_left_s)
    epochs = max((rank.epochs for rank in summary.ranks), default=0)
    return Finding(
        key="rising-memory",
        level="problem" if is_soon else "advice",
        what=f"The memory of the run grows all the time, by {_rate(rise.gib_per_s)}.",
        why=(
            f"It went from {render_number(rise.first_gib)} to {render_number(rise.last_gib)} GiB in "
            f"{render_seconds(rise.seconds)}; so it reaches {rise.held.limit()}, "
            f"in {render_seconds(left_s)}."
        ),
        fix=(
            "Look for what is kept of each step: losses without .item() or .detach(), outputs in a "
            "list, a cache in the data set."
        ),
        # In the first epoch a data set that keeps what it has read grows as well.
        confidence="high" if epochs > 1 else "medium",
        safety="A",
        figures={"gib_per_hour": 3600 * rise.gib_per_s, "left_s": left_s, **_figures(rise.held)},
    )


def near_the_limit(summary: Summary) -> Finding | None:
    """A little more memory and the run would have been killed."""
    held = read_held(summary)
    if held is None or held.share < FULL_SHARE:
        return None
    if killed_for_memory(summary) is not None or rising_memory(summary) is not None:
        return None
    return Finding(
        key="near-memory-limit",
        level="advice",
        what=f"The run held up to {render_share(min(1.0, held.share))} of the memory that it may use.",
        why=f"That is {render_number(held.most_gib)} GiB of {held.limit()}; beyond it the kernel kills the run.",
        fix=held.fix(),
        confidence="high" if held.is_own else "medium",
        safety="A",
        figures=_figures(held),
    )


def swapping(summary: Summary) -> Finding | None:
    """Memory is moved to the disk and back while the run waits."""
    for machine in summary.machines:
        back, waiting = (
            machine.stats.get("mem.swap_in_mb_s"),
            machine.stats.get("mem.pressure_pct"),
        )
        if back is None or waiting is None or back.mean < MIN_SWAP_MB_S:
            continue
        share = min(0.9, waiting.mean / 100)
        if share < WORTH_SHARE / 2:
            continue
        # In that time some process waited; whether it was one that trains is not known.
        waited_s = share * summary.wall_s
        return Finding(
            key="swapping",
            level="problem" if share >= WORTH_SHARE else "advice",
            what=f"{machine.host} moves memory to its disk and back while the run goes on.",
            why=(
                f"{render_number(back.mean)} MB/s came back from swap, and processes waited for "
                f"memory {render_share(share)} of the time."
            ),
            fix="Ask for more memory (--mem), or hold less of it: memory-map the data, fewer loader workers.",
            confidence="medium",
            safety="A",
            gain=announce(summary, 0.0, waited_s, waited_s),
            figures={"swap_in_mb_s": back.mean, "pressure_share": share},
        )
    return None


@dataclass(frozen=True)
class Rise:
    """Memory that grew steadily on one machine."""

    held: Held
    gib_per_s: float
    first_gib: float
    last_gib: float
    seconds: float


def _spread_gib(machine: Machine) -> float:
    stat = machine.stats.get("mem.rss_gib")
    return 0.0 if stat is None else stat.std


def _rise(machine: Machine) -> Rise | None:
    held = _held(machine)
    if held is None:
        return None
    # Of the processes themselves: a control group's memory grows with the files that are read.
    rows = [row for row in machine.rows if "mem.rss_gib" in row.stats]
    # The first fifth holds the start-up; in the last reading processes have ended.
    rows = rows[max(1, len(rows) // 5) : -1]
    if len(rows) < MIN_ROWS or rows[-1].end_s - rows[0].start_s < MIN_RISE_S:
        return None
    levels, times_s = _parts(rows, "mem.rss_gib")
    rise = levels[-1] - levels[0]
    if rise < max(MIN_RISE_GIB, MIN_RISE_SHARE * levels[0]):
        return None
    each = rise / (PARTS - 1)
    if any(later - earlier < STEADY_RISE * each for earlier, later in pairwise(levels)):
        return None
    seconds = times_s[-1] - times_s[0]
    # By the later half: growth that slows down has a longer way to the limit.
    half = PARTS // 2
    gib_per_s = (levels[-1] - levels[half]) / (times_s[-1] - times_s[half])
    return Rise(held, gib_per_s, levels[0], levels[-1], seconds)


def _parts(rows: Sequence[Row], metric: str) -> tuple[list[float], list[float]]:
    """Return the middle level and the middle time of equal parts of the rows' time."""
    begin, end = rows[0].start_s, rows[-1].end_s
    parts: list[list[Row]] = [[] for _ in range(PARTS)]
    for row in rows:
        middle = (row.start_s + row.end_s) / 2
        parts[min(PARTS - 1, int(PARTS * (middle - begin) / (end - begin)))].append(row)
    # Coarser rows may leave a part empty; it then has the level of the one before.
    levels, times = [], []
    for part in parts:
        if part:
            level = median(row.stats[metric].mean for row in part)
            time_s = median((row.start_s + row.end_s) / 2 for row in part)
        levels.append(level)
        times.append(time_s)
    return levels, times


def _held(machine: Machine) -> Held | None:
    """Return what counts against the job's limit, or against the machine's memory without one."""
    stats = {name: machine.stats.get(name) for name in MEMORY}
    most = {name: stat.max for name, stat in stats.items() if stat is not None}
    private = most.get("mem.rss_gib", 0.0)
    limit = known_number(machine.facts.get("memory_limit_gib"))
    if limit:
        # The one counts files that could be dropped, the other pages that processes share: what
        # is really held is below both.
        both = private + most.get("mem.shm_gib", 0.0)
        return Held(machine.host, min(both, most.get("mem.cgroup_gib", both)), limit, is_own=True)
    limit = known_number(machine.facts.get("memory_machine_gib"))
    if not limit:
        return None
    # A machine that others have filled is not for this run to mend.
    is_ours = private >= limit / 2
    return Held(
        machine.host, most.get("mem.machine_gib", 0.0) if is_ours else private, limit, is_own=False
    )


def _kills(machine: Machine) -> float:
    stat = machine.stats.get("mem.oom_kills")
    return 0.0 if stat is None else stat.max


def _job_left_s(summary: Summary) -> float | None:
    """Return how long the job might have gone on after the run's last moment."""
    environment = summary.run.get("environment")
    text = environment.get("SLURM_JOB_END_TIME", "") if isinstance(environment, dict) else ""
    start = known_number(summary.run.get("start"))
    if start is None or not str(text).isdecimal():
        return None
    return max(0.0, float(text) - start - summary.wall_s)


def _rate(gib_per_s: float) -> str:
    per_minute = 60 * gib_per_s
    if per_minute < 0.1:
        return f"{render_number(60 * per_minute)} GiB an hour"
    return f"{render_number(per_minute)} GiB a minute"


def _figures(held: Held | None) -> dict[str, float]:
    return {} if held is None else {"most_gib": held.most_gib, "limit_gib": held.limit_gib}


RULES: tuple[Rule, ...] = (killed_for_memory, rising_memory, near_the_limit, swapping)
