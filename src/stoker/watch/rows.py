"""What was measured over some time: values as a stat, stats as a row, and rows merged to one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# Nothing that is measured or counted comes near; a larger number is damage.
LARGEST = 1e15
NUMBERS = (int, float)
PLAIN = frozenset(NUMBERS)


class Stat(NamedTuple):
    """A number of values: how many, their mean, standard deviation and largest."""

    count: int  # type: ignore[assignment]  # a tuple's own `count` is not needed
    mean: float
    std: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Stat:
        """Return the stat of the values.

        >>> Stat.of([1.0, 3.0])
        Stat(count=2, mean=2.0, std=1.0, max=3.0)
        """
        known = list(values)
        mean = math.fsum(known) / len(known)
        return cls(
            len(known),
            mean,
            math.sqrt(math.fsum((each - mean) * (each - mean) for each in known) / len(known)),
            max(known),
        )

    def merge(self, other: Stat) -> Stat:
        """Return the stat of both sets of values together."""
        count = self.count + other.count
        shift = other.mean - self.mean
        mean = self.mean + shift * other.count / count
        # Products and not powers: a power that is too large raises.
        square = (
            self.std * self.std * self.count
            + other.std * other.std * other.count
            + shift * shift * self.count * other.count / count
        )
        return Stat(count, mean, math.sqrt(square / count), max(self.max, other.max))

    def is_known(self) -> bool:
        """Say whether all of it can be reckoned with."""
        return self.count >= 1 and all(abs(each) < LARGEST for each in self)


class Row(NamedTuple):
    """What was measured from `start_s` to `end_s`, in seconds since the run began."""

    start_s: float
    end_s: float
    stats: Mapping[str, Stat]

    def merge(self, other: Row) -> Row:
        """Return one row that covers both."""
        stats = dict(self.stats)
        for name, stat in other.stats.items():
            stats[name] = stats[name].merge(stat) if name in stats else stat
        return Row(min(self.start_s, other.start_s), max(self.end_s, other.end_s), stats)


def merged(rows: Iterable[Row]) -> Row | None:
    """Return one row that covers all, or None for no rows."""
    all_rows = list(rows)
    if not all_rows:
        return None
    # Column by column: many times as fast as row after row.
    columns: dict[str, list[Stat]] = {}
    read: dict[int, list[Cells]] = {}
    for row in all_rows:
        if isinstance(row.stats, Cells):
            read.setdefault(id(row.stats.places), []).append(row.stats)
        else:
            for name, stat in row.stats.items():
                columns.setdefault(name, []).append(stat)
    for cells in read.values():
        for name, place in cells[0].places.items():
            stats = _column([each for each in cells if place < len(each.row)], place)
            if stats:
                columns.setdefault(name, []).extend(stats)
    return Row(
        min(row.start_s for row in all_rows),
        max(row.end_s for row in all_rows),
        {name: _together(stats) for name, stats in columns.items()},
    )


def _column(rows: list[Cells], place: int) -> list[Stat]:
    """Return the stats of a column; of values that stand alone, one stat for all of them."""
    cells = [each.row[place] for each in rows]
    is_plain = bool(cells) and PLAIN.issuperset(map(type, cells))
    if is_plain and min(cells) > -LARGEST and max(cells) < LARGEST:
        all_of_them = Stat.of(cells)
        # One that is not a number is neither the least nor the most, but in the mean.
        if all_of_them.is_known():
            return [all_of_them]
    return [stat for each in rows if (stat := each.at(place)) is not None]


def _together(stats: list[Stat]) -> Stat:
    if len(stats) == 1:
        return stats[0]
    count = sum([stat.count for stat in stats])
    mean = math.fsum([number * each for number, each, _, _ in stats]) / count
    square = math.fsum(
        [number * (std * std + (each - mean) * (each - mean)) for number, each, std, _ in stats]
    )
    return Stat(count, mean, math.sqrt(square / count), max([stat.max for stat in stats]))


class Cells(Mapping[str, Stat]):
    """The stats of a row as it was read; a cell is looked at when it is asked for."""

    __slots__ = ("places", "row")

    def __init__(self, places: Mapping[str, int], row: list[Any]) -> None:
        self.places, self.row = places, row

    def at(self, place: int) -> Stat | None:
        """Return the stat at one place of the row; it is kept there."""
        if place >= len(self.row):
            return None
        cell = self.row[place]
        if type(cell) is not Stat and cell is not None:
            cell = self.row[place] = read_stat(cell)
        known: Stat | None = cell
        return known

    def get(self, name: str, default: Any = None) -> Any:
        """Return the stat of that name, if there is one."""
        place = self.places.get(name)
        stat = None if place is None else self.at(place)
        return default if stat is None else stat

    def items(self) -> Any:
        """Return names and stats."""
        return self._known().items()

    def _known(self) -> dict[str, Stat]:
        pairs = self.places.items()
        return {name: stat for name, place in pairs if (stat := self.at(place)) is not None}

    def __getitem__(self, name: str) -> Stat:
        stat: Stat | None = self.get(name)
        if stat is None:
            raise KeyError(name)
        return stat

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


def known_number(value: object) -> float | None:
    """Return a number that can be reckoned with; None for anything else.

    >>> known_number(3), known_number("3"), known_number(True), known_number(float("nan"))
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        return None
    return float(value) if -LARGEST < value < LARGEST else None


def read_stat(cell: object) -> Stat | None:
    """Return the stat that a cell of a file stands for; None if it is none."""
    # Called for each cell of a file: the type is asked for, not whether it is a kind of number.
    if type(cell) in NUMBERS:
        value = known_number(cell)
        return None if value is None else Stat(1, value, 0.0, value)
    if type(cell) is not list or len(cell) != 4:
        return None
    for each in cell:
        if type(each) not in NUMBERS or not -LARGEST < each < LARGEST:
            return None
    count, mean, std, largest = cell
    return Stat(int(count), float(mean), float(std), float(largest)) if count >= 1 else None
