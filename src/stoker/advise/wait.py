"""The wait for data of a run: how long it is, what a batch takes to make, and which one cause it has.

The rules of loading and storage read it, so that no two of them name the same wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from stoker.advise.finding import Gain
from stoker.advise.repeat import announce
from stoker.advise.verdict import MIN_STEADY_STEPS, WORTH_SHARE, slowest_rank
from stoker.units import render_part, render_share
from stoker.watch.series import Row, Stat, known_number, merged
from stoker.watch.summary import Line, Machine, Rank, Split, Summary

# The part of the cores that others may use before it is they whom a load waits for.
OTHERS = 0.1
# A load is held to wait for something else than a core where it does so most of its time.
MOSTLY = 0.5
# Workers for each core, from which on they take the cores from each other; and from training.
CROWDED = 1.5
# The share of its time that work waits for a core, where the cores are too few for it.
QUEUED = 0.2
# Workers that need less than this part of the time that they have keep up with training.
KEEPS_UP = 0.8
# The cores count as taken from here on: what is left comes and goes too quickly to be used.
TAKEN, FREE = 0.85, 0.25
# A gain below this is within what two runs of the same script differ by.
LEAST_GAIN = 1.05
# Of a problem, the part of the run's time that its cause costs at least.
PROBLEM_SHARE = 0.10
# One line is far costlier than the rest at half of all loading and three times the next line.
LINE_SHARE, LINE_FACTOR = 0.5, 3.0
# Seconds that a line was seen at: ten looks at the stack.
LINE_S = 0.5
# Loading that reads less than this a batch, and opens nothing, waits for something else.
READ_MB = 0.05
# Below this a file, opening it costs about as much as all the rest.
SMALL_FILE_S, MANY_FILES = 1e-3, 8
# Workers tell how many files they opened every two seconds.
TOLD_S = 2.5
# Phases that no code of a data set is in.
COMPUTING = ("forward", "backward", "optimizer", "graph")
# What is asked of the machine for the time of the steps.
WHILE_LOADING = ("cpu.cores", "cpu.machine_pct", "io.read_mb_s", "files.opens_s")


@dataclass(frozen=True)
class Load:
    """What it takes to make one batch, in one process; seconds."""

    wall_s: float
    core_s: float
    # Waiting for a core.
    queue_s: float
    # How it is known: by looks at the processes, or not.
    is_measured: bool

    @property
    def idle_s(self) -> float:
        """Waiting for anything else, such as storage."""
        return max(0.0, self.wall_s - self.core_s - self.queue_s)


@dataclass(frozen=True)
class Wait:
    """The steady steps of the rank that the others wait for, and what stands behind the wait."""

    summary: Summary
    rank: Rank
    split: Split
    # The loader's settings; empty where another library loads.
    loader: Mapping[str, Any]
    workers: int
    load: Load
    # What this rank may use, and what its machine has for it; None if unknown.
    cores: float | None
    cores_machine: float | None
    # What it could have used: not what others on the machine used. As `cores` where they are kept out.
    cores_left: float | None
    # What the rank used in steady steps, and what it would have used had there been more.
    busy: float
    wanted: float
    files: float | None
    read_mb: float | None
    # The line that takes most of the loading, if there is one, and its share.
    line: Line | None
    line_share: float
    cause: str = ""

    @property
    def step_s(self) -> float:
        """One step."""
        return self.split.step.mean

    @property
    def data_s(self) -> float:
        """The wait for data in one step."""
        return self.step_s * self.split.share("data")

    @property
    def rest_s(self) -> float:
        """One step without the wait."""
        return self.step_s - self.data_s

    @property
    def free_rest_s(self) -> float:
        """One step without the wait, where nothing takes the cores from training.

        How long training waits for a core is taken from loading, which is looked at.
        """
        return self.rest_s * self._free

    @property
    def is_taken(self) -> bool:
        """Whether loading and training would use all cores that they may use, or more."""
        return self.cores is not None and self.wanted >= min(TAKEN * self.cores, self.cores - FREE)

    def step_with(self, part: float) -> float:
        """The step, if only this part of the loading is left."""
        left = self.load.wall_s * part
        if self.workers:
            return max(self.rest_s, min(self.step_s, left / self.workers))
        return max(self.rest_s, self.step_s - (self.load.wall_s - left))

    def best_with(self, part: float) -> float:
        """The same, where moreover nobody waits for a core."""
        return self.step_with(part) * self._free

    @property
    def _taken_by_others(self) -> float:
        return 1 - self.cores_left / self.cores if self.cores and self.cores_left else 0.0

    @property
    def _free(self) -> float:
        # Without workers, and with others on the cores, it is they who are waited for: no fix of
        # ours sends them away.
        if not self.workers and self._taken_by_others > OTHERS:
            return 1.0
        return 1 - self.load.queue_s / self.load.wall_s

    def sentence(self) -> str:
        """Say how long the wait is, as the beginning of a sentence."""
        share = render_share(self.split.share("data"))
        part = f"{render_part(self.data_s, self.step_s)} of {render_part(self.step_s, self.step_s)}"
        return f"Training waits for data {share} of each step ({part})"

    def figures(self) -> dict[str, float]:
        """Return the numbers behind it."""
        figures = {
            "data_share": self.split.share("data"),
            "step_s": self.step_s,
            "load_s": self.load.wall_s,
            "load_core_s": self.load.core_s,
            "load_queue_s": self.load.queue_s,
            "load_idle_s": self.load.idle_s,
            "num_workers": self.workers,
            "cores_busy": self.busy,
        }
        return figures if self.cores is None else {**figures, "cores_allowed": self.cores}

    def gain(self, best_s: float, worst_s: float, ended_s: float = 0.0, cost_s: float = 0) -> Gain:
        """What the run gains by steps between these two lengths; `cost_s` is for the longer.

        `ended_s` is the step when the cause costs nothing; without it, the step without wait.
        """
        floor = min(self.step_s, ended_s or self.rest_s)
        return announce(
            self.summary,
            self.rank.steps * (self.step_s - worst_s) - cost_s,
            self.rank.steps * (self.step_s - max(floor, best_s)),
            self.rank.steps * (self.step_s - floor),
        )


def level_of(gain: Gain) -> str:
    """Return how much it weighs: a problem costs a tenth of the run, by what is expected."""
    return "problem" if 1 - 1 / gain.expected >= PROBLEM_SHARE else "advice"


@lru_cache(maxsize=1)  # eight rules ask for it, one after the other
def read_wait(summary: Summary) -> Wait | None:
    """Return the wait for data; None if it is not worth a word, or too little is known of it."""
    rank = slowest_rank(summary)
    if rank is None or rank.steady is None or rank.steady.steps < MIN_STEADY_STEPS:
        return None
    if rank.steady.share("data") < WORTH_SHARE or summary.wall_s <= 0:
        return None
    loader = training_loader(rank)
    workers = _count(loader.get("num_workers"))
    machine = next((each for each in summary.machines if each.host == rank.host), None)
    here = [each for each in summary.ranks if each.host == rank.host]
    shared = max(1, len(here))
    whole = merged(rank.rows)
    stats = whole.stats if whole else {}
    during = _during(rank, machine)
    load = _load(rank, rank.steady, workers, stats)
    busy = _mean(during, "cpu.cores") / shared
    steps_s = 1 / rank.steady.step.mean
    line, line_share = _dominant(rank, workers)
    wait = Wait(
        summary=summary,
        rank=rank,
        split=rank.steady,
        loader=loader,
        workers=workers,
        load=load,
        cores=_cores(machine, "cores_allowed", shared),
        cores_machine=_cores(machine, "cores_machine", shared),
        cores_left=_left(machine, during, shared),
        busy=busy,
        wanted=busy * (1 + load.queue_s / load.core_s if load.core_s else 1.0),
        files=_files(rank, machine, workers, stats, shared * steps_s),
        read_mb=_mean(during, "io.read_mb_s") / shared / steps_s,
        line=line,
        line_share=line_share,
    )
    return replace(wait, cause=_cause(wait))


def training_loader(rank: Rank) -> Mapping[str, Any]:
    """Return the settings of the loader whose batches were trained on; empty if there is none."""
    told = rank.facts.get("loaders")
    values = told.values() if isinstance(told, dict) else ()
    loaders = [each for each in values if isinstance(each, dict)]

    def distance(loader: Mapping[str, Any]) -> float:
        read = _count(loader.get("batches")) * _count(loader.get("epochs"))
        return abs(math.log(read / rank.steps)) if read and rank.steps else math.inf

    # Counted where it was seen whose batch a step was; before that, the number of batches told.
    return min(loaders, key=lambda each: (-_count(each.get("trained")), distance(each)), default={})


# -- the one cause -------------------------------------------------------------------


def _cause(wait: Wait) -> str:
    load = wait.load
    if wait.workers and load.wall_s <= KEEPS_UP * wait.workers * wait.rest_s:
        # They are fast enough, and only late: when they start.
        return "" if wait.loader.get("persistent_workers") else "restart"
    is_waiting = load.is_measured and load.idle_s >= MOSTLY * load.wall_s
    if _is_crowded(wait) and not is_waiting:
        return "crowded"
    if is_waiting and _reads(wait):
        return "storage"
    if wait.files and wait.files >= MANY_FILES and load.wall_s / wait.files <= SMALL_FILE_S:
        return "files"
    if wait.line is not None:
        return "line"
    if not wait.loader and isinstance(wait.rank.facts.get("tf_data"), dict):
        return "tensorflow"
    if wait.cores is None:
        return ""
    if wait.is_taken and not is_waiting:
        has_more = wait.cores_machine is not None and wait.cores_machine >= wait.cores + 1
        return "cpus" if has_more else ""
    return "workers" if wait.loader else ""


def _is_crowded(wait: Wait) -> bool:
    if wait.cores is None or wait.workers < CROWDED * wait.cores:
        return False
    load = wait.load
    if load.is_measured:
        return load.queue_s >= QUEUED * (load.core_s + load.queue_s)
    return wait.busy >= TAKEN * wait.cores


def _reads(wait: Wait) -> bool:
    return (wait.files or 0) >= 1 or (wait.read_mb or 0) >= READ_MB


# -- from the record -----------------------------------------------------------------


def _load(rank: Rank, split: Split, workers: int, stats: Mapping[str, Stat]) -> Load:
    step = split.step.mean
    # The thread that trains loads by itself, also while the device computes.
    wall = step * split.share("data") + split.data_hidden_s
    if workers:
        # Some worker is always behind where training waits; less where they were seen idle.
        seen = sum(line.own_s for line in rank.worker_lines)
        whole = workers * step * max(1, rank.steps)
        wall = workers * step * (min(1.0, seen / whole) if seen > LINE_S else 1.0)
    looks = [stats.get(f"loading.{name}") for name in ("wall", "core", "queue")]
    if any(each is None for each in looks) or not looks[0] or looks[0].mean <= 0:
        return Load(wall, wall, 0.0, is_measured=False)
    shares = [each.mean / looks[0].mean for each in looks if each is not None]
    # Of workers, all their time was looked at; of training, its loads only.
    looked = workers * step if workers else wall
    core, queue = min(wall, shares[1] * looked), shares[2] * looked
    return Load(wall, core, min(queue, wall - core), is_measured=True)


def _during(rank: Rank, machine: Machine | None, after_s: float = 0.0) -> Mapping[str, Stat]:
    """What the machine did while steady steps went on."""
    times = [row for row in rank.rows if "steady.step" in row.stats]
    if machine is None or not times:
        return {}
    begin_s, end_s = times[0].start_s + after_s, times[-1].end_s + 1
    rows = [
        Row(*row[:2], {name: row.stats[name] for name in WHILE_LOADING if name in row.stats})
        for row in machine.rows
        if row.start_s >= begin_s and row.end_s <= end_s
    ]
    whole = merged(rows)
    return whole.stats if whole else {}


def _files(
    rank: Rank, machine: Machine | None, workers: int, stats: Mapping[str, Stat], steps_s: float
) -> float | None:
    """How many files are opened for a batch."""
    if not workers and "loading.opens" in stats:
        return stats["loading.opens"].mean
    opened = _during(rank, machine, TOLD_S).get("files.opens_s")
    return opened.mean / steps_s if opened is not None and workers else None


def _dominant(rank: Rank, workers: int) -> tuple[Line | None, float]:
    """The line that takes most of the loading, where other lines of it take far less."""
    loading = rank.worker_lines if workers else _lines_under_loop(rank)
    own: dict[tuple[str, int], float] = {}
    for each in loading:
        own[each.file, each.line] = own.get((each.file, each.line), 0.0) + each.own_s
    ordered = sorted(own, key=lambda each: -own[each])
    # A loader of one line is all there is: nothing says that the line is a slow one.
    if len(ordered) < 2:
        return None, 0.0
    top, second = own[ordered[0]], own[ordered[1]]
    if top < max(LINE_S, LINE_SHARE * sum(own.values()), LINE_FACTOR * second):
        return None, 0.0
    found = [each for each in loading if (each.file, each.line) == ordered[0]]
    # Where one is there, the function and not the comprehension in it.
    line = min(found, key=lambda each: each.function.startswith("<"))
    return line, top / sum(own.values())


def _lines_under_loop(rank: Rank) -> list[Line]:
    """The lines that load where training does it by itself, without those that ask for a batch."""
    loop = max(rank.lines, key=lambda each: each.total_s - each.own_s, default=None)
    # A function that computes as well is a loop: its line has the time that libraries load in.
    loops = {(each.file, each.function) for each in rank.lines if each.phase in COMPUTING}
    return [
        each
        for each in rank.lines
        if each.phase == "data" and each is not loop and (each.file, each.function) not in loops
    ]


def _cores(machine: Machine | None, name: str, shared: int) -> float | None:
    cores = known_number(machine.facts.get(name)) if machine else None
    return cores / shared if cores else None


def _left(machine: Machine | None, during: Mapping[str, Stat], shared: int) -> float | None:
    cores, whole = _cores(machine, "cores_allowed", 1), _cores(machine, "cores_machine", 1)
    if cores is None or cores != whole or "cpu.machine_pct" not in during:
        return cores and cores / shared
    idle = whole * (1 - _mean(during, "cpu.machine_pct") / 100)
    return min(cores, _mean(during, "cpu.cores") + max(0.0, idle)) / shared


def _mean(stats: Mapping[str, Stat], name: str) -> float:
    return stats[name].mean if name in stats else 0.0


def _count(value: object) -> int:
    return int(known_number(value) or 0)
