"""Batches: each sample once, the same whatever the threads do, resumed anywhere."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from compiled import compiled
from effort import examples
from made_data import pack, payload
from stoker import Loader
from stoker.data import gather, plain
from stoker.data.loading.ahead import Job, in_order
from stoker.errors import DataError, SpecError, UsageError

ROOT = Path(__file__).parent.parent
TORCH = ROOT / ".venv-torch/bin/python"
COUNT = 40


@pytest.fixture(params=["plain", "compiled"], autouse=True, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "engine", plain if request.param == "plain" else compiled("_gather"))
        yield


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [(f"{each:04}", {"bin": payload(each)}, each) for each in range(COUNT)]
    return pack(tmp_path_factory.mktemp("packed"), samples, per_shard=7, labels=COUNT)


def numbers(batches: Any) -> list[int]:
    return [each for batch in batches for each in batch]


# -- each sample once -------------------------------------------------------------------

settings_of_a_loader = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2))


@settings(max_examples=examples(40))
@given(
    st.integers(0, 60),
    st.lists(st.tuples(settings_of_a_loader, st.integers(0, 4)), max_size=3),
    settings_of_a_loader,
)
def test_no_sample_is_lost_or_doubled_over_interruptions_and_worlds_of_any_size(
    length: int,
    attempts: list[tuple[tuple[int, int, int], int]],
    last: tuple[int, int, int],
) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for (world, batch_size, threads), steps in [*attempts, (last, 10**6)]:
        states = []
        for rank in range(world):
            loader = Loader(
                range(length), batch_size, True, seed=3, num_workers=threads, rank=rank, world=world
            )
            if state:
                loader.load_state_dict(state)
            if loader.epoch:
                break  # The epoch was over before.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seen.extend(numbers(islice(loader, steps)))
            states.append(loader.state_dict())
        # A rank may have had one batch less, and has seen the end: the first one knows best.
        state = states[0] if states else state
    assert sorted(seen) == list(range(length))


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_what_comes_out_does_not_depend_on_threads(data: Path, threads: int) -> None:
    def batches(loader: Loader) -> list[Any]:
        return [([bytes(each) for each in batch["bin"]], list(batch["cls"])) for batch in loader]

    found = stoker.open(data, decode=False)
    one = Loader(found, 3, True, seed=8, num_workers=threads)
    other = Loader(stoker.open(data), 3, True, seed=8, num_workers=0)
    assert len(one) == 14
    for _ in range(2):
        left = batches(one)
        assert left == batches(other)
        assert len(left) == 14
        assert sorted(label for _, labels in left for label in labels) == list(range(COUNT))
        assert all(data == [payload(each) for each in labels] for data, labels in left)


def test_epochs_differ_without_being_told_and_are_what_they_are_told() -> None:
    loader = Loader(range(50), 5, True, num_workers=2)
    first, second = numbers(loader), numbers(loader)
    assert first != second
    assert loader.epoch == 2
    loader.set_epoch(0)
    assert numbers(loader) == first
    assert numbers(Loader(range(50), 5, num_workers=2)) == list(range(50))


def test_an_epoch_that_was_broken_off_is_over() -> None:
    loader = Loader(range(50), 5, True, num_workers=2)
    first = list(next(iter(loader)))
    assert loader.state_dict()["taken"] == 5
    second = list(next(iter(loader)))
    assert (loader.epoch, first != second) == (1, True)


def test_a_resumed_epoch_goes_on_where_it_was_also_with_set_epoch() -> None:
    whole = numbers(Loader(range(50), 5, True, seed=4))
    loader = Loader(range(50), 5, True, seed=4)
    for number, _ in enumerate(loader, 1):
        if number == 3:
            break
    state = loader.state_dict()
    assert state == {
        "format": 1, "samples": 50, "seed": 4, "shuffle": True, "epoch": 0, "taken": 15,
    }  # fmt: skip
    again = Loader(range(50), 2)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert again.state_dict() == state
    assert numbers(again) == whole[15:]
    assert again.epoch == 1
    assert sorted(numbers(again)) == list(range(50))


ways_to_end = st.sampled_from([{}, {"drop_last": True}, {"pad": True}])


@settings(max_examples=examples(40))
@given(
    st.integers(0, 60),
    st.lists(st.tuples(settings_of_a_loader, st.integers(0, 4)), max_size=3),
    settings_of_a_loader,
    ways_to_end,
)
def test_what_is_dropped_or_repeated_at_the_end_does_not_depend_on_interruptions(
    length: int,
    attempts: list[tuple[tuple[int, int, int], int]],
    last: tuple[int, int, int],
    how: dict[str, Any],
) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for (world, batch_size, threads), steps in [*attempts, (last, 10**6)]:
        counts, states = set(), []
        for rank in range(world):
            loader = Loader(
                range(length), batch_size, True, seed=3, num_workers=threads, workers="threads",
                rank=rank, world=world, **how,
            )  # fmt: skip
            if state:
                loader.load_state_dict(state)
            if loader.epoch:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                batches = [list(each) for each in islice(loader, steps)]
            seen.extend(numbers(batches))
            counts.add(len(batches))
            states.append(loader.state_dict())
        if how:  # All ranks have as many steps: none waits for another.
            assert len(counts) <= 1
            assert all(each == states[0] for each in states)
        state = states[0] if states else state
    ends = last[0] * last[1]
    if how.get("drop_last"):
        assert (
            len(seen)
            == len(set(seen))
            > length - max([ends, *(w * b for (w, b, _), _ in attempts)])
        )
    elif how.get("pad"):
        assert set(seen) == set(range(length))
        assert len(seen) - length < max([last[0], *(w for (w, _, _), _ in attempts)])
    else:
        assert sorted(seen) == list(range(length))


class Backwards:
    """A sampler of the user's own."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count - 1 - self.epoch, -1 - self.epoch, -1))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_samplers_decide_and_can_be_resumed() -> None:
    sampler = Backwards(10)
    loader = Loader(range(-5, 20), 4, sampler=sampler, rank=1, world=2)
    assert len(loader) == 3
    # A sampler knows about ranks itself, as in PyTorch.
    expected = [[4, 3, 2, 1], [0, -1, -2, -3], [-4, -5]]
    assert [list(each) for each in loader] == expected
    assert len(list(Loader(range(20), 4, sampler=sampler, drop_last=True))) == 2
    loader.set_epoch(0)
    for _ in loader:
        break
    again = Loader(range(-5, 20), 3, sampler=Backwards(10), num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert [list(each) for each in again] == [[0, -1, -2], [-3, -4, -5]]
    again.set_epoch(3)
    assert again.sampler.epoch == 3  # type: ignore[union-attr]


def test_a_batch_sampler_makes_the_batches() -> None:
    chosen = [[3, 1], [2], [0, 0, 5]]
    loader = Loader(range(10, 20), batch_sampler=chosen, num_workers=2)
    assert len(loader) == 3
    assert [list(each) for each in loader] == [[13, 11], [12], [10, 10, 15]]
    loader.set_epoch(0)
    for _ in loader:
        break
    again = Loader(range(10, 20), batch_sampler=chosen)
    again.load_state_dict(loader.state_dict())
    assert [list(each) for each in again] == [[12], [10, 10, 15]]


def test_a_sampler_needs_no_length() -> None:
    loader = Loader(range(10), 2, sampler=(each for each in (5, 7, 9)))
    assert [list(each) for each in loader] == [[5, 7], [9]]


def test_a_generator_gives_the_seed() -> None:
    generator = SimpleNamespace(initial_seed=lambda: 77)
    assert numbers(Loader(range(9), 2, True, generator=generator)) == numbers(
        Loader(range(9), 2, True, seed=77)
    )


def test_a_loader_can_be_pickled(data: Path) -> None:
    loader = Loader(stoker.open(data, parts="cls"), 4, True, seed=2, num_workers=2)
    found = numbers(loader)
    loader.set_epoch(0)
    next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    again.load_state_dict(loader.state_dict())
    assert numbers(again) == found[4:]


def test_a_stream_is_not_shuffled_again(data: Path) -> None:
    with pytest.raises(UsageError, match="cannot be shuffled"):
        Loader(stoker.open(data).stream())


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_arrays_of_different_shapes_say_what_to_do(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.zeros((2, 3)), numpy.zeros((3, 2))]
    with pytest.raises(DataError) as caught:
        list(Loader(arrays, 2, num_workers=1, workers=kind))
    assert caught.value.why == "one is (2, 3), another is (3, 2)"


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("lacking", [0, 1])
def test_no_part_of_a_batch_is_lost(tmp_path: Path, kind: str, lacking: int) -> None:
    samples: list[Any] = [(name, {"txt": b"1", "id": b"7"}, None) for name in "abc"]
    del samples[lacking][1]["id"]
    data = stoker.open(pack(tmp_path, samples))
    with pytest.raises(DataError) as caught:
        list(Loader(data, 3, num_workers=2, workers=kind))
    assert caught.value.what == "a sample of a batch has no part `id`"
    assert list(Loader(stoker.open(tmp_path, parts="txt"), 3)) == [["1", "1", "1"]]


def test_arrays_are_stacked_whatever_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    for values in (
        [numpy.zeros((2, 0)), numpy.zeros((2, 0))],
        [numpy.array(1.5), numpy.array(2.5)],
        [numpy.arange(6).reshape(2, 3).T, numpy.arange(6, 12).reshape(2, 3).T],
        [numpy.array([1], "int32"), numpy.array([1.5])],
        [numpy.array(["a"], object), numpy.array(["b"], object)],
    ):
        (batch,) = Loader(values, 2, num_workers=0)
        expected = numpy.stack(values)
        assert batch.dtype == expected.dtype
        assert batch.tolist() == expected.tolist()


def test_a_loader_tells_what_it_is() -> None:
    found = Loader(range(1000), 8, num_workers=3, rank=1, world=4)
    assert repr(found) == "<1,000 samples in batches of 8, rank 1 of 4, 3 workers>"


def test_memory_that_cannot_be_pinned_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="pin_memory has no effect"):
        Loader(range(3), pin_memory=True)


@pytest.mark.parametrize("threads", [0, 3])
def test_a_transform_that_fails_names_the_sample(data: Path, threads: int) -> None:
    def fail(sample: Any, _: Random | None = None) -> Any:
        if sample["cls"] == 6:
            raise ValueError("not this one")
        return sample["cls"]

    for loader in (
        Loader(stoker.open(data), 2, num_workers=threads, workers="threads", transform=fail),
        Loader(stoker.open(data, transform=fail), 2, num_workers=threads, workers="threads"),
    ):
        with pytest.raises(DataError) as caught:
            list(loader)
        assert caught.value.what == "the transform failed on the sample `0006`"
        assert isinstance(caught.value.__cause__, ValueError)


def test_an_archive_that_changed_is_refused_at_the_next_epoch(tmp_path: Path) -> None:
    samples = [(f"{each:04}", {"bin": bytes([each]) * 600}, None) for each in range(8)]
    pack(tmp_path, samples)
    loader = Loader(stoker.open(tmp_path, decode=False), 4, num_workers=0)
    list(loader)
    path = tmp_path / "shard-00000.tar"
    made = path.with_name("new")
    made.write_bytes(path.read_bytes()[:-512])
    made.rename(path)
    with pytest.raises(DataError, match="has changed since it was indexed"):
        list(loader)


def test_a_state_of_other_data_is_refused() -> None:
    state = Loader(range(50)).state_dict()
    with pytest.raises(SpecError) as caught:
        Loader(range(51)).load_state_dict(state)
    assert caught.value.why == "it was of 50 samples, the data set has 51"


# -- ranks ------------------------------------------------------------------------------


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers(Loader(range(8), 2)) == [1, 3, 5, 7]
    assert numbers(Loader(range(8), 2, rank=0, world=1)) == list(range(8))
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert numbers(Loader(range(8), 2)) == [3, 7]


def test_ranks_come_from_torch_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert numbers(Loader(range(4), 2)) == [1, 3]


def test_a_last_step_of_some_ranks_only_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="give drop_last=True or pad=True"):
        iter(Loader(range(9), 2, rank=0, world=2))
    for how in ({"drop_last": True}, {"pad": True}):
        ranks = [list(Loader(range(9), 2, rank=rank, world=2, **how)) for rank in range(2)]  # type: ignore[arg-type]
        assert len(ranks[0]) == len(ranks[1])


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Loader(range(3), rank=1), "rank and world belong together"),
        (lambda: Loader(iter([1])), "a `list_iterator` cannot be shuffled"),
        (lambda: Loader(range(3), 0), "`batch_size` cannot be 0"),
        (lambda: Loader(range(3), cast(Any, None)), "`batch_size` cannot be None"),
        (lambda: Loader(range(3), cast(Any, "a")), "`batch_size` cannot be 'a'"),
        (lambda: Loader(range(3), num_workers=-1), "`num_workers` cannot be -1"),
        (lambda: Loader(range(3), workers="thread"), "workers cannot be `thread`"),
        (
            lambda: Loader(range(3), sampler=[1], shuffle=True),
            "`sampler` and `shuffle` exclude each other",
        ),
        (
            lambda: Loader(range(3), 2, batch_sampler=[[1]]),
            "`batch_sampler` and `batch_size` exclude each other",
        ),
        (
            lambda: Loader(range(3), in_order=False),
            "batches cannot come in another order than their own",
        ),
        (
            lambda: Loader(range(3), seed=1, generator=object()),
            "`seed` and `generator` exclude each other",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.what == what


# -- threads ----------------------------------------------------------------------------


class Failing:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> int:
        if at == 6:
            raise ValueError("sample 6")
        return at


def loader_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("stoker-loader")]


@pytest.mark.parametrize("threads", [0, 3])
def test_an_error_comes_in_its_turn_and_no_thread_stays(threads: int) -> None:
    seen: list[Any] = []
    with pytest.raises(ValueError, match="sample 6"):
        seen.extend(Loader(Failing(), 2, num_workers=threads, collate_fn=list))
    assert seen == [[0, 1], [2, 3], [4, 5]]
    assert loader_threads() == []


def test_thefirst_of_several_errors_is_told_also_if_a_later_one_was_sooner() -> None:
    is_later_over = threading.Event()

    def fail(name: str) -> None:
        if name == "first":
            is_later_over.wait(10)
        else:
            is_later_over.set()
        raise ValueError(name)

    job = Job([partial(fail, "first"), partial(fail, "second")], list)
    with pytest.raises(ValueError, match="first"):
        list(in_order([job], 2, 1))


def test_threads_share_a_batch() -> None:
    meeting = threading.Barrier(4)

    class Meeting(Failing):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, at: int) -> int:
            if at % 4 == 0:
                meeting.wait(60)  # Nobody passes before four threads are here.
            return at

    loader = Loader(Meeting(), 16, num_workers=4, workers="threads", collate_fn=list)
    assert list(loader) == [list(range(16))]


def test_breaking_off_leaves_no_thread() -> None:
    loader = Loader(range(1000), 2, num_workers=3)
    for _ in loader:
        break
    assert loader_threads() == []


def test_only_so_much_is_read_ahead() -> None:
    asked: list[int] = []

    class Counting(Failing):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, at: int) -> int:
            asked.append(at)
            return at

    batches = iter(Loader(Counting(), 1, num_workers=2, workers="threads", prefetch_factor=3))
    next(batches)
    assert len(asked) <= 1 + 3
    batches.close()  # type: ignore[attr-defined]


def test_a_transform_has_a_chance_of_its_own() -> None:
    def jitter(sample: int, random: Random) -> tuple[int, float]:
        return sample, random.random()

    def epochs(threads: int) -> list[Any]:
        loader = Loader(
            range(20), 4, True, seed=1, transform=jitter, num_workers=threads, collate_fn=list
        )
        return [list(loader), list(loader)]

    found = epochs(0)
    assert found == epochs(4)
    assert found[0] != found[1]


def test_an_own_collate_function_is_used(data: Path) -> None:
    found = Loader(stoker.open(data, parts="cls"), 20, collate_fn=sum, num_workers=0)
    assert list(found) == [sum(range(20)), sum(range(20, 40))]


def test_kept_batches_are_not_overwritten(data: Path) -> None:
    found = Loader(stoker.open(data, decode=False), 4, num_workers=2)
    batches = list(found)
    read = [bytes(each) for batch in batches for each in batch["bin"]]
    assert read == [payload(each) for each in range(COUNT)]


# -- PyTorch ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not TORCH.exists(), reason="no PyTorch in .venv-torch")
@pytest.mark.parametrize("program", ["loader_like_torch.py", "loader_torch.py"])
def test_with_pytorch(tmp_path: Path, program: str) -> None:
    if gather.engine is not plain:
        pytest.skip("the program takes the engine that is there")
    samples: list[Any] = [
        (f"{each:04}", {"raw": bytes([each] * 6), "txt": str(each).encode()}, each % 5)
        for each in range(23)
    ]
    if program == "loader_torch.py":
        for each, (_, parts, _) in enumerate(samples):
            # What it takes for a JPEG.
            parts["jpg"] = bytes([10 + each, 20, each])
            parts["bad.jpg"] = bytes([10, 20, each]) if each != 11 else b"no"
    pack(tmp_path, samples, labels=5, arrays={"raw": {"dtype": "uint8", "shape": [2, 3]}})
    done = subprocess.run(
        [str(TORCH), str(ROOT / "tests/programs" / program), str(tmp_path)],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_no_heavy_library_is_imported(data: Path) -> None:
    code = (
        f"import sys, stoker\nlist(stoker.Loader(stoker.open({str(data)!r}, decode=False), 4))\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_more_threads_wait_for_a_server_than_for_a_disk(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert Loader(stoker.open(data, decode=False)).num_workers == 2
    assert Loader(stoker.open(data, decode=False, mapped=False)).num_workers == 16
    # What is decoded needs cores.
    assert Loader(stoker.open(data, decode={"bin": len}, mapped=False)).num_workers == 2
    assert Loader([1, 2, 3]).num_workers == 2
