"""One watched process: its timeline, its lines, and the thread that tells the scribe."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import os
import sys
import time
from itertools import repeat

from . import hooks
from .block import Block
from .haste import Haste
from .imports import Waiting
from .lines import Lines
from .opens import make_opens
from .phases import NAMES, OPEN
from .post import Post
from .timeline import Timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Stacks are looked at fifty times a second at first, then less often: a share of the run is known
# as well from a thousand looks as from a million. Workers, of which there are many, begin later.
LOOK_S = 0.02
LATER_LOOK_S = 0.05
LATE_LOOK_S = 0.1
# A look costs the user's threads the time for which we hold Python's lock, and four changes of
# thread. Once the first are taken, looks may have this share of the time, and later that.
EARLY_LOOKS = 50
LATER_LOOKS = 1_000
LOOK_BUDGET = 0.0025
LATE_LOOK_BUDGET = 0.001
CHANGE_S = 2e-4
MAX_LOOK_S = 1.0
# Looks come up to this much later than in turn, so that nothing else keeps step with them.
MOMENT_S = 0.005
GOLDEN = 0.618034
COST_MEMORY = 0.2
TELL_S = 1.0
# Snapshots of lines and facts are larger than rows and change slowly.
TELL_FACTS_S = 2.0
PATIENCE_S = 0.5
# A look may hold the last reference to what the program has just let go, and then it is our thread
# that frees it. A thread that Python stops in the middle of that, at its end, would abort.
END_PATIENCE_S = 5.0
# Of a thread that has said its last word; the kernel takes some twenty microseconds.
EXIT_PATIENCE_S = 0.05
EXIT_LOOK_S = 1e-5

# Python's own profiler, to `sys.monitoring` (from Python 3.12 on).
PROFILER = 2
# With these a program makes interpreters, which may have locks of their own.
INTERPRETERS = ("_interpreters", "_xxsubinterpreters")

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


_nobody: dict[int, str] = {}
get_profiler = getattr(getattr(sys, "monitoring", None), "get_tool", _nobody.get)

_current: list[Watched] = []


def current() -> Watched | None:
    """Return what watches this process, if anything does."""
    return _current[0] if _current else None


class Watched:
    """This process, as the scribe gets to know it."""

    def __init__(self) -> None:
        self.post = Post(os.environ["STOKER_SCRIBE"])
        self.waiting = Waiting(self.give_up_on)
        self.timeline = Timeline(_thread.get_ident())
        self.lines = Lines()
        self.haste = Haste()
        self.exact: Any = None
        self.facts: dict[str, Any] = {}
        # Facts that change: asked for whenever facts are told.
        self.asked: dict[str, Callable[[], object]] = {}
        self.notes: list[str] = []
        self.rank, self.world = rank_of_process(), world_of_process()
        self.opens = make_opens()
        self.is_child = False
        # What our thread took, and what we took in the program's own.
        self.cost_s = self.worked_s = 0.0
        self._is_working = False
        self._wall = time.time() - time.perf_counter()
        self._opens_told = 0
        self._facts_told_at = 0.0
        self._stop = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._is_ticking = False
        self._ticker = 0
        self._is_alone = True
        self._pid = os.getpid()
        self._forks = 0

    def start(self) -> None:
        """Put everything in place; the user's program comes next."""
        _current.append(self)
        sys.meta_path.insert(0, self.waiting)
        hooks.wait_for_frameworks(self)
        self.haste.install()
        try:
            self.opens.start()
        except Exception as error:
            self.give_up_on("the count of files", error)
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._resume, after_in_child=self._be_child
        )
        atexit.register(self.flush)
        self.waiting.when_imported(
            "multiprocessing.util",
            lambda module: module.register_after_fork(self, Watched._flush_at_end),
        )
        if os.environ.get("STOKER_LINES") == "exact":
            from .exact import start_exact

            self.exact = start_exact(self)
        self._resume()

    def give_up_on(self, what: str, error: Exception) -> None:
        """Remember that a part of the watching is switched off."""
        self._note(f"{what} is not watched: {type(error).__name__}: {error}")

    def _note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 20:
            self.notes.append(note)

    def work(self, do: Callable[[], None]) -> None:
        """Do what takes a while in the program's thread: no line of the user's is told to."""
        began, self._is_working = time.thread_time(), True
        try:
            do()
        finally:
            self._is_working = False
            self.worked_s += time.thread_time() - began

    # -- the thread ------------------------------------------------------------------
    # `_thread` and not `threading`: a program that joins all its threads must not wait for ours.

    def _resume(self) -> None:
        self._forks = max(0, self._forks - 1)
        if self._forks or self._is_ticking or get_profiler(PROFILER) is not None:
            return
        self._stop.acquire(False)
        self._ended.acquire(False)
        self._is_ticking = True
        # Signals are for the user's threads: one that these keep off must not come in by ours.
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        try:
            _thread.start_new_thread(self._tick, ())
        except RuntimeError as error:  # no more threads: the timeline still works
            self._is_ticking = False
            self._ended.release()
            self.give_up_on("the line view", error)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _before_fork(self) -> None:
        # A CUDA event that is freed in a forked child would abort it.
        if self.timeline.marks is not None:
            self.timeline.marks.forget()
        # A fork while our thread holds a lock would leave the child with a lock held for ever.
        if get_profiler(PROFILER) is not None:
            return  # beside a profiler it holds none
        self._pause(PATIENCE_S)
        # Python 3.12 warns the program if it finds more threads than one.
        task, until = f"/proc/self/task/{self._ticker}", time.perf_counter() + EXIT_PATIENCE_S
        while os.path.exists(task) and time.perf_counter() < until:
            time.sleep(EXIT_LOOK_S)

    def _pause(self, patience_s: float) -> None:
        # Several threads may fork at once: one stops ours, all wait for it to end.
        self._forks += 1
        if self._is_ticking and self._pid == os.getpid():
            if self._stop.locked():
                self._stop.release()
            if self._ended.acquire(timeout=patience_s):
                self._ended.release()

    def _tick(self) -> None:
        me = _thread.get_ident()
        self._ticker = _thread.get_native_id()
        interval = LOOK_S
        cost = 0.0
        last = tell_at = time.perf_counter()
        self.haste.hurry(self._is_alone)
        while True:
            moment = MOMENT_S * (self.lines.samples * GOLDEN % 1)
            waits = map(self._stop.acquire, repeat(True), repeat(interval + moment))
            was_profiled = False
            # A profiler takes what is called here for the program's: a loop calls nothing.
            for is_told, profiler in zip(waits, map(get_profiler, repeat(PROFILER)), strict=False):
                if is_told or profiler is None:
                    break
                was_profiled = True
            if is_told:
                break
            now = time.perf_counter()
            if was_profiled:
                last = now
                self._note("lines are not known for the time in which Python's profiler ran")
            busy = time.thread_time()
            try:
                if self._may_look():
                    self._look(me, now - last)
                # Not by the clock: others on the cores would make looks rare, and each weigh more.
                cost += COST_MEMORY * (time.thread_time() - busy - cost)
                if now - tell_at >= TELL_S:
                    tell_at = now
                    self._tell(now)
            except Exception as error:
                self.give_up_on("the line view", error)
            last = now
            self.cost_s += time.thread_time() - busy
            interval = self._pace(cost)
            self.haste.hurry(self._is_alone)
        self.haste.rest()
        self._is_ticking = False
        self._ended.release()

    def _pace(self, cost: float) -> float:
        """Return how long to wait for the next look, of which one costs so much."""
        looks = self.lines.samples
        if looks < EARLY_LOOKS and not self.is_child:
            return LOOK_S
        is_late = looks > LATER_LOOKS
        least = LATE_LOOK_S if is_late else LATER_LOOK_S
        budget = LATE_LOOK_BUDGET if is_late else LOOK_BUDGET
        return min(MAX_LOOK_S, max(least, (CHANGE_S + cost) / budget))

    def _may_look(self) -> bool:
        # Python looks at the threads of all interpreters, and breaks those that run beside ours.
        if not any(each in sys.modules for each in INTERPRETERS):
            return True
        self._note("lines are not known from when the program may have had several interpreters")
        return False

    def _look(self, me: int, seconds: float) -> None:
        timeline, threads = self.timeline, 0
        current = timeline.current
        # Of steps that pass by some phases are not told.
        is_untold = timeline.passing is not None and current in OPEN
        # In a light step nobody says where copies and messages begin.
        is_sure = not (timeline.is_light and current in OPEN)
        # Not kept in a variable: our own frame is among them, and a ring of frames would keep alive
        # what the program lets go.
        for ident, frame in sys._current_frames().items():
            threads += 1
            if ident == timeline.owner and is_untold:
                phase = hooks.phase_on(frame, current)
                self.lines.add(frame, seconds, phase, is_sure=phase not in OPEN)
            elif ident != me and not (ident == timeline.owner and self._is_working):
                phase = current if ident == timeline.owner else len(NAMES)
                self.lines.add(frame, seconds, phase, is_sure)
        del frame
        self._is_alone = threads <= 2

    # -- what is told ----------------------------------------------------------------

    def _tell(self, now: float) -> None:
        ready = self.timeline.ready
        while ready:
            block = ready[0]
            if not self.post.send(self._rows(block)):
                break
            ready.pop(0)
        if len(ready) > 100:
            del ready[:-50]
            self.post.lost += 1
        if now - self._facts_told_at >= TELL_FACTS_S and self.post.send(self._snapshot()):
            self._facts_told_at = now

    def _rows(self, block: Block) -> dict[str, object]:
        return {
            "k": "steps",
            "rank": self.rank,
            "t": [self._wall + block.start, self._wall + block.end],
            "sums": block.sums,
        }

    def _snapshot(self) -> dict[str, object]:
        timeline = self.timeline
        return {
            "k": "facts",
            "ppid": os.getppid(),
            "child": self.is_child or _is_spawned(),
            "argv": [word[:200] for word in sys.argv[:20]] if hasattr(sys, "argv") else [],
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "rank": self.rank,
            "world": self.world,
            "steps": timeline.steps,
            "epochs": timeline.epochs.count,
            "facts": {**self.facts, **self._ask(), **self.lines.saving(), **self._unstepped()},
            "notes": self.notes,
            "opens": self.opens.count,
            "cost_s": round(self.cost_s + self.worked_s, 4),
            "lost": self.post.lost,
            "lines": self.lines.told((*NAMES, "other", "forward"), self._device_lines()),
            **({} if self.exact is None else {"exact": self.exact.told()}),
        }

    def _unstepped(self) -> dict[str, object]:
        """Say so where gradients are taken and nothing steps that we know."""
        timeline = self.timeline
        is_so = timeline.has_seen_backward and not timeline.has_stepped
        return {"is_unstepped": True} if is_so else {}

    def _ask(self) -> dict[str, object]:
        answers: dict[str, object] = {}
        for name, ask in list(self.asked.items()):
            try:
                answers[name] = ask()
            except Exception as error:
                del self.asked[name]
                self.give_up_on(name, error)
        return answers

    def _device_lines(self) -> Any:
        marks = self.timeline.marks
        return {} if marks is None or marks.lines is None else marks.lines.told()

    def flush(self) -> None:
        """Tell everything that is left; the process ends, or is about to."""
        if self._pid != os.getpid():
            return  # forked where Python did not see it: the books are the parent's
        try:
            self._pause(END_PATIENCE_S)
            self.timeline.flush()
            if self.exact is not None:
                self.exact.stop()
            for block in self.timeline.ready:
                self.post.send(self._rows(block), PATIENCE_S)
            self.timeline.ready.clear()
            # Python keeps what ended the program, once it has told it.
            error = getattr(sys, "last_type", None)
            if error is not None:
                self.facts["error"] = f"{error.__module__}.{error.__qualname__}"
            self.post.send(self._snapshot(), PATIENCE_S)
            self.post.send({"k": "bye"}, PATIENCE_S)
        except Exception as error:
            self.give_up_on("the end of the process", error)

    # -- children and files ----------------------------------------------------------

    def _be_child(self) -> None:
        """A forked child, such as a loader's worker, starts with empty books."""
        try:
            self.is_child = True
            self._pid = os.getpid()
            self._forks = 0
            self._is_ticking = False
            self.lines = Lines()
            self.opens.count = 0
            self.cost_s = self.worked_s = 0.0
            self.notes = []
            self.asked = {}
            self.timeline.reset(_thread.get_ident())
            # A forked child must not touch the device that its parent uses.
            if self.timeline.marks is not None:
                self.timeline.marks.end()
                self.timeline.marks = None
            self._stop = _thread.allocate_lock()
            self._ended = _thread.allocate_lock()
            self._facts_told_at = 0.0
            self._resume()
        except Exception as error:
            self.give_up_on("a forked child", error)

    def _flush_at_end(self) -> None:
        # Children of multiprocessing end with os._exit, which runs no atexit functions.
        sys.modules["multiprocessing.util"].Finalize(None, self.flush, exitpriority=0)


def _is_spawned() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def rank_of_process() -> int:
    """Return the rank that the launcher gave this process; 0 where there is none."""
    return _number(RANK_VARIABLES, 0)


def world_of_process() -> int:
    """Return how many ranks there are, as far as the launcher says."""
    return _number(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"), 1)


def _number(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return default
