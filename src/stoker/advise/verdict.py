"""What limits a run, in a sentence that a person can act on. Says so where the data is weak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stoker.units import plural, printable, render_part, render_seconds, render_share
from stoker.watch.series import Stat, known_number
from stoker.watch.summary import Line, Machine, Rank, Split, Summary

# Below this the spread of single steps is as large as what a verdict would be about.
MIN_STEADY_STEPS = 20
# A cure for less gains under 1.11×: about as much as two runs of the same script differ by.
WORTH_SHARE = 0.10
# An optimizer's step, logging and saving belong to training: only a large share is news.
LARGE_SHARE = 0.25
# Equal ranks on equal machines differ by a few percent.
SLOW_RANK = 1.10
# Short of this, the other phases are worth naming beside forward and backward.
MOSTLY = 0.85
# Of time in which some thread waited for a core: from here on that may be what limits the run.
WAITED_PCT = 50.0
# Seconds by looks at the stack and by clocks differ by this much.
FITS = 1.2
# What every rule and every part of a report asks for is found once; two runs are compared.
KEPT = 2
# Readings before a GPU is called unused: the sampler asks whose it is at the 2nd, 3rd and 5th.
MIN_READINGS = 5
# Where readings are dear, one stands for up to so many seconds, and counts as often.
LONGEST_READING_S = 30

# The phases that are computing: what the GPU is there for.
COMPUTE = {"forward": "forward", "backward": "backward", "graph": "the graph"}
NOUNS = {
    "data": "waiting for data",
    "h2d": "copies to the device",
    "optimizer": "the optimizer",
    "comm": "communication",
    "other": "other code",
    **COMPUTE,
}


@dataclass(frozen=True)
class HeldGpu:
    """One GPU that the run could see, and whether it used it; None where that cannot be told."""

    host: str
    index: int
    is_used: bool | None


def make_verdict(summary: Summary) -> str:
    """Return what limits the run, as far as what was recorded allows to say."""
    idle = _idle_gpus(summary)
    limit = _limit(summary)
    return printable(f"{idle} {limit}" if idle else limit)


@lru_cache(maxsize=KEPT)
def slowest_rank(summary: Summary) -> Rank | None:
    """Return the rank that the others wait for: the one with the most work besides waiting."""
    stepping = [rank for rank in summary.ranks if rank.steady is not None]
    if stepping:
        return max(stepping, key=lambda rank: working_s(rank.steady))
    return max(
        summary.ranks,
        key=lambda rank: (rank.steps, sum(line.own_s for line in rank.lines)),
        default=None,
    )


def working_s(split: Split | None) -> float:
    """Return the seconds of a step that are not communication, where a rank waits for others."""
    return 0.0 if split is None else split.step.mean * (1 - split.share("comm"))


@lru_cache(maxsize=KEPT)
def held_gpus(summary: Summary) -> tuple[HeldGpu, ...]:
    """Return the GPUs that the run could see, machine by machine."""
    held: list[HeldGpu] = []
    for machine in summary.machines:
        numbers = gpu_numbers(machine)
        # Where one process of the run was found on a GPU, none was missed on the others.
        knows_owner = any(f"gpu.{number}.mine_gib" in machine.stats for number in numbers)
        held += [
            HeldGpu(machine.host, number, _is_used(machine, number, knows_owner))
            for number in numbers
        ]
    return tuple(held)


def is_read_often(machine: Machine, metric: str) -> bool:
    """Say whether something was read so often that its mean tells something."""
    stat = machine.stats.get(metric)
    if stat is None or stat.count < MIN_READINGS:
        return False
    if stat.count >= MIN_READINGS * LONGEST_READING_S:
        return True
    return sum(metric in row.stats for row in machine.rows) >= MIN_READINGS


def gpu_numbers(machine: Machine) -> list[int]:
    """Return the numbers of the GPUs that were read; names that are damaged are left out."""
    return machine.gpus()


def _is_used(machine: Machine, number: int, knows_owner: bool) -> bool | None:
    if f"gpu.{number}.mine_gib" in machine.stats:
        return True
    duty = machine.stats.get(f"gpu.{number}.duty_pct")
    if duty is None or not is_read_often(machine, f"gpu.{number}.duty_pct"):
        return None
    # In a container the owners may be hidden; then any load at all is taken for ours.
    return not knows_owner and duty.max >= 1


# -- the sentences -------------------------------------------------------------------


def _idle_gpus(summary: Summary) -> str | None:
    """GPUs that were held and never touched."""
    held = held_gpus(summary)
    idle = [gpu for gpu in held if gpu.is_used is False]
    if not idle:
        return None
    if len(idle) == len(held):
        what = "The GPU was" if len(held) == 1 else f"None of the {len(held)} GPUs was"
        never = "never used" if len(held) == 1 else "used"
        return f"{what} {never}{_ran_on_cpu(summary)}."
    hosts = list(dict.fromkeys(gpu.host for gpu in idle))
    places = [_numbers([gpu.index for gpu in idle if gpu.host == host]) for host in hosts[:3]]
    where = ", ".join(
        f"{place} of {host}" if len(summary.machines) > 1 else place
        for place, host in zip(places, hosts, strict=False)
    )
    more = f" and those of {plural(len(hosts) - 3, 'more machine')}" if len(hosts) > 3 else ""
    verb = "was" if len(idle) == 1 else "were"
    return f"{len(idle)} of {len(held)} GPUs {verb} never used ({where}{more})."


def _limit(summary: Summary) -> str:
    rank = slowest_rank(summary)
    if rank is None:
        return _nothing(summary)
    if rank.steady is None or not rank.steady.phases:
        return _no_steady(rank) if rank.steps else _no_step(summary, rank)
    if rank.steady.steps < MIN_STEADY_STEPS:
        return _few_steps(rank.steady)
    return _slow_rank(summary, rank) or _largest(summary, rank, rank.steady)


def _nothing(summary: Summary) -> str:
    if summary.machines:
        return f"No Python process was watched{_yet(summary)}" + _seen(summary, None) + "."
    return f"Nothing was recorded{_yet(summary)}."


def _yet(summary: Summary) -> str:
    return " yet" if summary.state == "running" else ""


def _no_step(summary: Summary, rank: Rank) -> str:
    if summary.state in ("failed", "killed"):
        return "No training step was recognised before the run ended in failure."
    why = ", as gradients were taken but no optimizer that Stoker knows stepped"
    why = why if rank.facts.get("is_unstepped") else ""
    return f"No training step was recognised{_yet(summary)}{why}{_seen(summary, rank)}."


def _no_steady(rank: Rank) -> str:
    return (
        f"Only {plural(rank.steps, 'step')} {'was' if rank.steps == 1 else 'were'} seen, "
        "all of them warm-up: too few to say what limits the run."
    )


def _few_steps(split: Split) -> str:
    largest = max(split.phases, key=lambda phase: split.phases[phase])
    return (
        f"Only {plural(split.steps, 'steady step')} after the warm-up, and a verdict needs "
        f"{MIN_STEADY_STEPS}; so far the largest part of a step is {NOUNS.get(largest, largest)} "
        f"({render_share(split.share(largest))})."
    )


def _slow_rank(summary: Summary, slow: Rank) -> str | None:
    """One rank works longer than the others, who wait for it in communication."""
    others = [rank.steady for rank in summary.ranks if rank is not slow and rank.steady]
    if not others or slow.steady is None:
        return None
    own, theirs = working_s(slow.steady), median(working_s(each) for each in others)
    waited = median(each.step.mean * each.share("comm") for each in others)
    if own < SLOW_RANK * theirs or waited < (own - theirs) / 2:
        return None
    differences = {
        phase: _phase_s(slow.steady, phase) - median(_phase_s(each, phase) for each in others)
        for phase in slow.steady.phases
        if phase != "comm"
    }
    if not differences:
        return None
    phase = max(differences, key=lambda each: differences[each])
    whom = f"the other {len(others)}" if len(others) > 1 else "the other"
    return (
        f"{summary.name_of(slow).capitalize()} on {slow.host or 'an unknown host'} slows {whom}: its own work takes "
        f"{render_part(own, own)} of each step against {render_part(theirs, own)}, and for the difference "
        f"{'they wait' if len(others) > 1 else 'that one waits'} in communication; most of it is "
        f"{NOUNS.get(phase, phase)} ({render_part(differences[phase], own)})."
    )


def _largest(summary: Summary, rank: Rank, split: Split) -> str:
    """The largest part of the step that is not computing, if it is worth a sentence."""
    waits = [phase for phase in ("data", "comm", "h2d") if split.share(phase) >= WORTH_SHARE]
    waits += [phase for phase in ("optimizer", "other") if split.share(phase) >= LARGE_SHARE]
    between = split.between_s / split.step.mean if split.step.mean > 0 else 0.0
    if between >= LARGE_SHARE and between > max(map(split.share, waits), default=0.0):
        return (
            f"{render_share(between)} of each step ({_of_step(split, split.between_s)}) passes between "
            "one call of the model and the next, in code of the script's own such as an environment."
        )
    evaluated = split.evaluated_s / split.step.mean if split.step.mean > 0 else 0.0
    if evaluated >= LARGE_SHARE and evaluated > max(map(split.share, waits), default=0.0):
        return (
            f"{render_share(evaluated)} of each step ({_of_step(split, split.evaluated_s)}) is spent in calls of a "
            "model in evaluation mode: a teacher's, or an evaluation after each step."
        )
    if not waits:
        return _compute(summary, split)
    phase = max(waits, key=split.share)
    part = f"{render_share(split.share(phase))} of each step ({_part(split, phase)})"
    if phase == "data":
        return f"{_who(summary, split)} for data {part}; {_without('the wait', split, phase)}."
    if phase == "comm":
        what = "Communication that no computing hides takes"
        return f"{what} {part}; {_without('it', split, phase)}."
    if phase == "h2d":
        return f"Copies to the GPU take {part}; {_without('them', split, phase)}."
    if phase == "optimizer":
        return f"The optimizer takes {part}."
    line = _slowest_other(rank)
    return (
        f"{part[0].upper()}{part[1:]} is spent outside loading, model and optimizer"
        f"{f', most of it at {_place(line)}' if line else ''}."
    )


def _compute(summary: Summary, split: Split) -> str:
    parts = [phase for phase in COMPUTE if split.phases.get(phase)]
    share = sum(split.share(phase) for phase in parts)
    names = " and ".join(COMPUTE[phase] for phase in parts) or "computing"
    rest = sorted((each for each in split.phases if each not in COMPUTE), key=split.share)
    then = ""
    if share < MOSTLY and rest:
        then = f", then comes {NOUNS.get(rest[-1], rest[-1])} with {render_share(split.share(rest[-1]))}"
    sm = _mean(summary.machines, "sm_pct")
    active = f"; the GPU's SMs are active {sm:.0f} % of the time" if sm is not None else ""
    verb = "takes" if len(parts) < 2 else "take"
    return f"Compute-bound: {names} {verb} {render_share(share)} of the step{then}{active}{_crowd(summary)}."


# -- parts of sentences --------------------------------------------------------------


def _crowd(summary: Summary) -> str:
    """Computing takes long where its threads wait for a core, whoever has it."""
    found = (each.stats.get("cpu.pressure_pct") for each in summary.machines)
    waited = max((stat.mean for stat in found if stat is not None), default=0.0)
    return (
        f"; some thread waited for a core {waited:.0f} % of the time"
        if waited >= WAITED_PCT
        else ""
    )


def _who(summary: Summary, split: Split) -> str:
    """Who waits: the device only where its own clock says so."""
    if not split.device_steps:
        return "Training waits"
    return "The GPUs wait" if len(summary.ranks) > 1 else "The GPU waits"


def _without(what: str, split: Split, phase: str) -> str:
    share = split.share(phase)
    rest = render_seconds(split.step.mean * (1 - share))
    if share > 0.99:
        return f"without {what} a step would take {rest}"
    return f"without {what} a step would take {rest}, {1 / (1 - share):.1f}× faster at most"


def _seen(summary: Summary, rank: Rank | None) -> str:
    """What can be said without steps: cores, GPUs, the slowest line."""
    parts = []
    busy = [each.stats["cpu.cores"] for each in summary.machines if "cpu.cores" in each.stats]
    if busy:
        allowed = [known_number(each.facts.get("cores_allowed")) for each in summary.machines]
        cores = [each for each in allowed if each is not None]
        of = f" of {sum(cores):g}" if len(cores) == len(allowed) else ""
        parts.append(f"the run kept {sum(stat.mean for stat in busy):.1f}{of} cores busy")
    duty = _mean(summary.machines, "duty_pct")
    if duty is not None:
        parts.append(f"the GPU load was {duty:.0f} %")
    if rank is not None and rank.lines:
        line = max(rank.lines, key=lambda each: each.own_s)
        part = f" ({render_share(line.own_s / summary.wall_s)})" if summary.wall_s > 0 else ""
        parts.append(f"the slowest line is {_place(line)}{part}")
    return ": " + ", ".join(parts) if parts else ""


def _ran_on_cpu(summary: Summary) -> str:
    models = [rank.facts.get("model") for rank in summary.ranks if isinstance(rank.facts, dict)]
    devices = {str(each.get("device")) for each in models if isinstance(each, dict)}
    return "; the model ran on the CPU" if devices == {"cpu"} else ""


def other_lines(rank: Rank) -> list[Line]:
    """Return the lines outside loading, model and optimizer; a trainer's `fit` holds those too."""
    split = rank.steady
    other_s = rank.startup_s or 0.0
    other_s += split.phases.get("other", 0.0) * split.steps if split else 0.0
    found = [line for line in rank.lines if line.phase == "other"]
    return [line for line in found if line.total_s <= FITS * other_s]


def _slowest_other(rank: Rank) -> Line | None:
    """The slowest line of other code, if steps alone can have made it the slowest."""
    slowest = max(other_lines(rank), key=lambda line: line.own_s, default=None)
    # Before the first step everything is `other`: imports, data sets, models.
    if slowest is None or rank.startup_s is None or slowest.own_s <= rank.startup_s:
        return None
    return slowest


def _place(line: Line) -> str:
    return f"{Path(line.file).name}:{line.line}"


def _phase_s(split: Split, phase: str) -> float:
    return split.step.mean * split.share(phase)


def _part(split: Split, phase: str) -> str:
    return _of_step(split, _phase_s(split, phase))


def _of_step(split: Split, seconds: float) -> str:
    whole = split.step.mean
    return f"{render_part(seconds, whole).split()[0]} of {render_part(whole, whole)}"


def _numbers(indexes: Sequence[int]) -> str:
    """Write GPU numbers, runs of them shortened: `GPUs 1–3, 7`."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"GPU{'s' if len(indexes) > 1 else ''} {text}"


def _mean(machines: Iterable[Machine], metric: str) -> float | None:
    """The mean of a metric over all GPUs that have it."""
    stats = [
        stat
        for machine in machines
        for number in gpu_numbers(machine)
        if (stat := machine.stats.get(f"gpu.{number}.{metric}")) is not None
    ]
    return mean_of(stats)


def median(values: Iterable[float]) -> float:
    """Return the middle value; `statistics` would cost more to import than the whole report.

    >>> median([3.0, 1.0, 2.0]), median([1.0, 2.0])
    (2.0, 1.5)
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean_of(stats: Sequence[Stat]) -> float | None:
    """Return the mean of means, each reading counted; None for no stats."""
    known = [(count, stat.mean) for stat in stats if (count := known_number(stat.count))]
    total = sum(count for count, _ in known)
    return sum(count * mean for count, mean in known) / total if total > 0 else None
