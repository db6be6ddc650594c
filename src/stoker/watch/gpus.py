"""What the GPUs of a run are doing, whoever made them; each maker's library is a driver.

No library is needed where its GPUs are not. Nothing raises out of `Gpus`: what a GPU does
not tell is absent from the reading, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from stoker.watch.processes import GIB

MIB = 2**20
# Which processes are on a GPU, and the PCIe traffic of older ones, take milliseconds to ask for.
RARELY = 10
# A short run should not end before anybody has asked who is on its GPUs; frameworks take a few
# seconds to get there.
EARLY = (2, 4, 6, 8)

Note = Callable[[str], None]
Values = Mapping[str, float]
# Asks one thing of one GPU: what it is called, and how; returns `None` where there is no answer.
Ask = Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True)
class Gpu:
    """One GPU, or the part of it that a run may use; `None` is what it does not tell."""

    index: int
    uuid: str
    name: str
    kind: str
    driver: str | None
    memory_gib: float | None
    power_limit_w: float | None
    mig: bool
    has_gpm: bool
    max_clock_mhz: float | None = None


class GpuCounters(Protocol):
    """Counters of a GPU that tell what changed since they were last read."""

    def read(self) -> Values:
        """Return the change since the last call; nothing at the first."""

    def close(self) -> None:
        """Give back what they hold."""


@dataclass
class Card:
    """A GPU and what we have learnt about reading it."""

    index: int
    handle: Any
    uuid: str
    slices: dict[str, Any] = field(default_factory=dict)  # MIG: uuid → handle
    gpm: GpuCounters | None = None
    is_watched: bool = True
    is_lost: bool = False
    missing: set[str] = field(default_factory=set)

    @property
    def parts(self) -> list[Any]:
        """The handles that know memory and processes: the slices of a divided GPU, or itself."""
        return list(self.slices.values()) or [self.handle]


class Driver(Protocol):
    """One maker's library. All but `verdict` may raise whatever the library raises."""

    kind: str
    # What is asked at each reading, and what takes so long that it is asked rarely.
    questions: Mapping[str, Callable[[Card], Values]]
    rare_questions: Mapping[str, Callable[[Card], Values]]

    def cards(self) -> list[Card]:
        """Return the GPUs that the library shows, counted from 0."""

    def visible(self, cards: Sequence[Card], environ: Mapping[str, str], note: Note) -> None:
        """Leave unwatched what the environment hides from the run."""

    def describe(self, card: Card, ask: Ask) -> Gpu:
        """Return the facts of a GPU."""

    def memory_of(self, card: Card) -> dict[int, int]:
        """Return the processes on a GPU and the bytes that each holds there, 0 if untold."""

    def verdict(self, error: Exception) -> str:
        """Return what an error means: `lost` for the GPU, `never` for the question, or `retry`."""

    def close(self) -> None:
        """End the use of the library."""


def parse_visible(text: str | None, owners: Mapping[str, int], count: int) -> dict[int, list[str]]:
    """Return the GPUs that a variable such as CUDA_VISIBLE_DEVICES names, each with its slices.

    CUDA stops at the first word that names no GPU, so everything after `-1` is hidden.

    >>> parse_visible("1,GPU-ab,-1,0", {"GPU-aa1": 0, "GPU-ab2": 1, "GPU-ac3": 2}, 3)
    {1: []}
    >>> parse_visible("MIG-7", {"GPU-aa1": 0, "MIG-77": 0}, 1), parse_visible(None, {}, 2)
    ({0: ['MIG-77']}, {0: [], 1: []})
    """
    if text is None:
        return {index: [] for index in range(count)}
    found: dict[int, list[str]] = {}
    for word in (each.strip() for each in text.split(",")):
        if word.isdecimal() and int(word) < count:
            found.setdefault(int(word), [])
            continue
        uuids = [uuid for uuid in owners if uuid.lower().startswith(word.lower())]
        uuids = [word] if word in owners else uuids
        if not word.upper().startswith(("GPU-", "MIG-")) or len(uuids) != 1:
            break
        slices = found.setdefault(owners[uuids[0]], [])
        if uuids[0].startswith("MIG-"):
            slices.append(uuids[0])
    return found


class Gpus:
    """The GPUs of a run: those that it sees, and any other on which its processes turn up."""

    def __init__(self, drivers: Sequence[Driver], environ: Mapping[str, str], note: Note) -> None:
        self._note = note
        self._cards: list[tuple[Driver, Card]] = []
        self._facts: dict[int, Gpu] = {}
        self._drivers = list(drivers)
        self.used: set[int] = set()
        for driver in drivers:
            try:
                self._open(driver, environ)
            except Exception as error:  # a library that fails must not end a training run
                note(f"the {driver.kind} GPUs cannot be read: {error}")

    def _open(self, driver: Driver, environ: Mapping[str, str]) -> None:
        cards = driver.cards()
        driver.visible(cards, environ, self._note)
        others = len(self._cards)
        for card in cards:
            card.index += others
            self._cards.append((driver, card))
            if card.is_watched:
                self._describe(driver, card)

    def _describe(self, driver: Driver, card: Card) -> None:
        self._facts[card.index] = driver.describe(card, partial(self._ask, driver, card))

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that the run sees or uses."""
        return [self._facts[index] for index in sorted(self._facts)]

    def read(self, tick: int, is_new: bool, pids: Collection[int]) -> dict[str, float]:
        """Return one reading of all GPUs of the run.

        `tick` counts the readings; `is_new` says that enough time has passed since the last one
        for its counters to mean anything; `pids` are the processes of the run.
        """
        reading: dict[str, float] = {}
        for driver, card in self._cards:
            for name, value in self._values(driver, card, tick, is_new).items():
                reading[f"gpu.{card.index}.{name}"] = float(value)
            turn = (tick + card.index) % RARELY
            if turn == 0 or tick in EARLY:
                mine_gib = self._mine_gib(driver, card, pids)
                if mine_gib is not None:
                    reading[f"gpu.{card.index}.mine_gib"] = mine_gib
        return reading

    def _values(self, driver: Driver, card: Card, tick: int, is_new: bool) -> dict[str, float]:
        values: dict[str, float] = {}
        if not card.is_watched:
            return values
        questions = dict(driver.questions)
        if (tick + card.index) % RARELY == RARELY // 2:
            questions.update(driver.rare_questions)
        for what, question in questions.items():
            values.update(self._ask(driver, card, what, partial(question, card)) or {})
        if card.gpm and is_new:
            values.update(self._ask(driver, card, "gpm", card.gpm.read) or {})
        return values

    def _mine_gib(self, driver: Driver, card: Card, pids: Collection[int]) -> float | None:
        """Return what the run holds on a GPU; `None` if none of the processes there is known.

        In a container some drivers tell the numbers of the host, which match nothing.
        """
        held = self._ask(driver, card, "mine_gib", lambda: driver.memory_of(card)) or {}
        mine = [size for pid, size in held.items() if pid in pids]
        if not mine:
            return None
        self.used.add(card.index)
        if not card.is_watched:
            card.is_watched = True
            self._describe(driver, card)
            self._note(f"GPU {card.index} is used by the run, though the environment hides it")
        return sum(mine) / GIB or None

    def _ask(self, driver: Driver, card: Card, what: str, question: Callable[[], Any]) -> Any:
        if card.is_lost or what in card.missing:
            return None
        try:
            return question()
        except Exception as error:  # also what the library itself gets wrong
            self._learn(card, what, driver.verdict(error), error)
            return None

    def _learn(self, card: Card, what: str, verdict: str, error: Exception) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        if verdict == "lost":
            card.is_lost = True
            self._note(f"GPU {card.index} is lost: {reason}")
        elif verdict == "never":
            card.missing.add(what)
            self._note(f"GPU {card.index} does not tell {what}: {reason}")
        else:
            self._note(f"GPU {card.index} did not tell {what} for a while: {reason}")

    def close(self) -> None:
        """Free the counters and end the use of the libraries; errors at the end do not matter."""
        for driver, card in self._cards:
            if card.gpm:
                self._ask(driver, card, "close", card.gpm.close)
        for driver in self._drivers:
            try:
                driver.close()
            except Exception as error:
                self._note(f"the {driver.kind} library did not end well: {error}")
        self._cards, self._drivers = [], []


def open_gpus(environ: Mapping[str, str], note: Note, dev: Path = Path("/dev")) -> Gpus:
    """Return the GPUs of this machine; libraries are imported only where there are GPUs."""
    # Drivers know this module, so it meets them here.
    from stoker.watch.amd import Amd, has_amd
    from stoker.watch.nvidia import Nvidia, has_nvidia

    drivers: list[Driver] = []
    if has_nvidia(dev):
        nvml = _library("pynvml", "nvmlInit", "pip install nvidia-ml-py", note)
        drivers += [Nvidia(nvml)] if nvml else []
    if has_amd(dev):
        smi = _library("amdsmi", "amdsmi_init", "install amdsmi of your ROCm version", note)
        drivers += [Amd(smi)] if smi else []
    return Gpus(drivers, environ, note)


def _library(module: str, start: str, fix: str, note: Note) -> Any:
    try:
        library = import_module(module)
    except Exception as error:  # amdsmi raises KeyError or OSError where its C library is missing
        note(f"there are GPUs here, but {module} cannot be imported ({error}): {fix}")
        return None
    try:
        getattr(library, start)()
    except Exception as error:
        note(f"there are GPUs here, but {start} fails: {error}")
        return None
    return library
