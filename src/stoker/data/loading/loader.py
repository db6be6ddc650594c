"""`stoker.Loader`: batches for a training, read ahead by threads, or by processes.

What comes out depends on the data, the seed and the epoch alone: not on the number of workers,
and over all ranks not on their number.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice, pairwise, takewhile
from random import Random
from typing import Any

from stoker.data.gather import Pool
from stoker.data.loading.ahead import Job, in_order
from stoker.data.loading.batch import Work, as_tensors, default_collate, fresh, stack
from stoker.data.loading.dataset import Dataset
from stoker.data.loading.order import Epoch, Order, SampledEpoch, Share
from stoker.data.loading.pinned import PinnedPool, can_pin, pinned
from stoker.data.loading.rank import place
from stoker.data.loading.resident import Resident
from stoker.data.loading.slots import Slots
from stoker.data.loading.stream import Stream
from stoker.data.loading.workers import Processes, Start, holds_lock
from stoker.data.pictures import device
from stoker.errors import SpecError, UsageError, nearest

FORMAT = 1
KINDS = ("auto", "threads", "processes")
# More threads than this have never been worth their switching for copies.
MAX_THREADS = 16
# More threads than this do not copy faster: memory is the limit.
MAX_COPIERS = 4
# Small batches are gathered several at a time: passing one from thread to thread takes as long as
# copying some hundred kB.
GROUP_BYTES = 4 << 20
MAX_GROUP = 32
# The GPU's decoder takes one batch after the other: one more thread reads, another crops.
DEVICE_THREADS = 3
# Other batches are made by several threads, each so many samples at least.
MIN_PIECE = 4
# Samples that are read to see whether threads help, if a sampler chooses the others.
MEASURED = 16
# How many epochs begin with a measurement, on a machine that is too busy to tell.
MAX_TRIES = 3


class Loader:
    """Batches of a data set, shuffled anew in each epoch, shared over the ranks of a training.

    It takes what PyTorch's DataLoader takes. `drop_last` leaves out what does not fill a batch on
    every rank; `pad` repeats a few samples so that all ranks have equally many; with neither, each
    sample comes exactly once. `transform` is called with a sample and a `random.Random` of its
    own. `workers` are "threads", "processes", or what a short measurement finds better ("auto").
    """

    def __init__(  # noqa: PLR0913, PLR0917  the names that DataLoader has, in its order
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Iterable[int]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        workers: str = "auto",
        seed: int | None = None,
        pad: bool = False,
        transform: Callable[[Any, Random], Any] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        _check_map_style(dataset)
        _check_kind(workers, in_order)
        _count("batch_size", batch_size, 1, 1)
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, bool(shuffle)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.drop_last, self.pad, self.pin_memory = drop_last, pad, pin_memory
        self._check_samplers()
        self.num_workers = _count("num_workers", num_workers, 0, _usual_workers(dataset))
        self.prefetch_factor = _count("prefetch_factor", prefetch_factor, 1, 2)
        self.collate_fn, self.transform = collate_fn, transform
        self.seed = _seed(seed, generator)
        self.workers, self.persistent_workers = workers, persistent_workers
        self._tries = 0
        self._worker_start = Start(multiprocessing_context, worker_init_fn, timeout)
        self._place = (rank, world)
        # Where the next epoch begins; how far the present one has come.
        self.epoch = 0
        self._start = self._yielded = 0
        self._is_begun = self._has_read = False
        self._running: Epoch | SampledEpoch | None = None
        self._kept: Processes | None = None
        self._pool: Any = self._memory()
        self._share()

    def __repr__(self) -> str:
        share = self._share()
        kind = "workers" if self.workers == "auto" else self.workers
        return (
            f"<{len(self.dataset):,} samples in batches of {self.batch_size},"
            f" rank {share.rank} of {share.world}, {self.num_workers} {kind}>"
        )

    def __len__(self) -> int:
        """Return how many batches a whole epoch has on this rank."""
        return len(self._whole(0))

    def __iter__(self) -> Iterator[Any]:
        if self._is_begun:
            # The last one was broken off: that was its epoch.
            self._move_to(self.epoch + 1)
        if self._has_read and isinstance(self.dataset, Dataset):
            self.dataset.check_archives()
        self._has_read = True
        epoch = self._whole(self._start)
        self._running, self._is_begun = epoch, True
        if not epoch.is_even:
            warnings.warn(
                f"the last step has a batch on some of {self._share().world} ranks only, and the"
                " others would wait for it: give drop_last=True or pad=True",
                stacklevel=2,
            )
        return self._batches(epoch, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; one that was resumed in its middle goes on there."""
        if epoch != self.epoch or self._is_begun:
            self._move_to(epoch)
        own: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        if hasattr(own, "set_epoch"):
            own.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training is, for a checkpoint: the same on every rank after a step."""
        epoch = self._running or self._whole(self._start)
        return {
            "format": FORMAT, "samples": len(self.dataset), "seed": self.seed,
            "shuffle": self.shuffle, "epoch": self.epoch, "taken": epoch.taken(self._yielded),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a training was, with as many ranks and as large batches as there are now."""
        if state.get("format") != FORMAT or state.get("samples") != len(self.dataset):
            raise SpecError(
                "cannot go on from this state of a loader",
                why=f"it was of {state.get('samples')} samples, the data set has {len(self.dataset)}"
                if state.get("format") == FORMAT
                else f"it has format {state.get('format')}, this version of Stoker reads {FORMAT}",
                fix="use the data of the checkpoint, or begin the epoch anew with set_epoch",
            )
        self.close()  # Workers that were kept have another seed.
        self.seed, self.shuffle = state["seed"], state["shuffle"]
        self._move_to(state["epoch"], state["taken"])

    def close(self) -> None:
        """End worker processes that were kept (`persistent_workers`)."""
        kept, self._kept = self._kept, None
        if kept:
            kept.close()

    def __del__(self) -> None:
        if getattr(self, "_kept", None):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_running": None, "_pool": None}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._pool = self._memory()

    def _move_to(self, epoch: int, start: int = 0) -> None:
        self.epoch, self._start, self._yielded = epoch, start, 0
        self._is_begun, self._running = False, None

    def _whole(self, start: int) -> Epoch | SampledEpoch:
        if self.batch_sampler is not None:
            return SampledEpoch(self.batch_sampler, None, start=start)
        if self.sampler is not None:
            return SampledEpoch(self.sampler, self.batch_size, self.drop_last, start)
        order = Order(len(self.dataset), self.seed, self.epoch, self.shuffle)
        return Epoch(order, self._share(), start)

    def _share(self) -> Share:
        rank, world = place(*self._place)
        return Share(rank, world, self.batch_size, self.drop_last, self.pad)

    def _check_samplers(self) -> None:
        """Refuse what contradicts itself, as PyTorch does."""
        others = {"shuffle": self.shuffle, "pad": self.pad}
        if self.batch_sampler is not None:
            others.update(batch_size=self.batch_size != 1, drop_last=self.drop_last)
            others.update(sampler=self.sampler is not None)
        elif self.sampler is None:
            return
        given = [name for name, is_given in others.items() if is_given]
        if given:
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            raise UsageError(
                f"`{name}` and `{given[0]}` exclude each other",
                why=f"a {name} of your own decides which samples come, and when",
                fix=f"leave out `{given[0]}`",
            )

    # -- one epoch

    def _batches(self, epoch: Epoch | SampledEpoch, number: int) -> Iterator[Any]:
        if self._uses_processes(epoch, number):
            made = self._by_processes(epoch, number)
        else:
            made = self._by_threads(epoch, number)
        for batches in made:
            while batches:
                if self._running is epoch:
                    self._yielded += 1
                yield batches.pop(0)
        if self._running is epoch:
            self._move_to(number + 1)

    def _by_threads(self, epoch: Epoch | SampledEpoch, number: int) -> Iterator[list[Any]]:
        size = self._group_size(epoch)
        # The next epoch may be that of processes, where it is not yet known what is better.
        is_trial = self._tries > 0 and self.workers == "auto"
        work = None if self._is_plain() else self._work(is_trial)
        jobs = (
            self._plain_job(group) if work is None else self._job(work, group[0], number)
            for group in _grouped(epoch.batches(), size)
        )
        return in_order(self._following(jobs), self._threads, self._ahead(size))

    def _following(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Have the threads use the GPU of the thread that asks for batches: each has its own."""
        needs_gpu = self._is_on_device or isinstance(self._pool, PinnedPool)
        for job in jobs:
            if needs_gpu:
                job.pieces = [partial(_after, device.follow(), each) for each in job.pieces]
            yield job

    @property
    def _threads(self) -> int:
        """How many threads make batches."""
        if isinstance(self.dataset, Resident):
            # The GPU selects, and nobody waits for it.
            is_free = self.dataset.where == "cuda" and self._is_plain()
            return 0 if is_free else self.num_workers
        return min(self.num_workers, DEVICE_THREADS) if self._is_on_device else self.num_workers

    @property
    def _is_on_device(self) -> bool:
        return getattr(self.dataset, "is_on_device", False) is True

    def _by_processes(self, epoch: Epoch | SampledEpoch, number: int) -> Iterator[list[Any]]:
        pool, self._kept = self._kept, None
        if pool is None:
            pool = Processes(self._work(), self.num_workers, self._worker_start, self._pool.take)
        tasks = ((numbers, number) for numbers in epoch.batches())
        made = pool.map(tasks, self.prefetch_factor * self.num_workers)
        # A thread receives: what comes next is here while this batch is computed with.
        jobs = (Job([partial(next, made, None)], self._received) for _ in count())
        received: Any = in_order(self._following(jobs), 1, 2)
        try:
            yield from takewhile(bool, received)
        finally:
            received.close()
            if not self.persistent_workers:
                pool.close()
            made.close()
            if pool.is_well and self._kept is None:
                self._kept = pool
            else:
                pool.close()

    def _received(self, made: list[Any]) -> list[Any]:
        if made[0] is None:
            return []
        return [self._pinned(made[0].batch) if self.collate_fn else self._finished(made[0].batch)]

    def _uses_processes(self, epoch: Epoch | SampledEpoch, number: int) -> bool:
        if not self.num_workers or self._is_plain() or self._is_on_device:
            return False
        if self.workers == "auto":
            holds = self._measure(epoch, number)
            self._tries += 1
            if holds is None and self._tries < MAX_TRIES:  # The next epoch may tell.
                return False
            self.workers = "processes" if holds else "threads"
        return self.workers == "processes"

    def _measure(self, epoch: Epoch | SampledEpoch, number: int) -> bool | None:
        """Say whether threads would be in each other's way."""
        if isinstance(epoch, SampledEpoch) or not len(epoch):
            samples = array("Q", range(min(len(self.dataset), MEASURED)))
        else:
            samples = next(epoch.batches())
        work = self._work(is_trial=True)

        def one(at: int) -> object:
            chosen = samples[at % len(samples)]
            return work.samples(array("Q", [chosen]), number)

        try:
            with _kept_chance():
                return holds_lock(one) if samples else False
        except Exception:  # It comes again, in its turn.
            return False

    def _memory(self) -> Pool | PinnedPool:
        """Return where batches get their memory from; pinned, what is gathered goes there at once."""
        if not self.pin_memory:
            return Pool()
        if not can_pin():
            warnings.warn(
                "pin_memory has no effect: this program uses no torch, or torch finds no GPU",
                stacklevel=3,
            )
            return Pool()
        pool = PinnedPool()
        if isinstance(self.dataset, Dataset):
            self.dataset.use_memory(pool)
        return pool

    def _work(self, is_trial: bool = False) -> Work:
        collate = self.collate_fn or partial(stack, take=fresh, rest=self._rest())
        dataset, transform = self.dataset, self.transform
        if is_trial:
            dataset, transform = _untouched(dataset), _untouched(transform)
        return Work(dataset, transform, collate, self.seed)

    def _rest(self) -> Callable[[list[Any]], Any]:
        """Return what makes a batch of values that are no arrays."""
        return default_collate()

    def _ahead(self, size: int) -> int:
        """Return how many groups may be in work, so that every thread has something to do."""
        threads_of_a_group = 1 if self._is_plain() else self._num_pieces(self.batch_size)
        busy = 1 + -(-self._threads // threads_of_a_group)
        return max(-(-self.prefetch_factor // size), busy)

    def _num_pieces(self, samples: int) -> int:
        if self._is_on_device:
            return 1
        return max(1, min(self.num_workers, samples // MIN_PIECE))

    def _group_size(self, epoch: Epoch | SampledEpoch) -> int:
        if not self._is_plain() or isinstance(epoch, SampledEpoch):
            return 1
        # Without threads nothing is passed on; what is left is the work that each call takes.
        size = GROUP_BYTES if self._threads else GROUP_BYTES // 4
        fits: int = size // max(1, self.dataset.sample_bytes * self.batch_size)
        return max(1, min(fits, MAX_GROUP, len(epoch) // (2 * max(1, self._threads))))

    def _is_plain(self) -> bool:
        return (
            isinstance(self.dataset, (Dataset, Resident))
            and self.dataset.is_plain
            and self.transform is None
            and self.collate_fn is None
        )

    def _plain_job(self, groups: list[array[int]]) -> Job:
        """Return what is to be done for some batches that are gathered together."""
        gathered = partial(self.dataset.batches, groups)
        if isinstance(self.dataset, Dataset) and not self.num_workers:
            gathered = partial(gathered, threads=_copiers())
        return Job([gathered], lambda made: [self._finished(each) for each in made[0]])

    def _job(self, work: Work, numbers: array[int], epoch: int) -> Job:
        """Return what is to be done for a batch, in pieces."""
        count = self._num_pieces(len(numbers))
        cuts = [len(numbers) * each // count for each in range(count + 1)]
        slots = self._slots(len(numbers))
        pieces = [
            partial(work.samples, numbers[begin:end], epoch, slots.rooms(begin) if slots else None)
            for begin, end in pairwise(cuts)
        ]
        return Job(pieces, lambda made: self._joined(list(chain.from_iterable(made)), slots))

    def _slots(self, count: int) -> Slots | None:
        """Return memory for a batch of pictures, unless something else is made of each of them."""
        is_changed = self.transform or self.collate_fn or self._is_on_device
        if is_changed or not isinstance(self.dataset, Dataset) or self.dataset.view.transform:
            return None
        return Slots(count, self._pool.take)

    def _joined(self, samples: list[Any], slots: Slots | None) -> list[Any]:
        if self.collate_fn:
            return [self._pinned(self.collate_fn(samples))]
        return [self._finished(stack(samples, self._pool.take, self._rest(), slots))]

    def _finished(self, batch: Any) -> Any:
        return self._pinned(as_tensors(batch))

    def _pinned(self, batch: Any) -> Any:
        return pinned(batch) if self.pin_memory and can_pin() else batch


def _after(first: Callable[[], None], then: Callable[[], Any]) -> Any:
    first()
    return then()


def _untouched(own: Any) -> Any:
    """Return a copy of what is the user's, to be tried; where that is not safe, itself.

    Many open their file when it is first read from. Processes that inherit it open also share the
    place in it, and one would read what another has asked for.
    """
    kind = type(own)
    is_safe = not hasattr(kind, "__del__") and not any(
        vars(each).get("__slots__") for each in kind.__mro__
    )
    if isinstance(own, Dataset) or not is_safe:
        return own
    try:
        made = object.__new__(kind)
        made.__dict__.update(own.__dict__)
    except (TypeError, AttributeError):  # It is not written in Python.
        return own
    # Of a part of a data set, or a chain of several, as PyTorch calls them.
    if "dataset" in made.__dict__:
        made.__dict__["dataset"] = _untouched(made.__dict__["dataset"])
    if isinstance(inner := made.__dict__.get("datasets"), list):
        made.__dict__["datasets"] = [_untouched(each) for each in inner]
    return made


@contextmanager
def _kept_chance() -> Iterator[None]:
    """Leave the generators that all share as they were."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    before = random.getstate()
    of_numpy = numpy.random.get_state() if numpy else None
    of_torch = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(of_numpy)
        if torch:
            torch.set_rng_state(of_torch)


def _grouped(batches: Iterator[array[int]], size: int) -> Iterator[list[array[int]]]:
    """Yield groups that grow to this size, so that the first batch is there soon.

    >>> [len(each) for each in _grouped(iter([array("Q")] * 12), 4)]
    [1, 2, 4, 4, 1]
    """
    now = 1
    while group := list(islice(batches, now)):
        yield group
        now = min(size, 2 * now)


def _check_map_style(dataset: Any) -> None:
    is_counted = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not is_counted or isinstance(dataset, Stream):
        raise UsageError(
            f"a `{type(dataset).__name__}` cannot be shuffled",
            why="it has no length or no items: the loader takes map-style data sets",
            fix="stoker pack it, then stoker.Loader(stoker.open(…))",
        )


def _check_kind(workers: str, in_order: bool) -> None:
    if workers not in KINDS:
        match = nearest(workers, KINDS) or "auto"
        raise UsageError(
            f"workers cannot be `{workers}`",
            why=f"they are {', '.join(KINDS)}",
            fix=f"workers={match!r}",
        )
    if not in_order:
        raise UsageError(
            "batches cannot come in another order than their own",
            why="the same every time, and resuming, depend on it",
            fix="leave out in_order",
        )


def _count(name: str, value: object, least: int, default: int) -> int:
    if value is None and name != "batch_size":
        return default
    if not isinstance(value, int) or value < least:
        raise UsageError(
            f"`{name}` cannot be {value!r}",
            why=f"it is a whole number, {least} or more",
            fix=f"{name}={default}"
            if value is not None
            else "for sample in dataset: to have samples that are in no batch",
        )
    return value


def _seed(seed: int | None, generator: Any) -> int:
    if seed is not None and generator is not None:
        raise UsageError(
            "`seed` and `generator` exclude each other",
            why="of a generator its first seed is taken",
            fix="give one of them",
        )
    return int(generator.initial_seed()) if generator is not None else seed or 0


def _copiers() -> int:
    """Return how many threads copy one large batch, where no others read ahead."""
    return min(MAX_COPIERS, len(os.sched_getaffinity(0)))


def _usual_workers(dataset: Any) -> int:
    """Return a thread for each core; on a network file system they wait for a server, not a core."""
    if isinstance(dataset, Dataset) and dataset.is_plain and not dataset.shards.is_mapped:
        return MAX_THREADS
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))
