"""Marks on the device's own time line, for devices that work while the host runs ahead.

A mark is a CUDA event on the stream that the model computes on, recorded where a phase begins; what
goes on beside it on other streams shows where that one waits for it. The time between
two marks, as the device saw it, is what the phase cost the run: a wait for data that the
device spent working does not show, and one that it spent idle does. Marks are read long after,
when the device has passed them; nothing here ever waits for the device.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random
from time import perf_counter
from typing import Any, Protocol

from .block import EVALUATION, Step
from .phases import BACKWARD, COMM, COUNT, DATA, FORWARD, GRAPH, H2D, OPTIMIZER, settled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .device_lines import DeviceLines
    from .timeline import Timeline

# What measuring may cost, as a share of the step; when it costs more, fewer steps are measured.
BUDGET = 0.001
MAX_STRIDE = 96
# So many steps, and so many evaluated batches, are measured whatever it costs, which is milliseconds
# in all: short runs are to be known, too.
MIN_MEASURED = 64
# How often a step is measured is settled anew after so many of them.
STRETCH = 16
# What counts of a figure that is far above the others, in times their middle.
MOST = 4.0
# Nothing can have been given to the device between two marks that are closer than this.
SAME_S = 4e-6
# Where the model computes, and what programs do on streams beside it.
COMPUTING = frozenset((FORWARD, BACKWARD, OPTIMIZER, GRAPH))
BESIDE = frozenset((H2D, COMM))
# Steps that wait to be read; beyond that they are dropped and counted.
MAX_PENDING = 32


class Device(Protocol):
    """What a device can do that has a time line of its own."""

    def make_event(self) -> Any:
        """Return an event that can be recorded, queried and timed."""

    def follow(self) -> None:
        """From now on, events are for the stream that is current."""

    def record(self, event: Any) -> None:
        """Put the event on the stream that is followed."""

    def is_capturing(self) -> bool:
        """Say whether the stream records a graph now, in which an event would be caught."""


class Marks:
    """Measures some of the steps on the device."""

    def __init__(
        self,
        timeline: Timeline,
        device: Device,
        on_error: Callable[[str, Exception], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.timeline = timeline
        self.clock = clock
        self.device = device
        self.on_error = on_error
        # Whether steps of this process run on the device at all.
        self.is_on = False
        # The device has failed once: it is asked no more.
        self.is_broken = False
        self.lines: DeviceLines | None = None
        self.dropped = 0
        self.measured = 0
        # How many steps there are to a measured one, on average, and to the next.
        self.stride = 1.0
        self._wait = 1
        self._pool: list[Any] = []
        self._open: list[tuple[int, Any]] | None = None
        # What marks cost since a step was opened last.
        self._cost = 0.0
        self._since = 0
        self._marked_at = 0.0
        # Of this stretch: what marks cost for each step, and what steps took, here and on the device.
        self._costs: list[float] = []
        self._lengths: list[float] = []
        self._spans: list[float] = []
        # Opened so far: steps, and batches that are evaluated.
        self._opened = {False: 0, True: 0}
        self._draw = Random(1)
        # Marks up to the end of the last optimizer step: where a step may be cut.
        self._cut_at = 0
        # Marks up to where the batch in hand was asked for: where its evaluation begins.
        self._batch_at = 0
        # A measured step is to open at the next optimizer's end, or has just been opened there.
        self._is_wanted = self._is_fresh = False
        # What is open began where a batch had been evaluated, which is no step's beginning.
        self._is_within = False
        self._pending: deque[tuple[Step, list[tuple[int, Any]]]] = deque()

    def mark(self, phase: int) -> None:
        """Record where the phase begins, if this step is measured."""
        open_ = self._open
        if open_ is None:
            return
        began = self.clock()
        if open_ and began - self._marked_at < SAME_S:
            open_[-1] = (phase, open_[-1][1])
            return
        try:
            if self.device.is_capturing():
                self.drop_step()
                return
            # What is copied or sent in the middle of a phase may be so on another stream.
            if phase in COMPUTING and not (open_ and open_[-1][0] in BESIDE):
                self.device.follow()
            event = self._pool.pop() if self._pool else self.device.make_event()
            self.device.record(event)
        except Exception as error:  # the device is in trouble, and the user will hear of it
            self._give_up(error)
            return
        open_.append((phase, event))
        self._marked_at = self.clock()
        self._cost += self._marked_at - began

    def optimizer_ended(self) -> None:
        """The last mark is an optimizer's end: a step may end, and another begin, there."""
        if self._is_wanted or self._is_fresh:
            self.drop_step()
            self._open = []
            self.timeline.is_light = False
            self._is_wanted, self._is_fresh = False, True
            self.mark(self.timeline.current)
        elif self._open is not None:
            self._cut_at = len(self._open)

    def batch_begins(self) -> None:
        """The last mark is where a batch is asked for, which may be evaluated."""
        if self._open is not None:
            self._batch_at = max(0, len(self._open) - 1)

    def drop_step(self) -> None:
        """Leave the step that is open unmeasured."""
        if self._open is not None:
            self._pool.extend(event for _, event in self._open)
            self._open = None

    def break_step(self) -> None:
        """Within the step that is open a loader has ended, or a batch was evaluated."""
        self.drop_step()
        if self.lines is None:
            return
        try:
            self.lines.drop()
        except Exception as error:
            self._give_up(error)

    def has_passed(self) -> bool:
        """Say whether a step is over of which only the length is wanted, with nothing due."""
        if not self.timeline.is_light or self._pending or self._is_wanted or self._is_fresh:
            return False
        if self._since + 1 >= self._wait or self._opened[False] < MIN_MEASURED:
            return False
        if self.lines is not None and self.lines.is_tracing:
            return False
        self._since += 1
        return True

    @property
    def left(self) -> int:
        """How many steps may pass by before one is due."""
        return self._wait - self._since - 1

    def pass_by(self, steps: int) -> None:
        """So many steps are over of which only the length was wanted."""
        self._since += steps

    def close_step(self, step: Step, cut: bool, begun: bool) -> None:
        """End the open step, read one that the device has passed, and open the next.

        A step that is cut ended at its last optimizer's end, which lies behind; the next one has
        begun there, or begins here.
        """
        if self.is_broken:
            return
        began = self.clock()
        if self._is_fresh:
            # Opened at this step's own end: it measures the next one, if that begins there.
            self._is_fresh = False
            if not begun:
                self.drop_step()
        elif self._is_within:
            self.drop_step()
        elif self._open is not None:
            events, self._open = self._open, None
            end = self._cut_at if cut else len(events)
            self._pool.extend(event for _, event in events[end:])
            self._take(step, events[:end])
        self._go_on(step, began, begun)

    def close_evaluation(self, step: Step) -> None:
        """End a batch that was evaluated, which is measured as a step is, and open the next."""
        if self.is_broken or self._is_wanted or self._is_fresh or self.timeline.is_traced:
            self.break_step()
            return
        began = self.clock()
        if self._open is not None:
            events, self._open = self._open, None
            self._pool.extend(event for _, event in events[: self._batch_at])
            self._take(step, events[self._batch_at :])
        self._go_on(step, began, begun=False)
        self._is_within = True

    def _go_on(self, step: Step, began: float, begun: bool) -> None:
        self._is_within = False
        try:
            self._read_one()
            self._cost += self.clock() - began
            if self.lines is not None and self.is_on and step.kind != EVALUATION:
                self.lines.step_closed()
        except Exception as error:
            self._give_up(error)
            return
        self._since += 1
        is_due = self._since >= self._wait or not self._is_sampled(step)
        if self._open is None and self.is_on and is_due:
            self._open_next(step, begun)
        self._cut_at = self._batch_at = 0
        # Of a step that is not measured only the length is taken, unless the host's own clock
        # is all there is.
        is_idle = self._open is None and not self.timeline.is_traced
        self.timeline.is_light = self.is_on and not self.is_broken and is_idle

    def flush(self) -> None:
        """Read what the device has passed by the end of the program."""
        try:
            while not self.is_broken and self._read_one():
                pass
        except Exception as error:
            self._give_up(error)

    def forget(self) -> None:
        """Let go of every event: the process is about to fork."""
        self._open = None
        self._is_wanted = self._is_fresh = False
        self._pool.clear()
        self._pending.clear()
        if self.lines is not None:
            self.lines.forget()

    def end(self) -> None:
        """Touch the device no more."""
        self.is_on = False
        self._stop()

    def _stop(self) -> None:
        self._open = None
        self.timeline.is_light = False
        self._is_wanted = self._is_fresh = False
        if self.lines is not None:
            self.lines.end()

    def _give_up(self, error: Exception) -> None:
        # Still on: what the host measures from now on must not mix with the device's phases.
        self.is_broken = True
        self._stop()
        self.on_error("the device's time line", error)

    def _take(self, step: Step, events: list[tuple[int, Any]]) -> None:
        if len(events) < 2 or not self.is_on or len(self._pending) >= MAX_PENDING:
            self.dropped += self.is_on
            self._pool.extend(event for _, event in events)
            return
        self._pending.append((step, events))

    def _open_next(self, step: Step, begun: bool) -> None:
        # The first marks set the device up, and cost what no others do.
        if step.kind == EVALUATION or not self.timeline.warm_up.is_on:
            self._opened[step.kind == EVALUATION] += 1
            self._costs.append(self._cost)
            self._lengths.append(step.length)
            if len(self._costs) >= STRETCH:
                self._choose_stride()
        # Drawn, as batches of several workers come in rounds: strides of one length would fall in
        # step with them, and so would such as hang on the step before.
        self._wait = 1 + int(self._draw.random() * (2 * self.stride - 1))
        self._since = 0
        self._cost = 0.0
        if begun:
            self._is_wanted = True
            return
        self._open = []
        self.mark(self.timeline.current)

    def _is_sampled(self, step: Step) -> bool:
        return self._opened[step.kind == EVALUATION] >= MIN_MEASURED

    def _choose_stride(self) -> None:
        # A host that runs ahead takes hardly any time for a step; the device takes what it takes.
        length = max(_usual(self._lengths), _usual(self._spans))
        if length:
            self.stride = min(MAX_STRIDE, max(1.0, _usual(self._costs) / (BUDGET * length)))
        for each in (self._costs, self._lengths, self._spans):
            each.clear()

    def _read_one(self) -> bool:
        """Read the oldest measured step, if the device has passed its last mark."""
        if not self._pending or not self._pending[0][1][-1][1].query():
            return False
        step, events = self._pending.popleft()
        totals = [0.0] * COUNT
        for (phase, event), (_, following) in pairwise(events):
            totals[phase] += event.elapsed_time(following) / 1000
        self._pool.extend(event for _, event in events)
        self.measured += 1
        block = self.timeline.block
        spans = settled(totals, step.has_forward)
        block.add(f"{step.kind}.device_step", sum(spans))
        self._spans.append(sum(spans))
        block.add_phases(step.kind, spans)
        hidden = step.host[DATA] - spans[DATA]
        if hidden > 0:
            block.add(f"{step.kind}.data_hidden", hidden)
        return True


def _usual(values: list[float]) -> float:
    """Return the mean of some figures, of which a few have a checkpoint or a pause in them."""
    if not values:
        return 0.0
    most = MOST * sorted(values)[len(values) // 2]
    return sum(min(each, most) for each in values) / len(values)
