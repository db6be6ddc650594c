"""What C does with hostile numbers, and that it does what Python does."""

from __future__ import annotations

import os
import random
from array import array
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled import compiled
from effort import examples
from stoker.data import plain


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=20), st.data())
def test_c_and_python_select_the_same_parts(kinds: list[list[int]], data: st.DataObject) -> None:
    first = array("Q", [0])
    for each in kinds:
        first.append(first[-1] + len(each))
    extension = memoryview(array("H", [kind for each in kinds for kind in each]) or b"").cast("B")
    column = extension.cast("H")
    samples = array("Q", data.draw(st.lists(st.integers(0, len(kinds) - 1))))
    found = []
    for engine in (plain, compiled("_gather")):
        parts = array("Q", bytes(8 * len(samples)))
        missing = engine.select(memoryview(first), column, samples, 2, parts)
        found.append((missing, parts))
    assert found[0] == found[1]
    assert found[0][0] == sum(2 not in kinds[each] for each in samples)


U64 = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1))
NUMBERS = st.lists(U64, max_size=6)


@settings(max_examples=examples(100))
@given(st.data())
def test_no_index_makes_it_read_or_write_elsewhere(data: st.DataObject) -> None:
    """Whatever the columns say, C refuses what Python refuses, and gives the same bytes."""
    content = bytes(range(40))
    shard = data.draw(st.lists(st.one_of(st.integers(0, 1), st.integers(0, 2**32 - 1)), max_size=6))
    columns = [data.draw(st.lists(U64, min_size=len(shard), max_size=len(shard))) for _ in range(2)]
    parts = array("Q", data.draw(NUMBERS))
    lengths = array("Q", data.draw(st.sampled_from([[40], [40, 0], [plain.NONE], []])))
    ends_given = data.draw(NUMBERS)
    found = []
    for engine in (plain, compiled("_gather")):
        mapping = memoryview(content)
        table = [engine.address(mapping)] * len(lengths)
        places = table if engine is plain else array("Q", table)
        kinds = memoryview(array("I", shard)), *(memoryview(array("Q", each)) for each in columns)
        ends, out = array("Q", bytes(8 * len(parts))), memoryview(bytearray(64))
        result: object
        try:
            result = status, size, _ = engine.lay_out(lengths, *kinds, parts, ends)
            if status == plain.READY and size <= len(out):
                engine.copy(lengths, places, kinds[0], kinds[1], parts, ends, out, True, 3)
        except (IndexError, MemoryError, OverflowError):
            result = "refused"
        found.append((result, bytes(out)))
        # Ends that are not of lay_out.
        wrong = array("Q", ends_given)
        with suppress(IndexError, ValueError, TypeError, OverflowError):
            engine.copy(lengths, places, kinds[0], kinds[1], parts, wrong, out, True, 2)
    assert found[0] == found[1]


@given(st.lists(U64, max_size=5), st.lists(U64, max_size=5), st.lists(U64, max_size=5))
def test_no_index_makes_pread_write_elsewhere(
    offset: list[int], parts: list[int], ends: list[int]
) -> None:
    out = memoryview(bytearray(64))
    with open(os.devnull, "rb") as file:  # noqa: PTH123
        numbers = array("i", [file.fileno()] * len(parts))
        columns = memoryview(array("Q", offset)), array("Q", parts), array("Q", ends)
        with suppress(IndexError, ValueError, OSError):
            early, _ = compiled("_gather").read(numbers, *columns, out, True)
            assert early >= 0 or not ends or ends[-1] == 0


def test_columns_of_other_lengths_are_refused() -> None:
    engine = compiled("_gather")
    one, two = array("Q", [0]), array("Q", [0, 0])
    shard, out = array("I", [0]), bytearray(4)
    for columns in (
        (two, one, shard, one, one, one), (one, one, shard, two, one, one),
        (one, one, shard, one, two, one), (one, one, shard, one, one, array("Q", [5])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="differ in length, or the buffer is too small"):
            engine.copy(*columns, out, False, 1)
    with pytest.raises(ValueError, match="items of another size"):
        engine.copy(bytes(7), one, shard, one, one, one, out, False, 1)
    with pytest.raises(ValueError, match="differ in length, or the buffer is too small"):
        engine.read(array("i", [0]), one, one, two, out, False)
    with pytest.raises(IndexError, match="there is no part 0"):
        engine.read(array("i", [0]), array("Q"), one, one, out, False)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 4097, 70_001])
@pytest.mark.parametrize(("start", "threads"), [(0, 1), (1, 2), (63, 3), (1, 40), (0, -1)])
def test_large_batches_are_copied_past_the_cache_unchanged(
    size: int, start: int, threads: int
) -> None:
    """More than 4 MiB in all, at every place within a line of the cache."""
    content = random.Random(size).randbytes(80_000)
    count = (5 << 20) // max(size, 4096)
    sizes = [start, *[size] * count, 80_000 - 64, *[70_001] * 64]
    engine = compiled("_gather")
    columns = (
        memoryview(array("I", bytes(4 * len(sizes)))),
        memoryview(array("Q", [each % 64 for each in range(len(sizes))])),
        memoryview(array("Q", sizes)),
    )
    parts, lengths = array("Q", range(len(sizes))), array("Q", [len(content)])
    found = []
    for each in (plain, engine):
        ends = array("Q", bytes(8 * len(sizes)))
        status, total, _ = each.lay_out(lengths, *columns, parts, ends)
        assert status == plain.READY
        out = memoryview(each.memory(total))
        table = [each.address(memoryview(content))]
        place = table if each is plain else array("Q", table)
        each.copy(lengths, place, columns[0], columns[1], parts, ends, out, False, threads)
        found.append(out)
    assert found[0] == found[1]


@pytest.mark.parametrize("gone", [0, 700, 1023])
def test_an_index_that_changes_meanwhile_stops_every_thread(gone: int) -> None:
    engine, content = compiled("_gather"), bytes(8192)
    shard, offset = array("I", bytes(4 * 1024)), array("Q", bytes(8 * 1024))
    ends = array("Q", range(8192, 1025 * 8192, 8192))
    offset[gone] = 1
    out, table = bytearray(ends[-1]), array("Q", [engine.address(content)])
    with pytest.raises(IndexError, match="a part is not in its file"):
        engine.copy(
            array("Q", [8192]), table, shard, offset, array("Q", range(1024)), ends, out, False, 4
        )


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_checksums_by_instruction_and_by_table_are_the_same(before: bytes, data: bytes) -> None:
    crc32c = compiled("_gather").crc32c
    first = crc32c(before)
    assert first == crc32c(before, 0, True) == _crc32c(before)
    assert crc32c(data, first) == crc32c(before + data) == crc32c(data, first, True)


def test_the_checksum_that_everybody_has() -> None:
    crc32c = compiled("_gather").crc32c
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytes(32))) == 0x8A9136AA
    large = random.Random(1).randbytes(200_001)
    assert crc32c(large) == crc32c(large, 0, True)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
