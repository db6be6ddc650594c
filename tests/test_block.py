"""Samples as columns are the same samples."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from stoker.data import spill
from stoker.data.block import Block, Row, blocks_of

names = st.text(max_size=8) | st.sampled_from(["\udcff"])
parts = st.tuples(
    names, st.integers(-99, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1),
    st.booleans(), st.integers(-(2**63), 2**63 - 1),
)  # fmt: skip
labels = st.none() | st.integers(1 - 2**31, 2**31 - 1)
samples = st.lists(st.tuples(names, labels, st.lists(parts, max_size=4)), min_size=1, max_size=9)


@given(samples)
def test_what_goes_in_comes_out_also_from_a_file(rows: list[Row]) -> None:
    block = Block.of(rows)
    assert list(block.rows()) == rows
    assert list(block.keys()) == [row[0] for row in rows]
    file = io.BytesIO()
    spill.dump(tuple(block), file)
    file.seek(0)
    assert Block.load(spill.load(file)) == block


@given(samples, st.data())
def test_a_piece_has_the_samples_from_one_to_another(rows: list[Row], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    assert list(Block.of(rows).cut(first, last).rows()) == rows[first:last]


def test_offsets_move_together() -> None:
    rows: list[Row] = [("a", None, [("x", 5, 1, 0, False, 0), ("y", 9, 1, 0, True, 0)])]
    assert list(Block.of(rows).moved(100).offsets) == [105, 109]


def test_blocks_are_small_in_samples_and_in_bytes() -> None:
    small: list[Row] = [(str(each), None, [("x", 0, 1, 0, False, 0)]) for each in range(2500)]
    assert [len(each.labels) for each in blocks_of(small)] == [1024, 1024, 452]
    large: list[Row] = [(str(each), None, [("x", 0, 40 << 20, 0, False, 0)]) for each in range(5)]
    assert [len(each.labels) for each in blocks_of(large)] == [2, 2, 1]
    assert list(blocks_of([])) == []


def test_a_time_that_has_no_room_is_the_last_that_has() -> None:
    block = Block.of([("a", None, [("x", 0, 1, 0, False, 2**64)])])
    assert list(block.times) == [2**63 - 1]
