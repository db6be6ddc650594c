"""Readings over time in a file of bounded size, readable whatever happens to the writer.

A file is JSON lines: a head, then lines of column names, then rows `[start, end, stat, …]`.
Rows are appended; now and then the older ones are merged to coarser ones and the file is
replaced as a whole. A torn last line is ignored by the reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1

# With 8 GPUs a merged row of readings takes about 2 kB.
MAX_COARSE_ROWS = 768
# What a live view and the end of a run want to see finely: five minutes of one reading a second.
FINE_ROWS = 300
# The steps of one rank, of which a node may have eight: together under 5 MB a node
# (benchmarks/size.md).
MAX_COARSE_STEP_ROWS = 192
FINE_STEP_ROWS = 60
# Nothing that is measured or counted comes near; a larger number is damage.
LARGEST = 1e15


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
    whole: Row | None = None
    for row in rows:
        whole = row if whole is None else whole.merge(row)
    return whole


class SeriesWriter:
    """Appends rows to one file and keeps it bounded. Raises OSError when the disk refuses."""

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        max_coarse: int | None = None,
        fine: int | None = None,
    ) -> None:
        self.path = path
        self._max_coarse = max_coarse or MAX_COARSE_ROWS
        self._fine_rows = fine or FINE_ROWS
        self._head = {"format": FORMAT, **head}
        self._columns: list[str] = []
        self._coarse: list[Row] = []
        self._fine: list[Row] = []
        self._bin_s = 1.0
        self._file = path.open("ab", buffering=0)
        # Whether the file may end within a line.
        self._is_torn = self._file.tell() > 0
        if not self._is_torn:
            self._put(_line(self._head))

    def append(self, row: Row) -> None:
        """Add one row; it is in the file, or at least in the kernel, when this returns."""
        self._fine.append(row)
        try:
            if len(self._fine) > 2 * self._fine_rows:
                self._rewrite()
            else:
                self._put(self._encode(row))
        except OSError:
            # Nobody knows what is in the file now: the next row names its columns again.
            self._columns, self._is_torn = [], True
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        # A disk that is nearly full takes a part, and says why when it is given the rest.
        while data:
            data = data[self._file.write(data) :]
        self._is_torn = False

    def _encode(self, row: Row) -> bytes:
        new = [name for name in row.stats if name not in self._columns]
        text = b""
        if new:
            self._columns.extend(new)
            text = _line({"columns": self._columns})
        cells = [_cell(row.stats.get(name)) for name in self._columns]
        return text + _line([round(row.start_s, 3), round(row.end_s, 3), *cells])

    def _rewrite(self) -> None:
        """Merge what is old, and replace the file by the shorter one."""
        kept = self._fine_rows
        coarse, fine = [*self._coarse, *self._fine[:-kept]], self._fine[-kept:]
        bin_s = self._bin_s
        while len(coarse := _binned(coarse, bin_s)) > self._max_coarse:
            bin_s *= 2
        self._columns = []
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with temporary.open("wb") as file:
                file.write(_line(self._head))
                for row in (*coarse, *fine):
                    file.write(self._encode(row))
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._coarse, self._fine, self._bin_s = coarse, fine, bin_s
        self._file.close()
        self._file = self.path.open("ab", buffering=0)
        self._is_torn = False


def _binned(rows: list[Row], bin_s: float) -> list[Row]:
    binned: list[Row] = []
    for row in rows:
        # Towards zero: wide enough a bin holds everything, also from before the run began.
        if binned and int(binned[-1].start_s / bin_s) == int(row.start_s / bin_s):
            binned[-1] = binned[-1].merge(row)
        else:
            binned.append(row)
    return binned


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _cell(stat: Stat | None) -> object:
    if stat is None:
        return None
    if stat.count == 1:
        return _short(stat.mean)
    return [stat.count, _short(stat.mean), _short(stat.std), _short(stat.max)]


def _short(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def read_series(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return the head and the rows; what cannot be read, such as a torn last line, is left out."""
    head: dict[str, Any] = {}
    rows: list[Row] = []
    columns: list[str] = []
    for value in _values(path):
        if isinstance(value, dict) and "columns" in value:
            if isinstance(value["columns"], list):
                columns = [str(each) for each in value["columns"]]
        elif isinstance(value, dict):
            head = head or value
        elif isinstance(value, list) and len(value) >= 2:
            start_s, end_s = known_number(value[0]), known_number(value[1])
            if start_s is None or end_s is None:
                continue
            stats = {
                name: stat
                for name, cell in zip(columns, value[2:], strict=False)
                if (stat := _stat(cell)) is not None
            }
            rows.append(Row(start_s, end_s, stats))
    return head, rows


def known_number(value: object) -> float | None:
    """Return a number that can be reckoned with; None for anything else.

    >>> known_number(3), known_number("3"), known_number(True), known_number(float("nan"))
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < LARGEST else None


def _values(path: Path) -> Iterator[object]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _stat(cell: object) -> Stat | None:
    cells = cell if isinstance(cell, list) else [1, cell, 0, cell]
    known = [number for each in cells if (number := known_number(each)) is not None]
    if len(cells) != 4 or len(known) != 4 or known[0] < 1:
        return None
    return Stat(int(known[0]), known[1], known[2], known[3])
