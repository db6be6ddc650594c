"""Worker processes: the same batches as threads make, errors in their turn, nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import stoker
from made_data import pack, payload
from stoker import Loader
from stoker.data.loading import workers
from stoker.data.loading.workers import Start, WorkerTraceback, holds_lock
from stoker.errors import DataError

ROOT = Path(__file__).parent.parent


def jitter(sample: int, chance: Random) -> tuple[int, float]:
    return sample, chance.random()


def lists(batches: Any) -> list[Any]:
    return [[list(column) for column in batch] for batch in batches]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_make_the_same_batches_as_threads(method: str) -> None:
    how: dict[str, Any] = {"seed": 5, "transform": jitter, "rank": 1, "world": 2, "pad": True}
    threads = Loader(range(41), 4, True, num_workers=2, workers="threads", **how)
    processes = Loader(
        range(41),
        4,
        True,
        num_workers=2,
        workers="processes",
        multiprocessing_context=method,
        **how,
    )
    for _ in range(2 if method == "fork" else 1):
        assert lists(processes) == lists(threads)


def test_packed_samples_are_read_in_processes(tmp_path: Path) -> None:
    samples = [(f"{each:04}", {"txt": b"%d" % each}, each) for each in range(20)]
    pack(tmp_path, samples, labels=20)
    loader = Loader(
        stoker.open(tmp_path), 6, True, num_workers=3, workers="processes", collate_fn=list
    )
    found = [sample for batch in loader for sample in batch]
    assert sorted(each["cls"] for each in found) == list(range(20))
    assert all(each["txt"] == str(each["cls"]) for each in found)


def test_arrays_are_whole_aligned_and_can_be_written_to() -> None:
    numpy = pytest.importorskip("numpy")

    def make(sample: int, _: Random) -> Any:
        return {"a": numpy.full((3, 5), sample, "float32"), "b": numpy.arange(sample, sample + 2)}

    loader = Loader(range(1, 30), 4, num_workers=2, workers="processes", transform=make)
    batches = list(loader)
    values = numpy.concatenate([each["a"][:, 0, 0] for each in batches])
    assert values.tolist() == list(range(1, 30))
    for batch in batches:
        assert batch["a"].flags.aligned
        batch["a"] += 1
        assert (batch["b"][:, 1] - batch["b"][:, 0] == 1).all()


def test_generators_that_all_share_depend_on_the_batch_alone() -> None:
    def draw(_: int, __: Random) -> float:
        return random.random()

    def drawn(count: int) -> list[Any]:
        loader = Loader(range(24), 4, num_workers=count, workers="processes", transform=draw)
        return [list(each) for each in loader]

    found = drawn(1)
    assert found == drawn(3)
    assert len({each for batch in found for each in batch}) == 24


def fail(sample: int, _: Random) -> int:
    if sample == 6:
        raise ValueError("not this one")
    return sample


def test_an_error_comes_in_its_turn_with_the_users_traceback() -> None:
    seen: list[Any] = []
    loader = Loader(range(10), 2, num_workers=2, workers="processes", transform=fail)
    with pytest.raises(DataError) as caught:
        seen.extend(list(each) for each in loader)
    assert seen == [[0, 1], [2, 3], [4, 5]]
    assert caught.value.what == "the transform failed on the sample `6`"
    assert caught.value.why == "ValueError: not this one"
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in fail" in str(caught.value.__cause__)


class Unpicklable(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} {other}")


class Strange:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> Any:
        raise Unpicklable(at, 7)


def test_an_error_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(RuntimeError, match="Unpicklable: 0 7"):
        list(Loader(Strange(), 1, num_workers=1, workers="processes"))


def end(sample: int, _: Random) -> int:
    if sample == 6:
        os._exit(3)
    return sample


def test_a_worker_that_ends_is_told_and_does_not_hang() -> None:
    with pytest.raises(DataError) as caught:
        list(Loader(range(10), 2, num_workers=2, workers="processes", transform=end))
    assert caught.value.what == "a worker process has ended"
    assert caught.value.why == "its exit code is 3"


def never(_: int, __: Random) -> None:
    threading.Event().wait()


def test_a_worker_that_is_late_is_told() -> None:
    loader = Loader(range(10), 2, num_workers=1, workers="processes", transform=never, timeout=0.05)
    with pytest.raises(DataError, match=r"a worker process gave nothing for 0\.05 s"):
        list(loader)


def own_process(_: int, __: Random) -> int:
    return os.getpid()


def processes_of(loader: Loader) -> set[int]:
    return {each for batch in loader for each in batch}


def test_workers_end_with_the_epoch_or_are_kept() -> None:
    loader = Loader(range(8), 1, num_workers=2, workers="processes", transform=own_process)
    assert not processes_of(loader) & processes_of(loader)
    kept = Loader(
        range(8), 1, num_workers=2, workers="processes", transform=own_process,
        persistent_workers=True,
    )  # fmt: skip
    first = processes_of(kept)
    for _ in kept:
        break  # What was in work is not taken for the next epoch's.
    assert processes_of(kept) == first
    kept.close()
    for each in first:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def signalled(sample: int, _: Random) -> int:
    for each in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), each)
    return sample


def test_signals_of_a_scheduler_do_not_end_workers() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(os.getpid()))
    try:
        loader = Loader(
            range(6), 2, num_workers=2, workers="processes", transform=signalled, collate_fn=list
        )
        assert list(loader) == [[0, 1], [2, 3], [4, 5]]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []


def test_kept_workers_that_were_lost_are_replaced() -> None:
    loader = Loader(
        range(10), 2, num_workers=2, workers="processes", transform=end, persistent_workers=True
    )
    for _ in range(2):
        with pytest.raises(DataError, match="a worker process has ended"):
            list(loader)
    failing = Loader(
        range(10), 2, num_workers=2, workers="processes", transform=fail, persistent_workers=True,
        collate_fn=list,
    )  # fmt: skip
    for _ in range(2):
        batches = iter(failing)
        assert [next(batches) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(DataError, match="`6`"):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)
    failing.close()


def test_epochs_within_epochs_do_not_mix() -> None:
    loader = Loader(
        range(6), 2, num_workers=2, workers="processes", persistent_workers=True, collate_fn=list
    )
    outer = []
    for batch in loader:
        outer.append(batch)
        loader.set_epoch(loader.epoch)
        assert list(loader) == [[0, 1], [2, 3], [4, 5]]
    assert outer == [[0, 1], [2, 3], [4, 5]]
    loader.close()


def test_workers_are_prepared() -> None:
    def prepare(number: int) -> None:
        os.environ["TRIED_WORKER"] = str(number)

    loader = Loader(
        range(4), 1, num_workers=2, workers="processes", worker_init_fn=prepare,
        transform=lambda _, __: os.environ["TRIED_WORKER"],
    )  # fmt: skip
    assert [each[0] for each in loader] == ["0", "1", "0", "1"]


def test_a_preparation_that_fails_is_told() -> None:
    def prepare(_: int) -> None:
        raise KeyError("no such GPU")

    loader = Loader(range(4), num_workers=1, workers="processes", worker_init_fn=prepare)
    with pytest.raises(KeyError, match="no such GPU"):
        list(loader)


def test_workers_end_when_their_parent_is_killed() -> None:
    code = (
        "import os, signal, stoker\n"
        "loader = stoker.Loader(range(100), 1, num_workers=2, workers='processes',"
        " transform=lambda *_: os.getpid())\n"
        "batches = iter(loader)\n"
        "print(*(next(batches)[0] for _ in range(2)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as started:
        # The workers have the pipe, too: it ends when the last of them does.
        text = started.communicate(timeout=300)[0]
    assert len(text.split()) == 2


# -- threads or processes ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("work_s", "free_s", "expected"),
    [
        ((1, 1), (1, 1), False),  # Twice as fast, as it could be.
        ((1, 2), (1, 1), True),  # Nothing was gained.
        ((1, 1.6), (1, 1), True),
        ((1, 1.5), (1, 1), False),
        ((1, 2), (1, 2), None),  # The other core has other work.
        ((1, 1.6), (1, 1.5), False),
        ((1e-6, 2), (1, 1), False),  # Too little to be worth it.
    ],
)
def test_threads_that_are_in_each_others_way_are_noticed(
    work_s: tuple[float, float],
    free_s: tuple[float, float],
    expected: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [0.0]

    def work(_: int) -> None:
        times[0] += work_s[0]

    def timed(task: Any, *_: Any) -> tuple[float, float]:
        return work_s if task is work else free_s

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(workers, "_timed", timed)
    assert holds_lock(work, lambda: times[0]) is expected


def test_the_best_of_some_timings_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times, steps = [0.0], iter([5, 5, 9, 1, 1, 6, 2, 2, 7])

    def work(_: int) -> None:
        times[0] += next(steps)

    def both(_: Any) -> None:
        times[0] += next(steps)

    monkeypatch.setattr(workers, "_both", both)
    assert workers._timed(work, 2, 3, lambda: times[0]) == (2, 6)


def test_both_threads_work() -> None:
    meeting = threading.Barrier(2)
    workers._both(lambda: meeting.wait(60))


@pytest.mark.parametrize(("holds", "kind"), [(True, "processes"), (False, "threads")])
def test_what_was_measured_is_used(holds: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measure(work: Any) -> bool:
        work(0)
        asked.append(random.random())
        return holds

    monkeypatch.setattr("stoker.data.loading.loader.holds_lock", measure)
    before = random.getstate()
    loader = Loader(range(12), 3, num_workers=2, transform=own_process)
    found = processes_of(loader)
    assert loader.workers == kind
    assert (os.getpid() in found) == (kind == "threads")
    list(loader)
    assert len(asked) == 1  # Once is enough, and no generator has moved.
    assert random.getstate() == before


class Opens:
    """Samples in a file that is opened when the first is asked for, as is usual with PyTorch."""

    def __init__(self) -> None:
        self.opened_by: int | None = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, _: int) -> int:
        self.opened_by = self.opened_by or os.getpid()
        return self.opened_by

    def __call__(self, sample: Any, _: Random) -> Any:
        return sample, self[0]


class Subset:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, at: int) -> Any:
        return self.dataset[at]


class Chain(Subset):
    def __init__(self, dataset: Any) -> None:
        self.datasets = [dataset]

    @property
    def dataset(self) -> Any:
        return self.datasets[0]


@pytest.mark.parametrize("holding", [lambda dataset: dataset, Subset, Chain])
@pytest.mark.parametrize("measured", [[True], [None, True], [None, None, True]])
def test_no_process_shares_a_file_that_was_opened_to_measure(
    measured: list[bool | None], holding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that share an open file also share the place in it: one would read another's."""
    found: Iterator[bool | None] = iter(measured)

    def measure(work: Any) -> bool | None:
        work(0)
        return next(found)

    monkeypatch.setattr("stoker.data.loading.loader.holds_lock", measure)
    loader = Loader(holding(Opens()), 4, num_workers=2, transform=Opens(), collate_fn=list)
    epochs = [list(loader) for _ in measured]
    assert loader.workers == "processes"
    opened_by = {each for batch in epochs[-1] for sample in batch for each in sample}
    assert os.getpid() not in opened_by


class Closes(Opens):
    """What this has open is closed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.files = [1]

    def __del__(self) -> None:
        self.files.clear()

    def __getitem__(self, at: int) -> int:
        return self.files[0]


class Slotted(Opens):
    __slots__ = ("one",)

    def __init__(self) -> None:
        super().__init__()
        self.one = 1

    def __getitem__(self, at: int) -> int:
        return self.one


@pytest.mark.parametrize("kind", [Closes, Slotted])
def test_what_cannot_be_copied_is_measured_itself(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.data.loading.loader.holds_lock", lambda work: work(0) and None)
    loader = Loader(kind(), 4, num_workers=2, collate_fn=list)
    assert [list(loader) for _ in range(4)] == [[[1] * 4] * 2] * 4


def test_a_busy_machine_is_asked_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("stoker.data.loading.loader.holds_lock", asked.append)
    loader = Loader(range(4), 2, num_workers=2, transform=own_process)
    for _ in range(5):
        assert processes_of(loader) == {os.getpid()}
    assert len(asked) == 3
    assert loader.workers == "threads"


def test_an_error_while_measuring_comes_in_its_turn() -> None:
    loader = Loader(range(10), 2, num_workers=2, transform=fail)
    batches: Iterator[Any] = iter(loader)
    assert list(next(batches)) == [0, 1]
    with pytest.raises(DataError, match="`6`"):
        list(batches)


def test_nothing_is_measured_where_there_is_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.data.loading.loader.holds_lock", lambda _: pytest.fail("measured"))
    pack(tmp_path, [(str(each), {"bin": payload(each)}, None) for each in range(9)])
    list(Loader(stoker.open(tmp_path, decode=False), 2, num_workers=2))
    list(Loader(range(9), 2, num_workers=0))
    list(Loader(range(9), 2, num_workers=2, workers="threads"))


def test_results_of_any_size_pass() -> None:
    pool = workers.Processes(bytearray, 2, Start(), lambda size: memoryview(bytearray(size)))
    sizes = [0, 1, 100_000, 3_000_000]
    assert [len(each.batch) for each in pool.map(sizes, 2)] == sizes
    assert [each.batch for each in pool.map([], 2)] == []
    pool.close()


def test_many_samples_in_a_batch_do_not_fill_the_pipe() -> None:
    numbers = array("Q", range(200_000))
    pool = workers.Processes(len, 1, Start(), lambda size: memoryview(bytearray(size)))
    assert [each.batch for each in pool.map([numbers] * 6, 6)] == [200_000] * 6
    pool.close()
