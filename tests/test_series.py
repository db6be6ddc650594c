"""Series of readings: exact when merged, bounded in size, readable whatever happened to the writer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from stoker.watch import series
from stoker.watch.series import Row, SeriesWriter, Stat, merged, read_series, read_whole

# Of the size of anything that is measured: no value that is nearly nothing beside a huge one.
values = st.floats(-1e6, 1e6).map(lambda each: round(each, 6))


def one(value: float) -> Stat:
    return Stat(1, value, 0.0, value)


def row(second: float, **stats: float) -> Row:
    return Row(second, second + 1, {name: one(value) for name, value in stats.items()})


def write(path: Path, rows: Sequence[Row]) -> None:
    writer = SeriesWriter(path, {"kind": "samples"})
    for each in rows:
        writer.append(each)
    writer.close()


def same(found: Stat, wanted: Stat) -> bool:
    return found.count == wanted.count and all(
        math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-3)
        for one, other in zip(found[1:], wanted[1:], strict=True)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are merged after a few rows, so that few are enough."""
    monkeypatch.setattr(series, "FINE_ROWS", 5)
    monkeypatch.setattr(series, "MAX_COARSE_ROWS", 8)


# -- stats -----------------------------------------------------------------------------


@given(st.lists(values, min_size=1), st.lists(values, min_size=1))
def test_the_stat_of_two_sets_is_that_of_all_their_values(
    left: list[float], right: list[float]
) -> None:
    assert same(Stat.of(left).merge(Stat.of(right)), Stat.of([*left, *right]))


@given(st.lists(st.lists(values, min_size=1), min_size=1, max_size=6))
def test_rows_merge_to_the_stat_of_everything_in_any_grouping(groups: list[list[float]]) -> None:
    rows = [Row(at, at + 1, {"a": Stat.of(group)}) for at, group in enumerate(groups)]
    whole = Stat.of([value for group in groups for value in group])
    forwards, backwards = merged(rows), merged(reversed(rows))
    assert forwards is not None
    assert backwards is not None
    assert same(forwards.stats["a"], whole)
    assert same(backwards.stats["a"], whole)
    assert (forwards.start_s, forwards.end_s) == (0, len(groups))


def test_a_measure_that_only_some_rows_have_is_not_diluted_by_the_others() -> None:
    whole = merged([row(0, a=1), row(1, a=3, b=7), row(2, a=5)])
    assert whole is not None
    assert whole.stats == {"a": Stat.of([1, 3, 5]), "b": one(7)}


def test_no_rows_are_no_row() -> None:
    assert merged([]) is None


# -- writing and reading ---------------------------------------------------------------


def test_what_was_written_is_read(path: Path) -> None:
    rows = [row(0, a=1.5, b=-2), Row(1, 2.25, {"a": Stat(4, 2.5, 0.25, 3.0)}), row(3)]
    write(path, rows)
    assert read_series(path) == ({"format": series.FORMAT, "kind": "samples"}, rows)


def test_four_digits_of_a_value_are_kept_and_milliseconds_of_a_time(path: Path) -> None:
    write(path, [Row(1.23456, 2.5, {"a": one(123456.0), "b": one(0.000123456)})])
    (found,) = read_series(path)[1]
    assert (found.start_s, found.end_s) == (1.235, 2.5)
    assert found.stats == {"a": one(123500), "b": one(0.0001235)}


def test_measures_that_come_later_take_their_own_columns(path: Path) -> None:
    rows = [row(0, b=1), row(1, a=2), row(2, b=3, c=4, a=5), row(3, c=6)]
    write(path, rows)
    assert read_series(path)[1] == rows
    # Columns are named when they are new and with the total, not in every row.
    assert path.read_bytes().count(b"columns") == 3 + 1


def test_a_row_is_in_the_file_as_soon_as_it_is_appended(path: Path) -> None:
    writer = SeriesWriter(path, {})
    for second in range(3):
        writer.append(row(second, a=second))
        assert len(read_series(path)[1]) == second + 1
    writer.close()


def test_a_file_that_is_not_there_has_neither_head_nor_rows(path: Path) -> None:
    assert read_series(path) == ({}, [])


# -- damage ----------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_has_the_rows_before_the_cut(path: Path) -> None:
    rows = [row(0, a=1.5), Row(1, 2, {"a": Stat(3, 1, 0.5, 2), "b": one(7)}), row(2, b=3)]
    write(path, rows)
    whole = path.read_bytes()
    whole_lines = whole.split(b"\n")
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = read_series(path)[1]
        assert found == rows[: len(found)]
        # A row is lost only if the cut is in it: an end of line at the very end is not missed.
        lines = whole[:length].split(b"\n")
        assert len(found) == sum(line.startswith(b"[") and line in whole_lines for line in lines)


def test_a_writer_that_comes_after_a_torn_line_is_not_misread(path: Path) -> None:
    write(path, [row(0, a=1)])
    with path.open("ab") as file:
        file.write(b'{"columns":["a","b')
    write(path, [row(1, b=2)])
    assert read_series(path)[1] == [row(0, a=1), row(1, b=2)]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\x00", b"null", b"7", b'"text"', b"[]", b"[1]", b'["a",2]', b"[null,1]", b"[1,[2]]",
        b"[NaN,1]", b"[1,Infinity]", b"[" * 99_999, b"[1,1" + b"0" * 400 + b"]", b"[true,false]",
        b'{"columns":7}', b'{"columns":[["a"],{}]}',
    ],
)  # fmt: skip
def test_a_line_of_garbage_is_left_out(line: bytes, path: Path) -> None:
    write(path, [row(0, a=1)])
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, [row(1, a=2)])
    assert read_series(path) == ({"format": 1, "kind": "samples"}, [row(0, a=1), row(1, a=2)])


@pytest.mark.parametrize(
    "cell",
    ['"a"', "{}", "[]", "[1,2,3]", '["a",1,0,1]', "[0,1,0,1]", "[-2,1,0,1]", "[1,null,0,1]",
     "[1e300,1,0,1]", "NaN", "[2,NaN,0,1]", "1e999", "1" + "0" * 400, "true"],
)  # fmt: skip
def test_a_cell_that_is_no_stat_is_left_out(cell: str, path: Path) -> None:
    path.write_text(f'{{"columns":["a","b"]}}\n[0,1,{cell},7]\n')
    assert read_series(path)[1] == [row(0, b=7)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["columns", "a", ""]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.just("columns"), inner),
    max_leaves=8,
)


@given(st.lists(json_values.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=20)))
def test_no_file_breaks_the_reader_or_what_is_made_of_it(lines: list[bytes]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(lines))
        file.flush()
        merged(read_series(Path(file.name))[1])


# -- bounds ----------------------------------------------------------------------------


@pytest.mark.usefixtures("short")
def test_a_long_run_stays_within_its_bounds_and_loses_nothing(path: Path) -> None:
    writer = SeriesWriter(path, {})
    largest = 0
    for second in range(3000):
        writer.append(row(second, a=second))
        if second % 50 == 0:
            rows = read_series(path)[1]
            assert len(rows) <= 8 + 2 * 5
            assert sum(each.stats["a"].count for each in rows) == second + 1
            largest = max(largest, path.stat().st_size)
    writer.close()
    rows = read_series(path)[1]
    whole = merged(rows)
    assert whole is not None
    assert whole.stats["a"] == pytest.approx(Stat.of(range(3000)), rel=1e-3)
    assert rows == sorted(rows)
    # The end is as fine as it was measured.
    assert rows[-5:] == [row(second, a=second) for second in range(2995, 3000)]
    assert largest < 60 * (8 + 2 * 5)


def test_a_node_with_eight_gpus_stays_under_five_megabytes(path: Path) -> None:
    """As many rows as there can be, with 12 readings of each GPU and 30 others."""
    names = [*(f"gpu.{gpu}.{each}" for gpu in range(8) for each in range(12)), *map(str, range(30))]

    def size(stat: Stat) -> tuple[int, int]:
        write(
            path, [Row(86_400 + each, 86_401 + each, dict.fromkeys(names, stat)) for each in (0, 1)]
        )
        *_, line, total = path.read_bytes().splitlines()
        path.unlink()
        return len(line), len(total)

    (fine, _), (coarse, total) = size(one(12.34)), size(Stat(1024, 12.3456, 56.7856, 98.7654))
    rows = series.MAX_COARSE_ROWS * coarse + 2 * series.FINE_ROWS * fine
    assert rows + 2 * series.TOTALS * total < 5e6


gaps = st.sampled_from([0.0, 0.25, 1.0, 1.0, 1.0, 60.0, -1.0, 1e5, 1e9])


@settings(max_examples=examples(40))
@given(st.lists(gaps, max_size=150))
def test_no_pace_of_rows_breaks_the_bounds(gaps: list[float]) -> None:
    """Also for a clock that jumps, forwards or backwards."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "FINE_ROWS", 3)
        patch.setattr(series, "MAX_COARSE_ROWS", 4)
        path, second = Path(folder) / "x.jsonl", 0.0
        writer = SeriesWriter(path, {})
        for gap in gaps:
            second += gap
            writer.append(row(second, a=1))
        writer.close()
        rows = read_series(path)[1]
        assert len(rows) <= 4 + 2 * 3
        assert sum(each.stats["a"].count for each in rows) == len(gaps)


# -- a disk that refuses ---------------------------------------------------------------


@pytest.mark.usefixtures("short")
def test_a_crash_while_the_file_is_replaced_leaves_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Path, target: Path) -> None:
        assert len(read_series(self)[1]) == 11
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    writer = SeriesWriter(path, {})
    rows = [row(second, a=second) for second in range(11)]
    for each in rows[:10]:
        writer.append(each)
    with pytest.raises(KeyboardInterrupt):
        writer.append(rows[10])
    assert read_series(path)[1] == rows[:10]
    writer.close()


@pytest.mark.usefixtures("short")
def test_a_disk_that_refuses_a_replacement_is_told_and_can_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    writer = SeriesWriter(path, {})
    # Columns in another order than they would have in a new file.
    rows = [row(0, b=1), row(1, a=1), *(row(second, a=2, b=second) for second in range(2, 14))]
    for each in rows[:10]:
        writer.append(each)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="No space left"):
            writer.append(rows[10])
    assert read_series(path)[1] == rows[:10]
    assert list(path.parent.iterdir()) == [path]
    writer.append(rows[11])
    found = read_series(path)[1]
    assert found[-5:] == rows[7:12]
    assert sum(each.stats["b"].count for each in found if "b" in each.stats) == 11
    writer.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from stoker.watch.series import Row, SeriesWriter, Stat

limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = SeriesWriter(Path(sys.argv[1]), {})
for second in range(100):
    try:
        writer.append(Row(second, second + 1, {"a": Stat(1, second, 0.0, second)}))
    except OSError:
        sys.exit(second)
"""


@pytest.mark.parametrize("limit", [100, 101, 105, 110])
def test_a_full_disk_is_told_with_the_first_row_that_does_not_fit(limit: int, path: Path) -> None:
    words = [sys.executable, "-c", FULL_DISK, str(path), str(limit)]
    kept = subprocess.run(words, check=False).returncode
    assert 0 < kept < 20
    assert read_series(path)[1] == [row(second, a=second) for second in range(kept)]


# -- totals ----------------------------------------------------------------------------


def close_to(found: Stat, wanted: Stat) -> bool:
    return found.count == wanted.count and found[1:] == pytest.approx(wanted[1:], rel=1e-3)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2, 5, 11, 40, 107])
def test_the_whole_is_that_of_all_rows_however_it_ended(
    number: int, is_closed: bool, path: Path
) -> None:
    writer = SeriesWriter(path, {"host": "n"})
    for second in range(number):
        writer.append(row(second, a=second + 1, b=3) if second % 3 else row(second, a=second + 1))
    if is_closed:
        writer.close()
    whole = read_whole(path)
    assert whole.head["host"] == "n"
    assert whole.damaged == 0
    if number:
        assert whole.row is not None
        assert close_to(whole.row.stats["a"], Stat.of(range(1, number + 1)))
        assert (whole.row.start_s, whole.row.end_s) == (0, number)
    else:
        assert whole.row is None
    writer.close()


def test_a_large_file_is_read_by_its_end(path: Path) -> None:
    rows = [row(second, **{f"gpu.{each}": second for each in range(40)}) for second in range(500)]
    write(path, rows)
    assert path.stat().st_size > 2 * series.TAIL_BYTES[0]
    whole = read_whole(path)
    data = path.read_bytes()
    # All rows but the last few are gone, and nobody notices.
    middle = data.index(b"\n", series.HEAD_BYTES)
    path.write_bytes(data[:middle] + b"\n" * (len(data) - middle - 9000) + data[-9000:])
    assert read_whole(path) == whole
    assert whole.row is not None
    assert close_to(whole.row.stats["gpu.7"], Stat.of(range(500)))


def test_a_second_writer_of_a_file_adds_to_the_first(path: Path) -> None:
    write(path, [row(second, a=1) for second in range(100)])
    write(path, [row(second, b=2) for second in range(100, 103)])
    whole = read_whole(path)
    assert whole.row is not None
    assert {name: stat.count for name, stat in whole.row.stats.items()} == {"a": 100, "b": 3}


def test_a_total_that_is_torn_or_damaged_is_not_needed(path: Path) -> None:
    write(path, [row(second, a=second) for second in range(100)])
    data = path.read_bytes()
    for changed in (data[:-20], data[:-20] + b"\n", data.replace(b'{"total":[', b'{"total":{')):
        path.write_bytes(changed)
        whole = read_whole(path)
        assert whole.row is not None
        assert close_to(whole.row.stats["a"], Stat.of(range(100)))


def test_totals_are_few_beside_the_rows(path: Path) -> None:
    write(path, [row(second, a=second) for second in range(2 * series.FINE_ROWS)])
    assert path.read_bytes().count(series.TOTAL_START) == 2 * series.TOTALS


@given(st.lists(json_values.map(lambda each: json.dumps(each).encode()) | st.binary(max_size=20)))
def test_the_whole_of_any_file_is_that_of_its_rows(lines: list[bytes]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(lines))
        file.flush()
        path = Path(file.name)
        assert read_whole(path).row == merged(read_series(path)[1])
        assert read_whole(path, is_checked=True) == read_whole(path)


def test_a_column_that_is_named_twice_is_the_last_of_them(path: Path) -> None:
    path.write_text('{"columns":["a","a","b"]}\n[0,1,5,6,7]\n')
    (found,) = read_series(path)[1]
    assert found == row(0, a=6, b=7)
    assert ("a" in found.stats, "c" in found.stats, len(found.stats)) == (True, False, 2)
    with pytest.raises(KeyError):
        found.stats["c"]
