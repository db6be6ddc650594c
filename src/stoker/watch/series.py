"""Readings over time in a file of bounded size, readable whatever happens to the writer.

A file is JSON lines: a head, then lines of column names, then rows `[start, end, stat, …]`.
Rows are appended; now and then the older ones are merged to coarser ones and the file is
replaced as a whole. A torn last line is ignored by the reader. Every so many rows, and at the
end, the columns are followed by the total of all rows so far: whoever wants the whole and not
the rows reads the last of these lines and the few rows after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from stoker.watch.rows import Cells, Row, Stat, known_number, merged

__all__ = [
    "FINE_ROWS", "FINE_STEP_ROWS", "FORMAT", "MAX_COARSE_ROWS", "MAX_COARSE_STEP_ROWS", "Row",
    "SeriesWriter", "Stat", "Whole", "known_number", "merged", "read_series", "read_whole",
]  # fmt: skip

FORMAT = 1

# With 8 GPUs a merged row of readings takes about 2 kB.
MAX_COARSE_ROWS = 576
# What a live view and the end of a run want to see finely: five minutes of one reading a second.
FINE_ROWS = 300
# The steps of one rank, of which a node may have eight: together under 5 MB a node
# (benchmarks/size.md).
MAX_COARSE_STEP_ROWS = 192
FINE_STEP_ROWS = 60
# So many totals while the fine rows fill up once: their size stays small beside the rows', and a
# reader of a run that was killed has few rows to add.
TOTALS = 4
# More than a value has, as a total stands for many.
TOTAL_DIGITS = 6
# Where a head ends, and where the last total is looked for: usually, and if the writer was killed.
HEAD_BYTES = 4096
TOTAL_START = b'\n{"total":'
TAIL_BYTES = (1 << 15, 1 << 18)
# The same few names in thousands of files: they are kept once.
KEPT_PLACES = 64


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
        self._total: Row | None = None
        # Rows that no total in the file covers.
        self._rest = 0
        self._file = path.open("ab", buffering=0)
        # Whether the file may end within a line.
        self._is_torn = self._file.tell() > 0
        # Of a file that another writer began, the total is unknown until it is replaced.
        self._has_total = not self._is_torn
        if not self._is_torn:
            self._put(_line(self._head))

    def append(self, row: Row) -> None:
        """Add one row; it is in the file, or at least in the kernel, when this returns."""
        if not all(stat.is_known() for stat in row.stats.values()):
            # Merged with others, one that is not a number would spoil them.
            known = {name: stat for name, stat in row.stats.items() if stat.is_known()}
            row = Row(row.start_s, row.end_s, known)
        self._fine.append(row)
        self._total = row if self._total is None else self._total.merge(row)
        self._rest += 1
        try:
            if len(self._fine) > 2 * self._fine_rows:
                self._rewrite()
            else:
                self._put(self._encode(row))
                if self._rest >= self._fine_rows / TOTALS:
                    self._put_total()
        except OSError:
            # Nobody knows what is in the file now: the next row names its columns again.
            self._columns, self._is_torn = [], True
            raise

    def close(self) -> None:
        """Close the file, with a last total if there is room for it."""
        with suppress(OSError):
            self._put_total()
        self._file.close()

    def _put(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        # A disk that is nearly full takes a part, and says why when it is given the rest.
        while data:
            data = data[self._file.write(data) :]
        self._is_torn = False

    def _put_total(self) -> None:
        if self._has_total and self._rest:
            self._put(self._encode_total())
            self._rest = 0

    def _encode(self, row: Row) -> bytes:
        text = _line({"columns": self._columns}) if self._extend_columns(row) else b""
        return text + _line(_cells(row, self._columns))

    def _encode_total(self) -> bytes:
        if self._total is None:
            return b""
        self._extend_columns(self._total)
        cells = _cells(self._total, self._columns, TOTAL_DIGITS)
        return _line({"total": cells, "columns": self._columns})

    def _extend_columns(self, row: Row) -> bool:
        """Name what is new; say whether anything is."""
        named = set(self._columns)
        new = [name for name in row.stats if name not in named]
        self._columns.extend(new)
        return bool(new)

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
                file.write(self._encode_total())
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._coarse, self._fine, self._bin_s = coarse, fine, bin_s
        self._file.close()
        self._file = self.path.open("ab", buffering=0)
        self._is_torn, self._has_total, self._rest = False, True, 0


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


def _cells(row: Row, columns: Iterable[str], digits: int = 4) -> list[object]:
    cells = [_cell(row.stats.get(name), digits) for name in columns]
    return [round(row.start_s, 3), round(row.end_s, 3), *cells]


def _cell(stat: Stat | None, digits: int) -> object:
    if stat is None:
        return None
    if stat.count == 1:
        return _short(stat.mean, digits)
    return [stat.count, *(_short(each, digits) for each in stat[1:])]


def _short(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


class Whole(NamedTuple):
    """A series without its rows: the head, one row that covers all, lines that are damaged."""

    head: Mapping[str, Any]
    row: Row | None
    damaged: int


def read_series(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return the head and the rows; what cannot be read, such as a torn last line, is left out."""
    reader = _Reader()
    with suppress(OSError):
        reader.take_all(path.read_bytes())
    return reader.head, reader.rows


def read_whole(path: Path, *, is_checked: bool = False) -> Whole:
    """Return what a series comes to, from its last total and the rows after it.

    Without a total, all rows are read. `is_checked`: every line is looked at, for damage.
    """
    try:
        with path.open("rb") as file:
            for size in () if is_checked else TAIL_BYTES:
                if size >= os.fstat(file.fileno()).st_size:
                    break
                head = file.read(HEAD_BYTES).partition(b"\n")[0]
                file.seek(-size, os.SEEK_END)
                # The first line is cut, most likely.
                whole = _read_end(head, file.read().partition(b"\n")[2])
                if whole is not None:
                    return whole
                file.seek(0)
            return _read_all(file.read(), is_checked)
    except OSError:
        return Whole({}, None, 0)


def _read_all(data: bytes, is_checked: bool) -> Whole:
    at = data.rfind(TOTAL_START)
    begin = _Reader()
    if at > 0:
        head, _, before = data[: at + 1].partition(b"\n")
        whole = _read_end(head, data[at + 1 :])
        if whole is not None:
            if is_checked:
                begin.check_all(before)
            return whole._replace(damaged=whole.damaged + begin.damaged)
    begin.take_all(data)
    return Whole(begin.head, merged(begin.rows), begin.damaged)


def _read_end(head: bytes, data: bytes) -> Whole | None:
    """Return the whole of a series by its end; None if there is no total in it."""
    at = (b"\n" + data).rfind(TOTAL_START)
    if at < 0:
        return None
    reader = _Reader()
    reader.take_all(head + b"\n" + data[at:])
    if reader.total is None:
        return None
    rest = merged(reader.rows)
    whole = reader.total.merge(rest) if rest else reader.total
    return Whole(reader.head, whole, reader.damaged)


class _Reader:
    """Lines of a series, one after the other."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.rows: list[Row] = []
        self.total: Row | None = None
        self.damaged = 0
        self._places: dict[str, int] = {}

    def take_all(self, data: bytes) -> None:
        """Take every line; the last one may be torn, which is how a killed writer leaves it."""
        *lines, last = data.split(b"\n")
        for line in lines:
            self.damaged += not self.take(line)
        self.take(last)

    def check_all(self, data: bytes) -> None:
        """Count lines that are damaged, and keep nothing."""
        for line in data.split(b"\n"):
            value = _value(line) if line else {}
            self.damaged += not isinstance(value, dict) and _times(value) is None

    def take(self, line: bytes) -> bool:
        """Take one line; say whether it was sound."""
        if not line:
            return True
        value = _value(line)
        if isinstance(value, dict):
            return self._take_object(value)
        row = self._row(value)
        if row is not None:
            self.rows.append(row)
        return row is not None

    def _take_object(self, value: dict[str, Any]) -> bool:
        if "columns" not in value:
            self.head = self.head or value
            return True
        named = value["columns"]
        if not isinstance(named, list):
            return False
        self._places = _places(tuple(map(str, named)))
        if "total" not in value:
            return True
        total = self._row(value["total"])
        self.total = total or self.total
        return total is not None

    def _row(self, value: object) -> Row | None:
        times = _times(value)
        if times is None or not isinstance(value, list):
            return None
        return Row(*times, Cells(self._places, value))


@lru_cache(maxsize=KEPT_PLACES)
def _places(names: tuple[str, ...]) -> dict[str, int]:
    """Return where each name has its cell."""
    return {name: place for place, name in enumerate(names, 2)}


def _times(value: object) -> tuple[float, float] | None:
    """Return when a row begins and ends; None if it is no row."""
    if not isinstance(value, list) or len(value) < 2:
        return None
    start_s, end_s = known_number(value[0]), known_number(value[1])
    return None if start_s is None or end_s is None else (start_s, end_s)


def _value(line: bytes) -> object:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value
