"""A table of files and labels: CSV in all its kinds, with or without a first line of names."""

from __future__ import annotations

import csv
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from stoker.data.sample import Sample
from stoker.data.sources.files import grouped, refuse_missing
from stoker.errors import DataError, UsageError, nearest

TABLES = {".csv": ",;\t|", ".tsv": "\t"}
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image",
                "image_path", "img", "name")  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "target", "category", "label_name", "y")
# More names of classes than this are no classes: it is a column of texts.
MAX_LABELS = 1 << 20


class Columns(NamedTuple):
    """Which column is which, and whether the first line has their names."""

    path: int
    label: int | None
    has_head: bool


class TableSource:
    """The files that a table names, with their labels."""

    def __init__(self, path: Path, path_column: str | None, label_column: str | None) -> None:
        self.path, self.may_repeat, self.skipped = path, True, 0
        self.is_files = True
        self._columns = self._find_columns(path_column, label_column)
        found = {label for _, _, label in self._checked()}
        if not found:
            raise DataError(
                f"`{path}` has no samples",
                why="no row of it names a file" + " after the first" * self._columns.has_head,
                fix="one path in each row",
            )
        labels = found - {""}
        self._is_number = all(_is_label(each) for each in labels)
        self.label_names = [] if self._is_number else sorted(labels)

    def samples(self) -> Iterator[Sample]:
        """Yield every sample in the order of the table."""
        names = {name: label for label, name in enumerate(self.label_names)}

        def number(label: str) -> int | None:
            if not label:
                return None
            return int(_whole(label)) if self._is_number else names[label]

        yield from grouped(
            (name, self._place(name), number(label)) for _, name, label in self._rows()
        )

    def _checked(self) -> Iterator[tuple[int, str, str]]:
        """Yield all rows once, and refuse a table with files that are not there."""
        refuse_missing(
            str(self.path), ((line, self._place(name)) for line, name, _ in self._rows())
        )
        seen: set[str] = set()
        for row in self._rows():
            seen.add(row[2])
            if len(seen) > MAX_LABELS:
                raise DataError(
                    f"`{self.path}` has more than {MAX_LABELS:,} different labels",
                    why="a label is the name or the number of a class; this is something else",
                    fix="--label-column NAME, with another column; or a table without it",
                )
            yield row

    def _place(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.path.parent}/{name}"

    def _rows(self) -> Iterator[tuple[int, str, str]]:
        """Yield line, path and label."""
        path, label, has_head = self._columns
        for line, row in self._lines(1 if has_head else 0):
            if len(row) > path and (name := row[path].strip()):
                found = row[label].strip() if label is not None and len(row) > label else ""
                yield line, name, _readable(found)

    def _lines(self, start: int, stop: int | None = None) -> Iterator[tuple[int, list[str]]]:
        with self._open() as file:
            rows = csv.reader(file, delimiter=self._delimiter())
            try:
                for row in islice(rows, start, stop):
                    yield rows.line_num, row
            except csv.Error as error:
                raise DataError(
                    f"line {rows.line_num} of `{self.path}` cannot be read",
                    why=str(error),
                    fix="mend the line: a quote may be missing",
                ) from None

    def _open(self) -> IO[str]:
        """Open it as text; tables of Windows may be UTF-16, and say so with their first bytes."""
        with self.path.open("rb") as file:
            is_wide = file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
        if is_wide:
            return self.path.open(encoding="utf-16", errors="replace", newline="")
        # Names of files are bytes, whatever they mean to others.
        return self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")

    def _delimiter(self) -> str:
        """Return the sign that stands most often in the first line."""
        with self._open() as file:
            line = file.readline(1 << 16)
        return max(TABLES[self.path.suffix.lower()], key=line.count)

    # -- which column is which

    def _find_columns(self, path_name: str | None, label_name: str | None) -> Columns:
        rows = [row for _, row in self._lines(0, 2)]
        head = [each.strip() for each in rows[0]] if rows else []
        lower = [each.lower() for each in head]
        path = _named(lower, PATH_COLUMNS) if path_name is None else self._asked(head, path_name)
        has_head = path is not None and not (path_name or "").isdigit()
        if path is None:
            path, has_head = self._guess_path(rows)
        elif not has_head:
            has_head = not self._is_file(head[path])
        if label_name is not None:
            label: int | None = self._asked(head, label_name)
            has_head = has_head or not label_name.isdigit()
        else:
            label = _named(lower, LABEL_COLUMNS) if has_head else None
            if label is None and len(head) == 2:
                label = 1 - path
        return Columns(path, label, has_head)

    def _asked(self, head: Sequence[str], name: str) -> int:
        """Return the column with a name, or with a number that counts from 1."""
        if name in head:
            return list(head).index(name)
        if name.isdigit() and 1 <= int(name) <= len(head):
            return int(name) - 1
        match = nearest(name, head)
        raise UsageError(
            f"`{self.path}` has no column `{name}`",
            why=f"its first line is: {', '.join(head) or 'empty'}",
            fix=f"`{match}`" if match else "one of these names, or a number from 1 on",
        )

    def _guess_path(self, rows: list[list[str]]) -> tuple[int, bool]:
        """Find the column whose entry is a file: in the first line, or in the second."""
        for has_head, row in enumerate(rows):
            for column, name in enumerate(row):
                if self._is_file(name.strip()):
                    return column, bool(has_head)
        head = ", ".join(rows[0]) if rows else ""
        raise DataError(
            f"`{self.path}` has no column with paths",
            why=f"its first line is: {head or 'empty'}; none of it is the name of such a column "
            "or of a file",
            fix="--path-column NAME, and --label-column NAME for the labels",
        )

    def _is_file(self, name: str) -> bool:
        return bool(name) and "\0" not in name and os.path.isfile(self._place(name))  # noqa: PTH113


def _readable(label: str) -> str:
    """Return a label that is not UTF-8 as what it most often is instead.

    >>> _readable(b"caf\\xe9".decode("utf-8", "surrogateescape"))
    'café'
    """
    try:
        label.encode()
    except UnicodeEncodeError:
        return label.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
    return label


def _named(head: Sequence[str], wanted: Sequence[str]) -> int | None:
    return next((head.index(each) for each in wanted if each in head), None)


def _whole(label: str) -> str:
    """Return a number without the point that pandas gives all of them where one is missing."""
    return label.removesuffix(".0")


def _is_label(text: str) -> bool:
    number = _whole(text)
    return (
        number.removeprefix("-").isdigit()
        and number.isascii()
        and len(number) < 12
        and abs(int(number)) < 1 << 31
    )
