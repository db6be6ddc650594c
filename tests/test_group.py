"""The barrier of a group, in a store that ends with rank 0, as a real one does."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest

from stoker.engine import group as group_module
from stoker.engine.group import STOP, Group, GroupError
from stoker.engine.place import Place
from stoker.engine.process_group import take_gpu

# As long as a slow rank takes over whatever it does with the store.
SLOW_S = 0.05


class Store:
    """A store in memory; whoever asks it after its end is refused."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.ended = threading.Event()

    def set(self, key: str, value: str | bytes) -> None:
        with self.changed:
            self._refuse_late()
            self.values[key] = value.encode() if isinstance(value, str) else value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            self._refuse_late()
            return self.values[key]

    def add(self, key: str, more: int) -> int:
        with self.changed:
            self._refuse_late()
            self.values[key] = str(int(self.values.get(key, b"0")) + more).encode()
            return int(self.values[key])

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        with self.changed:
            self._refuse_late()
            return self.values.setdefault(key, value.encode())

    def check(self, keys: Sequence[str]) -> bool:
        with self.changed:
            self._refuse_late()
            return all(key in self.values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(
                lambda: all(key in self.values for key in keys), timeout.total_seconds()
            ):
                raise TimeoutError

    def delete_key(self, key: str) -> None:
        with self.changed:
            self._refuse_late()
            self.values.pop(key, None)

    def _refuse_late(self) -> None:
        if self.ended.is_set():
            raise ConnectionResetError("rank 0 is gone")


class Slow(Store):
    """The same store, for a rank that is slow after each wait."""

    def __init__(self, store: Store) -> None:
        self.values, self.changed, self.ended = store.values, store.changed, store.ended

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        super().wait(keys, timeout)
        self.ended.wait(SLOW_S)


def group(store: Store, rank: int, size: int) -> Group:
    return Group(store, Place(rank, size))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("barriers", [1, 3])
def test_rank_0_leaves_a_barrier_last_as_the_store_ends_with_it(size: int, barriers: int) -> None:
    store = Store()

    def run(rank: int) -> None:
        mine = group(Slow(store) if rank else store, rank, size)
        for _ in range(barriers):
            mine.barrier(10)
        if rank == 0:
            store.ended.set()

    with ThreadPoolExecutor(size) as pool:
        for done in [pool.submit(run, rank) for rank in range(size)]:
            done.result()


def test_a_barrier_leaves_little_behind() -> None:
    store = Store()
    with ThreadPoolExecutor(2) as pool:
        groups = [group(store, rank, 2) for rank in range(2)]
        sizes = []
        for _ in range(20):
            list(pool.map(lambda each: each.barrier(10), groups))
            sizes.append(len(store.values))
    assert sizes[-1] == sizes[3]


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(GroupError, match="rank 1 of 2 did not reach barrier 1"):
        group(Store(), 0, 2).barrier(0.01)


def test_rank_0_goes_last_after_all_were_told_what_it_says() -> None:
    store = Store()

    def run(rank: int) -> str:
        word = group(Slow(store) if rank else store, rank, 3).told_by_main(f"of {rank}", 10)
        if rank == 0:
            store.ended.set()
        return word

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == ["of 0"] * 3


def test_rank_0_goes_last_after_all_have_heard_that_they_stop() -> None:
    store = Store()

    def run(rank: int) -> bool:
        mine = group(store, rank, 3)
        if rank:
            # A step behind rank 0, and told by nobody but it.
            store.wait([STOP], timedelta(seconds=10))
            store.ended.wait(SLOW_S)
        is_last = mine.agree_to_stop(rank == 0, "train.py:1")
        if rank == 0:
            store.ended.set()
        return is_last

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == [True] * 3


def test_what_rank_0_says_may_be_a_path_of_any_bytes() -> None:
    store, word = Store(), os.fsdecode(b"mod\xe8le/c-1.pt")
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda rank: group(store, rank, 2).told_by_main(word, 10), range(2))
        assert list(told) == [word] * 2


def test_where_rank_0_is_gone_a_barrier_names_it() -> None:
    store = Store()
    store.ended.set()
    with pytest.raises(GroupError, match="rank 0 of 2 did not reach barrier 1"):
        group(store, 1, 2).barrier(10)


def test_two_ranks_on_one_gpu_are_named_before_nccl_is_asked() -> None:
    store = Store()
    ranks = [Place(rank, 3, rank, 3) for rank in range(3)]
    take_gpu(store, ranks[0], "a")
    take_gpu(store, ranks[0], "a")
    take_gpu(store, ranks[1], "b")
    with pytest.raises(GroupError) as caught:
        take_gpu(store, ranks[2], "a")
    assert caught.value.what.startswith("ranks 0 and 2 are on the same GPU of ")
    assert caught.value.why == "NCCL needs one for each of the 3 ranks of this machine"


def test_a_meeting_to_which_somebody_did_not_come_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefixes: list[str] = []

    def opened(prefix: str, store: Store) -> Store:
        prefixes.append(prefix)
        return store

    def hear(*_: object) -> None:
        if len(prefixes) == 2:
            raise GroupError("rank 0 is missing", why="it is late", fix="wait")

    distributed = SimpleNamespace(PrefixStore=opened)
    monkeypatch.setattr(group_module, "_meetings", [])
    monkeypatch.setattr(group_module, "_open_store", lambda *_: Store())
    monkeypatch.setattr(group_module, "_hear", hear)
    for fails in (False, True, False):
        with pytest.raises(GroupError) if fails else nullcontext():
            group_module.meet(SimpleNamespace(distributed=distributed), Place(1, 2), 1.0)
    first, failed, second = prefixes
    assert first != failed == second
