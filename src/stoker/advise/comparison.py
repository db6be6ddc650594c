"""Two runs side by side: what was set differently, what came out, and whether that is more than noise.

A change is told only if its 95 % interval leaves out zero; `noise` says how that is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stoker.advise.noise import MIN_BLOCKS, Estimate, difference, estimate
from stoker.advise.settings import Setting, differing_settings
from stoker.advise.verdict import MIN_STEADY_STEPS, slowest_rank
from stoker.units import plural, render_part, render_seconds, render_share
from stoker.watch.series import Row, Stat, known_number
from stoker.watch.summary import PHASES, Rank, Summary, make_split

# Of many machines a few are enough to see how much they swing.
MAX_MACHINES = 4

# Shares of time in which some process of a run waited for a CPU: from here on worth a note.
PRESSURE_PCT = 10.0

# What is asked of stats: how many values, and their mean; None where they are not there.
Told = Callable[[Mapping[str, Stat]], tuple[float, float] | None]

# How a change is judged; "not judged" where there is one number a run, or too little of it.
JUDGEMENTS = ("higher", "lower", "within noise", "not judged")


@dataclass(frozen=True)
class Figure:
    """One number of both runs, and what can be said of their difference."""

    key: str
    unit: str
    a: float | None
    b: float | None
    # The ends of the 95 % interval of b - a; None: not judged.
    low: float | None = None
    high: float | None = None

    @property
    def judgement(self) -> str:
        """Whether the change is beyond noise, and which way."""
        if self.low is None or self.high is None:
            return "not judged"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "within noise"

    @property
    def change(self) -> float | None:
        """The change as a share of the first run's number."""
        if self.a is None or self.b is None or self.a <= 0:
            return None
        return self.b / self.a - 1


@dataclass(frozen=True)
class Slowdown:
    """Whether the second run is slower than the first by more than a share, and why we think so."""

    # None: that cannot be told.
    is_slower: bool | None
    why: str


@dataclass(frozen=True)
class Comparison:
    """Everything that `stoker compare` shows."""

    a: Summary
    b: Summary
    settings: tuple[Setting, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    # What is compared, "step" or "sample", and its seconds in each run, where they are known.
    of: str
    times: tuple[Estimate | None, Estimate | None]

    @property
    def verdict(self) -> str:
        """Which run is faster, in a sentence."""
        return _verdict(self)

    def slower_by(self, share: float) -> Slowdown:
        """Say whether the second run is slower by more than `share`, beyond noise."""
        return _slower_by(self, share)


def compare(a: Summary, b: Summary) -> Comparison:
    """Compare two runs."""
    sides = _Side(a), _Side(b)
    of = "step"
    sizes = [side.samples for side in sides]
    if None not in sizes and sizes[0] != sizes[1]:
        of = "sample"
    times = tuple(side.time(of) for side in sides)
    return Comparison(
        a, b, differing_settings(a, b), tuple(_figures(*sides)), tuple(_notes(*sides)), of,
        (times[0], times[1]),
    )  # fmt: skip


# -- one run ------------------------------------------------------------------------------


class _Side:
    """What is asked of one run; its rows are read once."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.rank = slowest_rank(summary)
        self.steady = self.rank.steady if self.rank is not None else None
        self.ranks = len(summary.ranks)
        self.samples = self._samples()
        self._rows: Sequence[Row] = self.rank.rows if self.rank is not None else ()
        machines = summary.machines
        self._machines = machines[:: max(1, math.ceil(len(machines) / MAX_MACHINES))]

    def step(self) -> Estimate | None:
        """Return the seconds of a steady step."""
        return self._steps(_read("steady.step"))

    def time(self, of: str) -> Estimate | None:
        """Return the seconds of a step, or of a sample."""
        step = self.step()
        if of == "step" or step is None or not self.samples:
            return step if of == "step" else None
        return Estimate(step.value / self.samples, step.error / self.samples, step.freedom)

    def phase(self, phase: str) -> Estimate | None:
        """Return the seconds of a step that are of one phase."""

        def told(stats: Mapping[str, Stat]) -> tuple[float, float] | None:
            split = make_split(stats, "steady")
            if split is None or not split.phases:
                return None
            return split.device_steps or split.steps, split.step.mean * split.share(phase)

        return self._steps(told)

    def reading(self, told: Told) -> Estimate | None:
        """Return a reading of a machine while steady steps were taken, the mean of some machines."""
        start_s, end_s = self._span()
        found = []
        for machine in self._machines:
            rows = [row for row in machine.rows if start_s <= row.start_s and row.end_s <= end_s]
            each = estimate([pair for row in rows if (pair := told(row.stats)) is not None])
            if each is None:
                return None
            found.append(each)
        if not found:
            return None
        number = len(found)
        error = math.sqrt(sum(each.error**2 for each in found)) / number
        value = sum(each.value for each in found) / number
        return Estimate(value, error, min(each.freedom for each in found))

    def mean(self, told: Told) -> float | None:
        """Return a reading over the whole run, the mean of all machines."""
        means = [
            pair[1] for each in self.summary.machines if (pair := told(each.stats)) is not None
        ]
        return sum(means) / len(means) if means else None

    def _span(self) -> tuple[float, float]:
        """From when to when steady steps were taken; start-up and saving are left out."""
        rows = [row for row in self._rows if "steady.step" in row.stats]
        return (rows[0].start_s, rows[-1].end_s) if rows else (0.0, 0.0)

    def pressure_pct(self) -> float:
        """Return the share of time in which some process waited for a CPU, of the worst machine."""
        stats = [each.stats.get("cpu.pressure_pct") for each in self.summary.machines]
        return max((stat.mean for stat in stats if stat is not None), default=0.0)

    def _steps(self, told: Told) -> Estimate | None:
        if self.steady is None or self.steady.steps < MIN_STEADY_STEPS:
            return None
        return estimate([pair for row in self._rows if (pair := told(row.stats)) is not None])

    def _samples(self) -> int | None:
        """Return the samples of one step of all ranks; None where the loaders do not tell."""
        size = None if self.rank is None else samples_of(self.rank)
        return None if size is None else size * self.ranks


def samples_of(rank: Rank) -> int | None:
    """Return the samples that one rank takes in a step; None where that is not sure."""
    told = rank.facts.get("loaders")
    loaders = (
        [each for each in told.values() if isinstance(each, dict)] if isinstance(told, dict) else []
    )
    known = []
    for loader in loaders:
        size, batches, epochs = (
            known_number(loader.get(name)) for name in ("batch_size", "batches", "epochs")
        )
        if size is None or batches is None or epochs is None:
            return None
        known.append((batches * epochs, batches, size))
    if not known or rank.steps < MIN_STEADY_STEPS:
        return None
    # The loader of the training is the one that gave the most; the last epoch may be unfinished.
    most, epoch, size = max(known)
    low, high = (most - epoch) / rank.steps, most / rank.steps
    fitting = [number for number in range(1, 65) if 0.95 * low <= number <= 1.05 * high]
    return int(size) * fitting[0] if len(fitting) == 1 and size >= 1 else None


def _read(name: str) -> Told:
    def told(stats: Mapping[str, Stat]) -> tuple[float, float] | None:
        stat = stats.get(name)
        return None if stat is None else (stat.count, stat.mean)

    return told


def _read_gpus(metric: str) -> Told:
    def told(stats: Mapping[str, Stat]) -> tuple[float, float] | None:
        found = [
            stat
            for name, stat in stats.items()
            if name.startswith("gpu.") and name.endswith(f".{metric}")
        ]
        count = sum(stat.count for stat in found)
        return (count, sum(stat.count * stat.mean for stat in found) / count) if found else None

    return told


# Key, unit, and how to read it.
READINGS = (
    ("CPU cores", "", _read("cpu.cores")),
    ("memory", "GiB", _read("mem.rss_gib")),
    ("GPU load", "%", _read_gpus("duty_pct")),
    ("GPU SM", "%", _read_gpus("sm_pct")),
    ("GPU memory", "GiB", _read_gpus("mem_gib")),
)


# -- the figures ----------------------------------------------------------------------------


def _figures(a: _Side, b: _Side) -> list[Figure]:
    steps = [None if each.steady is None else each.steady.step.mean for each in (a, b)]
    figures = [_judged("step", "s", steps, (a.step(), b.step()))]
    figures += _rates(a, b)
    for phase in PHASES:
        values = [
            None if each.steady is None else each.steady.step.mean * each.steady.share(phase)
            for each in (a, b)
        ]
        if any(values):
            figures.append(_judged(phase, "s", values, (a.phase(phase), b.phase(phase))))
    figures += [
        Figure("start-up", "s", *(each.rank.startup_s if each.rank else None for each in (a, b))),
        Figure("whole time", "s", a.summary.wall_s, b.summary.wall_s),
    ]
    for key, unit, told in READINGS:
        found = a.reading(told), b.reading(told)
        values = [None if each is None else each.value for each in found]
        if None in values:
            values = [a.mean(told), b.mean(told)]
        if any(each is not None for each in values):
            figures.append(_judged(key, unit, values, found))
    return figures


def _rates(a: _Side, b: _Side) -> list[Figure]:
    """Samples a second of all ranks, and of each where their number differs."""
    figures = [_rate("samples", a, b, (1, 1))]
    if a.ranks != b.ranks:
        figures.append(_rate("samples of a rank", a, b, (a.ranks, b.ranks)))
    return [each for each in figures if each.a is not None or each.b is not None]


def _rate(key: str, a: _Side, b: _Side, parts: tuple[int, int]) -> Figure:
    rates: list[float | None] = []
    errors: list[Estimate | None] = []
    for side, part in zip((a, b), parts, strict=True):
        step, mean = side.step(), side.steady.step.mean if side.steady is not None else 0.0
        rate = side.samples / part / mean if side.samples is not None and mean > 0 else None
        rates.append(rate)
        errors.append(
            None if step is None or rate is None or step.value <= 0
            else Estimate(rate, rate * step.error / step.value, step.freedom)
        )  # fmt: skip
    return _judged(key, "/s", rates, errors)


def _judged(
    key: str, unit: str, values: Sequence[float | None], found: Sequence[Estimate | None]
) -> Figure:
    (a, b), (ours, theirs) = values, found
    if ours is None or theirs is None:
        return Figure(key, unit, a, b)
    return Figure(key, unit, a, b, *difference(ours, theirs))


# -- the words --------------------------------------------------------------------------------


def _verdict(comparison: Comparison) -> str:
    a, b = comparison.times
    if a is None or b is None:
        return f"It cannot be told which run is faster: {_missing(comparison)}."
    low, high = difference(a, b)
    if low <= 0 <= high:
        return (
            f"No difference beyond noise: a {comparison.of} takes {_pair(a, b)}. "
            f"A change of less than {render_share((high - low) / 2 / a.value)} would not be seen."
        )
    share = render_share(abs(b.value / a.value - 1))
    times = max(a.value, b.value) / min(a.value, b.value)
    word = "slower" if low > 0 else "faster"
    ends = sorted(abs(each) / a.value for each in (low, high))
    return (
        f"B is {times:.2f}× {word}: a {comparison.of} takes {_pair(a, b)}, {share} "
        f"{'more' if low > 0 else 'less'} ({_range(*ends)} with 95 % confidence)."
    )


def _slower_by(comparison: Comparison, share: float) -> Slowdown:
    a, b = comparison.times
    if a is None or b is None:
        return Slowdown(None, _missing(comparison))
    if comparison.of == "step" and len(comparison.a.ranks) != len(comparison.b.ranks):
        return Slowdown(
            None, "the runs have different numbers of ranks, and their batch is unknown"
        )
    low, high = difference(a, b, 1 + share)
    limit = render_share(share)
    if low > 0:
        return Slowdown(True, f"a {comparison.of} takes {_pair(a, b)}, and {limit} more is allowed")
    if high > 0 and (high - low) / 2 > share * a.value:
        noise = render_share((high - low) / 2 / a.value)
        return Slowdown(None, f"the noise of the two runs, ± {noise}, is wider than {limit}")
    return Slowdown(False, f"a {comparison.of} takes {_pair(a, b)}, within {limit}")


def _missing(comparison: Comparison) -> str:
    """Why the time of a step is not known well enough."""
    for name, summary in (("A", comparison.a), ("B", comparison.b)):
        rank = slowest_rank(summary)
        steps = rank.steady.steps if rank is not None and rank.steady is not None else 0
        if steps < MIN_STEADY_STEPS:
            return f"{name} has {plural(steps, 'steady step')}, and {MIN_STEADY_STEPS} are needed"
    return f"one of them has too few readings, and {MIN_BLOCKS} seconds of steps are needed"


def _pair(a: Estimate, b: Estimate) -> str:
    whole = max(a.value, b.value)
    if whole >= 120:
        return f"{render_seconds(a.value)} in A and {render_seconds(b.value)} in B"
    # Three digits of each: two could be the same where the change is beyond noise.
    unit = render_part(whole, whole).split()[1]
    factor = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit]
    return f"{a.value * factor:.3g} {unit} in A and {b.value * factor:.3g} {unit} in B"


def _range(low: float, high: float) -> str:
    return f"{render_share(low)[:-2]}–{render_share(high)}"


def _notes(a: _Side, b: _Side) -> list[str]:
    notes = []
    if a.ranks != b.ranks:
        larger = max(a, b, key=lambda each: each.ranks)
        sizes = f"A has {larger.summary.count_of(a.ranks)}, B has {b.ranks}"
        if a.samples is None or b.samples is None:
            notes.append(
                f"{sizes}, and how many samples a step takes is not known: steps are compared"
            )
        else:
            notes.append(
                f"{sizes}: compare samples a second; a step takes {a.samples} and {b.samples}"
            )
    elif a.samples is not None and b.samples is not None and a.samples != b.samples:
        notes.append(
            f"a step takes {a.samples} samples in A and {b.samples} in B: samples are compared"
        )
    for name, side in (("A", a), ("B", b)):
        if side.summary.state not in ("ended", "running"):
            notes.append(f"{name} {side.summary.ending}")
        if side.summary.damaged:
            notes.append(
                f"{name} has {plural(side.summary.damaged, 'damaged line')}, left out here"
            )
        if (waited := side.pressure_pct()) >= PRESSURE_PCT:
            notes.append(
                f"in {name} some process waited for a CPU {waited:.0f} % of the time: "
                "others on the machine may have slowed it"
            )
    clocks = {bool(each.steady.device_steps) for each in (a, b) if each.steady is not None}
    if len(clocks) > 1:
        notes.append(
            "one run was measured by the device's clock, the other by the host's: phases differ"
        )
    return notes
