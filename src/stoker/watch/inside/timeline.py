"""One training loop as a partition of time: at every moment exactly one phase is on.

Hooks say when phases begin and end; from that the timeline finds the steps. A step is what
lies between two optimizer steps, cut where the next batch is asked for. The timeline knows
nothing of any framework and does no input or output.
"""

from __future__ import annotations

from time import perf_counter

from .block import BLOCK_S, EVALUATION, FIRST, STEADY, TRACED, WARMUP, Block, Step
from .epochs import Epochs
from .passing import ANSWERED, SEEN_BACKWARD, SEEN_FORWARD, Passing
from .phases import (
    BACKWARD,
    COUNT,
    DATA,
    FORWARD,
    GRAPH,
    LOSS,
    OPTIMIZER,
    OTHER,
    PREPARE,
    STEPS_WITHIN,
    settled,
)
from .warmup import WarmUp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .marks import Marks

# What is told of forward besides how long it was.
OF_FORWARD = ("between", "evaluated")
# A loader that has no iterator yet.
NEW_LOADER = -1


def always() -> bool:
    """Stand in where a framework does not say whether gradients are taken."""
    return True


class Timeline:
    """Where the time of one process goes, step by step."""

    def __init__(self, owner: int, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        # Set by the hooks of a device that works asynchronously; see marks.py.
        self.marks: Marks | None = None
        self.on_step: Callable[[], None] | None = None
        # Set by the hooks of a framework whose models are called in evaluation mode without gradients.
        self.has_gradients: Callable[[], bool] = always
        # Set by gates.py where they note steps that pass by.
        self.passing_type: Callable[..., Any] = Passing
        self.reset(owner)

    def reset(self, owner: int) -> None:
        """Begin anew, as a forked child does."""
        # The thread that runs the model; phases of other threads are beside the step.
        self.owner = owner
        self.totals = [0.0] * COUNT
        self.current = OTHER
        self.last = self.clock()
        # Of steps that pass by, those of the last second are still to be counted.
        self.steps = 0
        self.epochs = Epochs()
        self.warm_up = WarmUp()
        self.block = Block(self.last)
        self.ready: list[Block] = []
        # Loading and communication of other threads, and what DDP says of its own.
        self.beside = {"data": 0.0, "comm": 0.0}
        self.base = OTHER
        self._depth = 0
        # Optimizers, in the order in which they stepped.
        self._stepped: dict[int, None] = {}
        self._tentative: list[float] | None = None
        # Where the batch began that is evaluated or trained on now.
        self._micro = self.totals[:]
        self._is_new = True
        self._gap_from: list[float] | None = None
        self._asked_at = self._gap_s = 0.0
        # Loaders that fetch one batch ahead end before their last batch is used.
        self._has_ended = False
        # What is noted of loaders, by what gives their batches: how many steps were trained on them.
        self.books: dict[int, dict[str, Any]] = {}
        # Who gave the batch in hand, and the totals when the model had answered to it.
        self._givers: set[int] = set()
        self._answer = self.totals[:]
        self._around = OTHER
        self._is_answered = False
        # Of forward, what stood between two calls of the model: an environment that is played, or the
        # loss of one word after the other; and calls in evaluation mode. Of the step that has ended, too.
        self._of_forward = dict.fromkeys(OF_FORWARD, 0.0)
        self._ended_of_forward = dict.fromkeys(OF_FORWARD, 0.0)
        self._evaluated_from: float | None = None
        self._has_forward = self._has_backward = False
        self._step_forward = False
        self.has_seen_forward = self.has_seen_backward = False
        # A model is evaluated between two steps, and the last step after which one was called so.
        self._is_aside = False
        self._aside_after = -1
        self.is_started = False
        # Set by device_lines.py for the step that it traces.
        self.is_traced = False
        # Set by marks.py for a step of which only the length is taken.
        self.is_light = self._is_partly_light = False
        self.passing: Passing | None = None

    # -- the partition ---------------------------------------------------------------

    def switch(self, phase: int) -> int:
        """End the phase that is on, begin another, return the one that ended."""
        before = self.current
        if self.is_light:
            self.current = phase
            return before
        now = self.clock()
        self.totals[before] += now - self.last
        self.last = now
        self.current = phase
        if self.marks is not None:
            self.marks.mark(phase)
        return before

    def settle(self) -> None:
        """Account for the time up to now; of a light step it is known only that it passed."""
        self._look_back()
        if self.is_light:
            now = self.clock()
            self.totals[OTHER] += now - self.last
            self.last = now
        else:
            self.switch(self.current)

    # -- what the hooks say ----------------------------------------------------------

    def epoch_begins(self, loader: int) -> None:
        """A loader is there to be read from its beginning."""
        self._look_back()
        self.epochs.begins(loader)

    def loader_begins(self) -> None:
        """A loader is asked for its iterator, which may start workers: a wait for data."""
        self.data_begins(NEW_LOADER)
        self.epochs.loader_is_asked(self.totals)

    def loader_ends(self, loader: int) -> None:
        """The iterator is there; its first batch will be an epoch's first."""
        self.switch(OTHER)
        self._look_back()
        self.epochs.loader_is_there(loader)

    def data_begins(self, loader: int | None = None) -> None:
        """The next batch is asked for, of that loader: what was a step is one now."""
        self._look_back()
        if not (self.is_light and self._stepped and self._has_passed(loader)):
            self._next_batch(loader)

    def _next_batch(self, loader: int | None) -> None:
        if self._depth:
            # An optimizer's step that raised did not end.
            self._depth, self.base = 0, OTHER
        if self.is_light:
            self.settle()
        if not self.is_started:
            self._start()
        if self._is_evaluation():
            is_another = loader is not None and loader not in self._givers
            self._carve_out_evaluation(is_last=is_another or self._is_aside)
        elif self._stepped:
            self.switch(OTHER)
            if self._has_ended and self._tentative is not None:
                self._gap_s += sum(self.totals) - sum(self._tentative)
                self._close(self._tentative, cut=True)
            else:
                self._close(self.totals)
            self.totals = [0.0] * COUNT
        elif self._gap_from is not None:
            self._carve_out_gap(self._gap_from)
        self._tell_gap()
        self.switch(DATA)
        self._asked_at = sum(self.totals)
        if self._has_forward or self._has_backward or self._is_new:
            self._micro = self.totals[:]
            self._is_new = False
            self._givers.clear()
            if self.marks is not None:
                self.marks.batch_begins()
        self._has_forward = self._has_backward = self._is_aside = False
        self._gap_from = None

    def data_ends(self, loader: int, got: bool) -> None:
        """A batch is there, or the loader has no more."""
        if got:
            self.switch(PREPARE)
            self._has_ended = False
            self._givers.add(loader)
            self.epochs.batch_is_there(loader)
            return
        # The end of a loader, where its workers stop, and what follows up to the next batch of any
        # loader, stand between two epochs.
        self.settle()
        begun_at = self.epochs.loader_has_no_more(loader)
        if begun_at is None:
            spent = sum(self.totals) - self._asked_at
            self.totals[OTHER if self.is_light else DATA] -= spent
        else:
            # So does all of one that nothing was trained on.
            spent = sum(self.totals) - sum(begun_at)
            self.totals, self._micro = begun_at[:], begun_at[:]
            self._givers.discard(loader)
        self._gap_s += spent
        if self.marks is not None:
            self.marks.break_step()
        self._gap_from = self.totals[:]
        self._has_ended = True
        self.switch(OTHER)

    def batch_fails(self, loader: object) -> None:
        """A loader that was asked while steps pass by has no more, or fails."""
        self.current = DATA
        self.data_ends(id(loader), got=False)

    def forward_begins(self, is_evaluated: bool = False) -> None:
        """The model is called, maybe in evaluation mode and without gradients."""
        if is_evaluated or self._is_aside:
            self._step_aside(is_evaluated)
        passing = self.passing
        if passing is not None:
            passing.seen = passing.seen & ~ANSWERED | SEEN_FORWARD
        self._evaluated_from = None
        if self.is_light:
            self.current = FORWARD
        else:
            if not self.is_started:
                self._start()
            if self.switch(FORWARD) == LOSS:
                self._of_forward["between"] += self.totals[LOSS] - self._answer[LOSS]
            if is_evaluated and not self._is_aside:
                self._evaluated_from = self.totals[FORWARD]
        self._has_forward = self._step_forward = self.has_seen_forward = True
        self._is_answered = False
        self._gap_from = None

    def forward_ends(self) -> None:
        """The model has answered; the loss comes next, unless the call was a whole step."""
        if self._is_aside:
            # What follows may be the loss, or the next batch, or the samples that are written.
            self.settle()
            self.switch(OTHER)
            self._answer = self.totals[:]
            return
        after = self.base if self._is_answered else LOSS
        if self.is_light:
            self.current = after
            return
        self.switch(after)
        if self._evaluated_from is not None:
            self._of_forward["evaluated"] += max(0.0, self.totals[FORWARD] - self._evaluated_from)
        self._answer = self.totals[:]

    def backward_begins(self) -> None:
        """The backward pass begins."""
        if not self.is_started:
            self._start()
        passing = self.passing
        if passing is not None:
            passing.seen |= SEEN_BACKWARD | ANSWERED
        self.epochs.is_trained()
        self.switch(BACKWARD)
        self._has_backward = self.has_seen_backward = self._is_answered = True
        self._gap_from = None

    def backward_ends(self, before: int = OTHER) -> None:
        """The backward pass is over, which began in the phase before."""
        # Within a call that is a whole step, such as Lightning's, the call goes on after it.
        self.switch(FORWARD if before == FORWARD else self.base)

    def optimizer_begins(self, key: int) -> None:
        """An optimizer takes its step."""
        passing = self.passing
        if passing is not None and not self._depth and passing.order[passing.at] != key:
            self._look_back()
        self._depth += 1
        if self._depth > 1 or self.passing is not None:
            return
        if key in self._stepped:
            self._close_at_last_step()
        self._gap_from = None
        before = self.switch(OPTIMIZER)
        self._around = before if before in STEPS_WITHIN else OTHER
        self.base = OPTIMIZER

    def optimizer_ends(self, key: int) -> None:
        """An optimizer has taken its step."""
        # Of one that began while steps passed by, the beginning was not told.
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        passing = self.passing
        if passing is not None:
            # Within a scaler's step the optimizer's own may have been seen.
            passing.at += passing.order[passing.at] == key
            passing.stepped_at = self.clock()
            return
        self.base = OTHER
        self.switch(self._around)
        self._end_of_step(key)

    def graph_begins(self, key: int) -> None:
        """A captured graph is replayed: whatever it holds, it is one piece."""
        self._look_back()
        self._gap_from = None
        if key in self._stepped:
            self._close_at_last_step()
        self.switch(GRAPH)

    def graph_ends(self, key: int) -> None:
        """A graph has been launched; a loop that replays one a batch has its step there."""
        self.switch(self.base)
        self._end_of_step(key)

    def flush(self) -> None:
        """Close a step that nothing else will close: the program ends."""
        self.settle()
        now, end_s = self.last, 0.0
        if self._stepped:
            tentative = self._tentative or self.totals
            end_s = sum(self.totals) - sum(tentative)
            self.last -= end_s
            self._close(tentative, cut=True)
        elif self._is_evaluation():
            self._carve_out_evaluation(is_last=True)
        elif self.has_stepped and self._gap_from is not None:
            # After the last loader's end; a batch that never came is no end.
            end_s = sum(self.totals) - sum(self._gap_from)
        if self.marks is not None:
            self.marks.flush()
        self._tell_gap()
        if end_s >= BLOCK_S:
            # In a row of its own: the last one of training must not seem to go on.
            self._rotate(now - end_s)
            self.block.add("end.step", end_s)
        self._rotate(now)

    @property
    def has_stepped(self) -> bool:
        """Whether any optimizer has stepped, in the step that is open or before."""
        return bool(self.steps or self._stepped)

    def is_trainer(self, thread: int) -> bool:
        """Say whether the thread that is about to step is the one that we watch."""
        if thread != self.owner and not self.has_stepped:
            # Training in a thread of its own, as Ray does it: that thread is the one to watch.
            self.adopt(thread)
        return thread == self.owner

    def adopt(self, owner: int) -> None:
        """Another thread than the one that started us trains, and is about to step."""
        startup, has_loaded = sum(self.totals), bool(self.beside["data"])
        books = self.books
        self.reset(owner)
        self.books = books
        self.is_started = True
        self.block.add("startup.step", startup)
        self.epochs.is_first = has_loaded

    def _end_of_step(self, key: int) -> None:
        self._look_back()
        self._ended_of_forward = dict(self._of_forward)
        if self.is_light:
            self.settle()
        self._has_backward = True
        self._is_aside = False
        self.epochs.is_trained()
        self._stepped[key] = None
        self._tentative = self.totals[:]
        if self.marks is not None:
            self.marks.optimizer_ended()

    def _start(self) -> None:
        """The loop begins: imports, data and models before it are the start-up."""
        self.switch(self.current)
        self.is_started = True
        self.block.add("startup.step", sum(self.totals))
        self.totals = [0.0] * COUNT

    # -- steps -----------------------------------------------------------------------

    def _close_at_last_step(self, begun: bool = True) -> None:
        """The step was over after its last optimizer: it steps again, or a model is evaluated."""
        self._look_back()
        tentative = self._tentative or self.totals
        rest = [now - then for now, then in zip(self.totals, tentative, strict=True)]
        self._close(tentative, cut=True, begun=begun)
        self.totals = rest

    def _close(self, totals: list[float], cut: bool = False, begun: bool = False) -> None:
        forward = self._step_forward
        self._stepped.clear()
        self._tentative = None
        self._is_new = True
        self._step_forward = self._has_backward = self._has_forward = False
        length = sum(totals)
        self.steps += 1
        kind = self._kind(length)
        block = self.block
        for giver in self._givers:
            if giver in self.books:
                self.books[giver]["trained"] += 1
        step = Step(kind, length, settled(totals, forward), forward)
        block.add_length(kind, length)
        if not self._is_partly_light:
            if self.marks is not None and self.marks.is_on:
                block.add_host(step)
            else:
                block.add_phases(kind, step.host)
        self._tell_of_forward(kind)
        for name, value in self.beside.items():
            if value:
                block.add(f"{kind}.beside.{name}", value)
                self.beside[name] = 0.0
        if self.marks is not None:
            self.marks.close_step(step, cut, begun)
            self._is_partly_light = self.is_light
        if self.last - block.start >= BLOCK_S:
            self._rotate(self.last)
        if self.on_step is not None:
            self.on_step()

    def _tell_of_forward(self, kind: str) -> None:
        for name, value in self._ended_of_forward.items():
            if value and not self._is_partly_light:
                self.block.add(f"{kind}.{name}", value)
            self._of_forward[name] -= value
            self._ended_of_forward[name] = 0.0

    def _has_passed(self, loader: int | None) -> bool:
        """End a step of which only the length is taken, if it ended as most do.

        The same as what `_next_batch` does, in few words. Steps like it may pass by from here on.
        """
        if self.epochs.is_first or self._has_ended or self._depth or self.warm_up.is_on:
            return False
        if self.marks is None or not self.marks.has_passed():
            return False
        now = self.clock()
        self._add_passed(sum(self.totals) + now - self.last, now)
        self.last = now
        optimizers, is_same = list(self._stepped), self._givers == {loader}
        self._stepped.clear()
        self._forget_step()
        self._has_forward = self._has_backward = False
        self.current = DATA
        if is_same and loader is not None and self.marks.left > 0:
            until = self.block.start + BLOCK_S
            self.passing = self.passing_type(loader, optimizers, now, self.marks.left, until)
        self._givers.clear()
        return True

    def _look_back(self) -> None:
        """Count the steps that have passed by, and take up the open one as though none had."""
        if self.passing is None:
            return
        passing, self.passing = self.passing, None
        began = passing.began
        for end in passing.ends:
            self._add_passed(end - began, end)
            began = end
        if self.marks is not None:
            self.marks.pass_by(len(passing.ends))
        self._forget_step()
        self._has_forward = self._step_forward = bool(passing.seen & SEEN_FORWARD)
        self._has_backward = bool(passing.seen & SEEN_BACKWARD or passing.at)
        self._is_answered = bool(passing.seen & ANSWERED)
        self.last = began
        # Unless the batch that was asked for is not there yet.
        self._givers = set() if self.current == DATA else {passing.giver}
        if self._depth:
            self.current = self.base = OPTIMIZER
        self._stepped = dict.fromkeys(passing.stepped())
        if self._stepped:
            self.totals[OTHER] = passing.stepped_at - began
            self.last = passing.stepped_at
            self._tentative = self.totals[:]

    def _add_passed(self, length: float, end: float) -> None:
        self.block.add_length(STEADY, length)
        self.steps += 1
        if end - self.block.start >= BLOCK_S:
            self._rotate(end)

    def _forget_step(self) -> None:
        self.epochs.step_passes()
        self.totals, self._micro = [0.0] * COUNT, [0.0] * COUNT
        self._asked_at = 0.0
        self._tentative = self._gap_from = None
        self._is_new = self._step_forward = False

    def _kind(self, length: float) -> str:
        is_first = self.epochs.step_ends()
        if self.is_traced:
            self.is_traced = False
            # The first of an epoch is longer for other reasons.
            return FIRST if is_first else TRACED
        if self.warm_up.has_step(self.steps, length):
            return WARMUP
        return FIRST if is_first else STEADY

    def _is_evaluation(self) -> bool:
        return self._has_forward and not self._has_backward and not self._stepped

    def _step_aside(self, is_evaluated: bool) -> None:
        """Between two steps, with no batch of a loader in hand, a model is evaluated or draws samples.

        What is called so after each step, such as a player of games, is a part of the step.
        """
        self._look_back()
        if is_evaluated and self._gap_from is not None and not self._givers:
            # What came since the loader's end, such as saving, is no part of what is evaluated.
            self.settle()
            self._carve_out_gap(self._gap_from)
            self._micro = self.totals[:]
            self._gap_from = None
        if is_evaluated and self._stepped and not self._depth:
            ended = self.steps + 1
            is_rare, self._aside_after = ended - self._aside_after > 1, ended
            if is_rare:
                self._close_at_last_step(begun=False)
                self._is_aside = True
        if not self._is_aside:
            return
        self.settle()
        if self._is_evaluation():
            self._carve_out_evaluation(is_last=not is_evaluated)
        self._micro = self.totals[:]
        if not is_evaluated:
            self._is_aside = False
            self._tell_gap()

    def _tell_gap(self) -> None:
        if self._gap_s:
            self.block.add("gap.step", self._gap_s)
            self._gap_s = 0.0

    def _carve_out_gap(self, before: list[float]) -> None:
        """Between the end of one loader and the next batch: saving, printing, workers that end."""
        self.switch(OTHER)
        self._gap_s += sum(self.totals) - sum(before)
        self.totals = before
        if self.marks is not None:
            self.marks.break_step()

    def _carve_out_evaluation(self, is_last: bool) -> None:
        """A batch that no backward pass followed was evaluated, not trained on."""
        self.switch(OTHER)
        totals = self.totals
        if is_last and (self._is_aside or not self.is_light):
            # What came after the last answer, such as saving, belongs to no batch.
            self._gap_s += sum(totals) - sum(self._answer)
            totals = self._answer
        host = settled([now - then for now, then in zip(totals, self._micro, strict=True)], True)
        length = sum(host)
        self.totals = self._micro
        self._of_forward = dict(self._ended_of_forward)
        self.epochs.is_first = False
        self.block.add_length(EVALUATION, length)
        if self.marks is None or not self.marks.is_on:
            self.block.add_phases(EVALUATION, host)
        if self.marks is not None and is_last:
            self.marks.break_step()
        elif self.marks is not None:
            self.marks.close_evaluation(Step(EVALUATION, length, host, has_forward=True))
            self._is_partly_light = self._is_partly_light or self.is_light
        if self.last - self.block.start >= BLOCK_S:
            self._rotate(self.last)

    def _rotate(self, now: float) -> None:
        self.block.end = now
        if self.block.sums:
            self.ready.append(self.block)
        self.block = Block(now)
