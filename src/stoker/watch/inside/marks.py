"""Marks on the device's own time line, for devices that work while the host runs ahead.

A mark is a CUDA event on the current stream, recorded where a phase begins. The time between
two marks, as the device saw it, is what the phase cost the run: a wait for data that the
device spent working does not show, and one that it spent idle does. Marks are read long after,
when the device has passed them; nothing here ever waits for the device.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

from .timeline import COUNT, DATA, NAMES, Step, Timeline, settled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .device_lines import DeviceLines

# What measuring may cost, as a share of the step; when it costs more, fewer steps are measured.
BUDGET = 0.002
MAX_STRIDE = 96
# Nothing can have been given to the device between two marks that are closer than this.
SAME_S = 4e-6
# Steps that wait to be read; beyond that they are dropped and counted.
MAX_PENDING = 32


class Device(Protocol):
    """What a device can do that has a time line of its own."""

    def make_event(self) -> Any:
        """Return an event that can be recorded, queried and timed."""

    def record(self, event: Any) -> None:
        """Put the event on the stream that is current."""

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
        self.stride = 1
        self._pool: list[Any] = []
        self._open: list[tuple[int, Any]] | None = None
        self._cost = 0.0
        self._since = 0
        self._length = self._marked_at = 0.0
        # What the last two measured steps took on the device.
        self._device_s = (0.0, 0.0)
        # Marks up to the end of the last optimizer step: where a step may be cut.
        self._cut_at = 0
        # A measured step is to open at the next optimizer's end, or has just been opened there.
        self._is_wanted = self._is_fresh = False
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

    def drop_step(self) -> None:
        """Leave the step that is open unmeasured."""
        if self._open is not None:
            self._pool.extend(event for _, event in self._open)
            self._open = None

    def has_passed(self) -> bool:
        """Say whether a step is over of which only the length is wanted, with nothing due."""
        if not self.timeline.is_light or self._pending or self._is_wanted or self._is_fresh:
            return False
        if self._since + 1 >= self.stride:
            return False
        self._since += 1
        return True

    def close_step(self, step: Step, cut: bool) -> None:
        """End the open step, read one that the device has passed, and open the next.

        A step that is cut ended at its last optimizer's end, which lies behind.
        """
        if self.is_broken:
            return
        began = self.clock()
        if self._is_fresh:
            # Opened at this step's own end: it measures the next one, if that begins there.
            self._is_fresh = False
            if not cut:
                self.drop_step()
        elif self._open is not None:
            events, self._open = self._open, None
            end = self._cut_at if cut else len(events)
            self._pool.extend(event for _, event in events[end:])
            self._take(step, events[:end])
        try:
            self._read_one()
            self._cost += self.clock() - began
            if self.lines is not None and self.is_on:
                self.lines.step_closed()
        except Exception as error:
            self._give_up(error)
            return
        self._since += 1
        if self._open is None and self.is_on and self._since >= self.stride:
            self._open_next(step.length, cut)
        self._cut_at = 0
        # Of a step that is not measured only the length is taken, unless the host's own clock
        # is all there is.
        is_idle = self._open is None and not self.timeline.is_traced
        self.timeline.is_light = self.is_on and not self.is_broken and is_idle

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

    def _open_next(self, length: float, cut: bool) -> None:
        # One long step, with a checkpoint in it, must not make the short ones after it dear. A host
        # that runs ahead takes hardly any time for a step, and the device takes what it takes.
        usual = max(min(length, self._length or length), min(self._device_s))
        self._length = length
        if self._cost and usual:
            wanted = self._cost / (BUDGET * usual)
            # A stride that wanders does not fall in step with whatever comes every 10 steps.
            wander = self.measured % 3 if wanted > 1 else 0
            self.stride = min(MAX_STRIDE, max(1, round(wanted) + wander))
        self._since = 0
        self._cost = 0.0
        if cut:
            self._is_wanted = True
            return
        self._open = []
        self.mark(self.timeline.current)

    def _read_one(self) -> None:
        """Read the oldest measured step, if the device has passed its last mark."""
        if not self._pending or not self._pending[0][1][-1][1].query():
            return
        step, events = self._pending.popleft()
        totals = [0.0] * COUNT
        for (phase, event), (_, following) in pairwise(events):
            totals[phase] += event.elapsed_time(following) / 1000
        self._pool.extend(event for _, event in events)
        self.measured += 1
        block = self.timeline.block
        spans = settled(totals, step.has_forward)
        block.add(f"{step.kind}.device_step", sum(spans))
        self._device_s = (self._device_s[1], sum(spans))
        for name, span in zip(NAMES, spans, strict=True):
            if span:
                block.add(f"{step.kind}.{name}", span)
        hidden = step.host[DATA] - spans[DATA]
        if hidden > 0:
            block.add(f"{step.kind}.data_hidden", hidden)
