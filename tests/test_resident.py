"""Samples of fixed shape, kept in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stoker
from made_data import pack
from stoker import Loader
from stoker.data.loading import resident
from stoker.errors import DataError, UsageError

numpy = pytest.importorskip("numpy")
COUNT = 30


@pytest.fixture
def data(tmp_path: Path) -> Path:
    samples = [
        (f"{each:04}", {"raw": numpy.full(6, each, ">u2").tobytes(), "txt": b"x"}, each % 5)
        for each in range(COUNT)
    ]
    return pack(tmp_path, samples, labels=5, arrays={"raw": {"dtype": ">u2", "shape": [2, 3]}})


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_batches_are_those_that_are_read(
    data: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "CHUNK_BYTES", chunk_bytes)
    read = stoker.open(data, parts=("raw", "cls"))
    kept = read.resident()
    assert (len(kept), kept[-1][1]) == (COUNT, 4)
    assert kept.__getitems__([3])[0][0].tolist() == [[3] * 3] * 2
    for workers in (0, 2):
        ours = list(Loader(kept, 7, True, seed=3, num_workers=workers))
        theirs = list(Loader(read, 7, True, seed=3, num_workers=workers))
        for (a, b), (c, d) in zip(ours, theirs, strict=True):
            assert (a == c).all()
            assert (b == numpy.asarray(d)).all()
            assert a.shape == (len(b), 2, 3)


def test_a_batch_is_shaped_as_a_sample_is(data: Path) -> None:
    alone = stoker.open(data, parts="raw").resident()
    assert alone.batches([[4, 2]])[0][:, 0, 0].tolist() == [4, 2]
    twice = stoker.open(data, parts=("cls", "cls"))
    assert [each.tolist() for each in twice.resident().batches([[7, 2]])[0]] == [[2, 2]] * 2
    assert twice[3] == (3, 3)
    part = stoker.open(data, parts=("cls",))[10:20:3].resident()
    assert part.batches([[0, 3]])[0][0].tolist() == [0, 4]


def test_what_has_no_fixed_shape_is_refused(data: Path) -> None:
    with pytest.raises(DataError) as caught:
        stoker.open(data).resident()
    assert caught.value.why == "the part `txt` has no fixed shape"
    with pytest.raises(DataError, match="cannot be kept in memory as one array"):
        stoker.open(data, parts="raw", transform=len).resident()
    with pytest.raises(UsageError) as usage:
        stoker.open(data, parts="raw").resident("pined")
    assert usage.value.fix == "resident('pinned')"


def test_too_large_for_memory_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "_available", lambda: 100)
    with pytest.raises(DataError, match="do not fit into memory"):
        stoker.open(data, parts="raw").resident()


@pytest.mark.parametrize("torch", [None, SimpleNamespace(cuda=SimpleNamespace(is_available=bool))])
@pytest.mark.parametrize("where", ["pinned", "cuda"])
def test_without_a_gpu_it_says_what_to_do(
    data: Path, torch: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(DataError) as caught:
        stoker.open(data, parts="raw").resident(where)
    assert caught.value.fix == 'resident("host")'
