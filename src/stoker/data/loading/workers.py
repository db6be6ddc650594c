"""Worker processes, for work that holds the interpreter's lock; and whether work does.

A result goes through memory that has no name and that two processes share: nothing is left behind,
however a process ends.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from stoker.errors import DataError

# Two threads that gain less than this share of what is to be gained are in each other's way.
MIN_GAIN = 0.3
# Of work that is over sooner, handing it to another process is the larger part.
MIN_WORK_S = 20e-6
# How long one timing is to take, and how many are made: the best ones count.
TIMING_S = 0.02
TIMINGS = 3
# What is known to need no lock: the checksum of so many bytes.
FREE_BYTES, FREE_REPEATS = 1 << 20, 20
# How long a worker may take to end.
GRACE_S = 0.1
# A scheduler sends them to all processes of a job, to warn the training: workers work on.
IGNORED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# As large as what a processor fetches at once.
ALIGNMENT = 64


# -- threads or processes -----------------------------------------------------------------


def holds_lock(
    work: Callable[[int], object], clock: Callable[[], float] = time.perf_counter
) -> bool | None:
    """Say whether two threads do this work hardly faster than one. `work(i)` does one piece.

    `None` is for a machine that is too busy to tell: even work without a lock gains nothing.
    """
    if len(os.sched_getaffinity(0)) < 2:
        return False
    work(0)  # The first one imports and opens things.
    took = _time(lambda: work(1), clock)
    if took < MIN_WORK_S:
        return False
    zeros = bytes(FREE_BYTES)
    rounds = TIMINGS if took < TIMING_S else 1
    work_s = _timed(work, max(1, round(TIMING_S / took)), rounds, clock)
    free_s = _timed(lambda _: zlib.crc32(zeros), FREE_REPEATS, TIMINGS, clock)
    gain, possible = (2 * alone / both - 1 if both else 1 for alone, both in (work_s, free_s))
    if possible < MIN_GAIN:
        return None
    return gain < MIN_GAIN * min(1, possible)


def _timed(
    work: Callable[[int], object], count: int, rounds: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return how long it takes in one thread, and twice in two threads at once."""

    def several() -> None:
        for each in range(count):
            work(each)

    alone, both = [], []
    for _ in range(rounds):
        alone.append(_time(several, clock))
        both.append(_time(lambda: _both(several), clock))
    return min(alone), min(both)


def _time(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def _both(work: Callable[[], object]) -> None:
    other = threading.Thread(target=work, name="stoker-timing")
    other.start()
    try:
        work()
    finally:
        other.join()


# -- processes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """How worker processes begin."""

    method: Any = None
    init: Callable[[int], object] | None = None
    timeout_s: float = 0


class Made(NamedTuple):
    """What a worker has made of a task; a batch itself may be None."""

    batch: Any


class _Worker(NamedTuple):
    process: Any
    pipe: Any


class Processes:
    """Some processes that do the same work on different tasks."""

    def __init__(
        self,
        work: Callable[[Any], Any],
        count: int,
        start: Start,
        take: Callable[[int], memoryview],
    ) -> None:
        method = start.method or "fork"
        context: Any = multiprocessing.get_context(method) if isinstance(method, str) else method
        self._take, self._timeout_s = take, start.timeout_s or None
        self._workers: list[_Worker] = []
        # Whether each of them has answered what it was asked.
        self.is_well = True
        for number in range(count):
            here, there = context.Pipe()
            others = [each.pipe for each in self._workers] + [here]
            # Only what is inherited can stay open there by mistake.
            inherited = others if context.get_start_method() == "fork" else []
            process = context.Process(
                target=_serve, args=(there, inherited, work, start.init, number), daemon=True
            )
            process.start()
            there.close()
            self._workers.append(_Worker(process, here))

    def map(self, tasks: Iterable[Any], ahead: int) -> Generator[Made, None, None]:
        """Yield what becomes of each task, in their order, while the next `ahead` are in work."""
        rest = iter(tasks)
        sent = received = 0
        try:
            while True:
                for task in islice(rest, max(1, ahead) - (sent - received)):
                    self._send(sent, task)
                    sent += 1
                if received == sent:
                    return
                received += 1
                yield Made(self._receive(received - 1))
        finally:
            # Whoever uses these processes next must not get what was meant for us.
            while received < sent and self.is_well:
                received += 1
                with suppress(Exception):
                    self._receive(received - 1)

    def close(self) -> None:
        """End the processes."""
        for each in self._workers:
            each.pipe.close()
        for each in self._workers:
            # One that waits for a task ends by itself.
            each.process.join(GRACE_S)
            each.process.kill()
            each.process.join()
            each.process.close()
        self._workers = []
        self.is_well = False

    def _send(self, number: int, task: Any) -> None:
        worker = self._workers[number % len(self._workers)]
        try:
            worker.pipe.send(task)
        except OSError:
            self.is_well = False
            raise _ended(worker.process) from None

    def _receive(self, number: int) -> Any:
        worker = self._workers[number % len(self._workers)]
        ready = wait([worker.pipe, worker.process.sentinel], self._timeout_s)
        if not ready:
            self.is_well = False
            raise DataError(
                f"a worker process gave nothing for {self._timeout_s:g} s",
                why="`timeout` is the longest time to wait for a batch",
                fix="give a longer `timeout`, or 0 to wait for ever",
            )
        try:
            is_error, sizes = worker.pipe.recv()
            file = reduction.recv_handle(worker.pipe)
        except (EOFError, OSError):
            self.is_well = False
            raise _ended(worker.process) from None
        made = _unpacked(file, sizes, self._take)
        if is_error:
            error, lines = made
            raise error from WorkerTraceback(lines)
        return made


def _ended(process: Any) -> DataError:
    process.join(1)
    code = process.exitcode
    killed = code is not None and code < 0
    return DataError(
        "a worker process has ended",
        why=f"signal {-code}: it crashed, or the kernel ended it as memory was short"
        if killed
        else f"its exit code is {code}",
        fix="fewer num_workers need less memory; num_workers=0 shows where it crashes",
    )


def _serve(
    pipe: Any,
    inherited: Sequence[Any],
    work: Callable[[Any], Any],
    init: Callable[[int], object] | None,
    number: int,
) -> None:
    """Do tasks until nobody sends any."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    for each in inherited:
        each.close()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # There is a process for each core already.
    failed: BaseException | None = None
    try:
        if init:
            init(number)
    except Exception as error:
        failed = error
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            if failed:
                raise failed
            _answer(pipe, False, _packed(work(task)))
        except KeyboardInterrupt:
            return
        except BrokenPipeError:
            return
        except Exception as error:
            _answer(pipe, True, _packed_error(error))


def _answer(pipe: Any, is_error: bool, pieces: list[Any]) -> None:
    sizes = [each.nbytes for each in pieces]
    file = os.memfd_create("stoker-batch")
    try:
        for each, start in zip(pieces, _starts(sizes), strict=False):
            done = 0
            while done < each.nbytes:
                done += os.pwrite(file, each[done:], start + done)
        pipe.send((is_error, sizes))
        reduction.send_handle(pipe, file, os.getppid())
    finally:
        os.close(file)


def _starts(sizes: list[int]) -> list[int]:
    """Return where each piece begins, and where the last one ends: arrays want to be aligned.

    >>> _starts([10, 64])
    [0, 64, 128]
    """
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return found


def _unpacked(file: int, sizes: list[int], take: Callable[[int], memoryview]) -> Any:
    """Read a result into memory of our own, which is pinned or used again."""
    *starts, end = _starts(sizes)
    whole = take(end)
    try:
        done = 0
        while got := os.preadv(file, [whole[done:]], done):
            done += got
    finally:
        os.close(file)
    text, *buffers = (
        whole[start : start + size] for start, size in zip(starts, sizes, strict=True)
    )
    return pickle.loads(text, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Leaves the bytes of arrays, and of tensors, where they are."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch and type(value) is torch.Tensor and _is_plain_tensor(torch, value):
            return _tensor, (value.detach().numpy(),)
        return NotImplemented


def _is_plain_tensor(torch: Any, value: Any) -> bool:
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype not in (torch.bfloat16, torch.complex32)
        and not value.is_quantized
        and not value.requires_grad
        and not value.is_conj()
        and not value.is_neg()
    )


def _packed(value: Any) -> list[Any]:
    buffers: list[Any] = []
    text = io.BytesIO()
    _Pickler(text, protocol=5, buffer_callback=buffers.append).dump(value)
    return [text.getbuffer(), *(each.raw() for each in buffers)]


def _packed_error(error: Exception) -> list[Any]:
    """Return an error with its traceback as text, as the traceback itself cannot be sent."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        packed = _packed((error, lines))
        pickle.loads(packed[0], buffers=packed[1:])
    except Exception:
        return _packed((RuntimeError(f"{type(error).__name__}: {error}"), lines))
    return packed


class WorkerTraceback(Exception):
    """Where in a worker process an error happened."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _tensor(values: Any) -> Any:
    torch = __import__("torch")
    from stoker.data.loading.pinned import pinned_view

    pinned = pinned_view(values)
    return torch.from_numpy(values) if pinned is None else pinned
