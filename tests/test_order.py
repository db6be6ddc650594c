"""Every sample once in each epoch, over all ranks, wherever a training was interrupted."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled import compiled
from effort import examples
from stoker.data import gather, plain
from stoker.data.loading.order import Order, Share
from stoker.errors import UsageError

lengths = st.integers(0, 300)
shares = st.tuples(st.integers(1, 7), st.integers(1, 9))


@pytest.fixture(params=["plain", "compiled"], autouse=True, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "engine", plain if request.param == "plain" else compiled("_gather"))
        yield


def epoch_of(order: Order, world: int, batch_size: int, start: int = 0, **how: bool) -> list[int]:
    """What all ranks see, rank by rank."""
    seen: list[int] = []
    for rank in range(world):
        share = Share(rank, world, batch_size, **how)
        for number in range(share.num_batches(order.length - start)):
            batch = share.batch(order, start, number)
            assert 0 < len(batch) <= batch_size
            seen.extend(batch)
    return seen


@given(lengths, st.integers(), st.integers(0, 5))
def test_an_epoch_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    assert sorted(Order(length, seed, epoch).take(0, length)) == list(range(length))


@given(lengths, shares, st.booleans())
def test_all_ranks_together_see_every_sample_once(
    length: int, share: tuple[int, int], is_shuffled: bool
) -> None:
    order = Order(length, 1, 2, is_shuffled)
    assert sorted(epoch_of(order, *share)) == list(range(length))


@given(lengths, st.lists(st.tuples(shares, st.integers(0, 5)), max_size=4), shares)
def test_worlds_of_any_size_take_turns_and_nothing_is_lost_or_doubled(
    length: int, turns: list[tuple[tuple[int, int], int]], last: tuple[int, int]
) -> None:
    order, start = Order(length, 5), 0
    seen: list[int] = []
    for (world, batch_size), steps in turns:
        for rank in range(world):
            share = Share(rank, world, batch_size)
            for number in range(min(steps, share.num_batches(length - start))):
                seen.extend(share.batch(order, start, number))
        start = share.taken(length, start, steps)
    seen.extend(epoch_of(order, *last, start=start))
    assert sorted(seen) == list(range(length))


@given(lengths, shares)
def test_with_drop_last_all_batches_are_full_and_none_comes_twice(
    length: int, share: tuple[int, int]
) -> None:
    world, batch_size = share
    seen = epoch_of(Order(length), world, batch_size, drop_last=True)
    assert len(seen) == len(set(seen)) == length // (world * batch_size) * world * batch_size


@given(lengths, shares, st.integers(0, 300))
def test_with_padding_all_ranks_have_equally_many_and_nothing_is_lost(
    length: int, share: tuple[int, int], start: int
) -> None:
    world, batch_size = share
    start = min(start, length)
    ranks = [Share(rank, world, batch_size, pad=True) for rank in range(world)]
    assert len({each.num_samples(length - start) for each in ranks}) == 1
    order = Order(length)
    seen = Counter(epoch_of(order, world, batch_size, start, pad=True))
    assert set(order.take(start, length - start)) <= set(seen)
    assert seen.total() - (length - start) < world


@given(lengths, shares)
def test_it_is_told_whether_all_ranks_have_equally_many_batches(
    length: int, share: tuple[int, int]
) -> None:
    world, batch_size = share
    found = {Share(rank, world, batch_size).num_batches(length) for rank in range(world)}
    assert Share(0, world, batch_size).is_even(length) == (len(found) == 1)


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers())
def test_c_and_python_compute_the_same_order(length: int, start: int, seed: int) -> None:
    start %= length
    count = min(3, length - start)
    order = Order(length, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "engine", plain)
        expected = order.take(start, count)
    assert order.take(start, count) == expected
    assert all(each < length for each in expected)


def test_the_order_never_changes_between_versions() -> None:
    """Or a checkpoint would be resumed with samples lost and doubled."""
    assert Order(10, 0, 0).take(0, 10).tolist() == [3, 0, 2, 9, 5, 1, 8, 7, 6, 4]
    assert Order(10**9, 7, 3).take(0, 3).tolist() == [243291195, 268344358, 490008668]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_are_equally_likely(length: int) -> None:
    if gather.engine is plain:
        pytest.skip("too slow, and the same")
    tries = 100 * math.factorial(length)
    found = Counter(tuple(Order(length, seed).take(0, length)) for seed in range(tries))
    expected = tries / math.factorial(length)
    chi = sum((found[each] - expected) ** 2 / expected for each in permutations(range(length)))
    freedom = math.factorial(length) - 1
    # Five standard deviations.
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 5


@settings(max_examples=examples(10))
@given(st.integers(0, 1000))
def test_neighbours_are_no_neighbours_afterwards(seed: int) -> None:
    order = Order(1000, seed).take(0, 1000)
    near = sum(abs(one - other) == 1 for one, other in pairwise(order))
    assert near < 15  # 2 are expected
    moved = sum(at != sample for at, sample in enumerate(order))
    assert moved > 980


def test_epochs_and_seeds_differ() -> None:
    orders = {tuple(Order(50, seed, epoch).take(0, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_a_position_outside_is_refused_and_does_not_hang() -> None:
    with pytest.raises(IndexError):
        gather.engine.permute(10, array("Q", range(8)), 8, 1, array("Q", [0, 0, 0]))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"batch_size": 0}, "a batch of 0 samples cannot be made"),
        ({"rank": 2, "world": 2}, "rank 2 is not one of 2"),
        ({"drop_last": True, "pad": True}, "`drop_last` and `pad` exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, int], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        Share(**how)  # type: ignore[arg-type]
    assert caught.value.what == what
