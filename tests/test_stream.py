"""Samples to be iterated over: each once, over ranks and workers."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from effort import KEEPS_FIXTURES, examples
from made_data import pack
from stoker.data.loading.dataset import Dataset

COUNT = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    samples = [(f"{each:04}", {"txt": b"%d" % each}, None) for each in range(COUNT)]
    return stoker.open(pack(tmp_path_factory.mktemp("packed"), samples), decode={"txt": int})


def seen(data: Dataset, world: int, workers: int, **how: Any) -> list[list[int]]:
    """What each rank sees, over its workers."""
    ranks = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(world):
            stream = data.stream(rank=rank, world=world, **how)
            mine: list[int] = []
            for worker in range(workers):
                info = SimpleNamespace(id=worker, num_workers=workers)
                module = SimpleNamespace(get_worker_info=lambda info=info: info)
                patch.setitem(sys.modules, "torch.utils.data", module)
                mine.extend(each["txt"] for each in stream)
            assert len(mine) == len(stream)
            ranks.append(mine)
    return ranks


@settings(max_examples=examples(40), suppress_health_check=KEEPS_FIXTURES)
@given(st.integers(0, COUNT), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_each_sample_is_seen_once_over_ranks_and_workers(
    data: Dataset, length: int, world: int, workers: int, shuffle: bool
) -> None:
    ranks = seen(data[:length], world, workers, shuffle=shuffle)
    assert sorted(chain.from_iterable(ranks)) == list(range(length))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1


@settings(max_examples=examples(40), suppress_health_check=KEEPS_FIXTURES)
@given(st.integers(1, COUNT), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_ranks_can_have_equally_many(
    data: Dataset, length: int, world: int, workers: int, pad: bool
) -> None:
    ranks = seen(data[:length], world, workers, shuffle=True, pad=pad, drop_last=not pad)
    assert len({len(each) for each in ranks}) == 1
    found = Counter(chain.from_iterable(ranks))
    if pad:
        assert set(found) == set(range(length))
        assert found.total() - length < world
    else:
        assert set(found.values()) <= {1}
        assert length - found.total() < world


def test_epochs_have_orders_of_their_own_that_are_told(data: Dataset) -> None:
    stream = data.stream(shuffle=True, seed=3)
    first = [each["txt"] for each in stream]
    assert first == [each["txt"] for each in stream]
    stream.set_epoch(1)
    second = [each["txt"] for each in stream]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert [each["txt"] for each in data.stream()] == list(range(COUNT))


def test_a_stream_can_be_pickled(tmp_path: Path) -> None:
    pack(tmp_path, [(str(each), {"txt": b"x"}, None) for each in range(3)])
    stream = stoker.open(tmp_path).stream()
    assert list(pickle.loads(pickle.dumps(stream))) == [{"txt": "x"}] * 3


def test_an_empty_data_set_is_an_empty_stream(data: Dataset) -> None:
    assert list(data[:0].stream()) == []
