"""Device time by line of the user's code, and the lines at which the host waits for the device.

A few steps of the run are traced: every call into torch is seen, and where the user's line
changes a CUDA event is recorded. A line synchronises if it makes the host wait for
values of the device. Traced steps are kept out of every other figure.
Compiled code is never traced, because that would compile it again.
"""

from __future__ import annotations

import sys

from .hooks import drop_frame
from .lines import is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from .marks import Device
    from .timeline import Timeline

# Traced steps: after warm-up, then ever more rarely; a run of any length has a handful.
FIRST_TRACED = 30
MAX_TRACED = 8
# What traced steps may take of the run, as a share.
BUDGET = 0.001
# Calls on a tensor of the device that hand its values to the host, which waits for them.
SYNCHRONISING = frozenset((
    "item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__",
    "__repr__", "__format__", "__contains__", "nonzero", "masked_select", "unique", "is_nonzero",
    "equal", "allclose",
))  # fmt: skip
# A step with more lines than this is not worth its memory.
MAX_EVENTS = 20_000


class DeviceLines:
    """Traces a handful of steps."""

    def __init__(self, timeline: Timeline, torch: Any, device: Device) -> None:
        self.timeline = timeline
        self.torch = torch
        self.device = device
        self.traced = 0
        # (code, line) -> [device s, waits] over the traced steps.
        self.seconds: dict[tuple[CodeType, int], list[float]] = {}
        self.is_off = False
        self._error: Exception | None = None
        self._next = FIRST_TRACED
        self._dropped = 0
        self._not_before = self._began = 0.0
        self._mode: Any = None
        self._events: list[tuple[tuple[CodeType, int] | None, Any]] = []
        self._pending: list[tuple[tuple[CodeType, int] | None, Any]] = []
        self._users: dict[str, bool] = {}

    @property
    def is_tracing(self) -> bool:
        """Whether calls into torch are seen now."""
        return self._mode is not None

    def step_closed(self) -> None:
        """Begin or end a traced step where one is due."""
        if self._pending and self._pending[-1][1].query():
            self._read()
        if self._mode is not None:
            self._end()
        elif self._is_due():
            self._begin()

    def drop(self) -> None:
        """Trace another step soon: in this one a loader has ended, or a batch was evaluated."""
        if self._mode is None or not self._leave():
            return
        self._events = []
        self.timeline.is_traced = False
        # Ever more rarely: there may be something in each of them.
        self._dropped += 1
        self._next = self.timeline.steps + 2**self._dropped

    def _is_due(self) -> bool:
        return (
            self.timeline.steps >= self._next
            and self.timeline.last >= self._not_before
            and self.traced < MAX_TRACED
            and not self._pending
        )

    def forget(self) -> None:
        """Let go of every event."""
        self._events = []
        self._pending = []

    def end(self) -> None:
        """Trace no more."""
        self.is_off = True
        if self._mode is not None:
            self._leave()

    def told(self) -> dict[tuple[CodeType, int], dict[str, object]]:
        """Return device seconds a step, and whether the host waited there, by line."""
        return {
            key: {"device_ms": round(1000 * seconds / self.traced, 3), "sync": waits > 0}
            for key, (seconds, waits) in self.seconds.items()
            if self.traced
        }

    def _begin(self) -> None:
        self._next = 2 * self.timeline.steps
        if self._is_compiling_code() or self.device.is_capturing():
            return
        self._events = []
        self._began = self.timeline.last
        self._mode = self._make_mode()
        self._mode.__enter__()
        self.timeline.is_traced = True

    def _leave(self) -> bool:
        """Take our mode off, unless the user has entered one since: then it must come off later."""
        mode = self._mode
        if not self._is_on_top(mode):
            return False
        self._mode = None
        mode.__exit__(None, None, None)
        return True

    def _end(self) -> None:
        if not self._leave():
            return
        now = self.timeline.last
        self._not_before = now + (now - self._began) / BUDGET
        if self._error is not None:
            raise self._error
        self.mark(None)
        self._pending, self._events = self._events, []

    def _is_on_top(self, mode: Any) -> bool:
        return self.torch.overrides._get_current_function_mode() is mode

    def _is_compiling_code(self) -> bool:
        utils = sys.modules.get("torch._dynamo.utils")
        return utils is not None and utils.counters["frames"].get("total", 0) > 0

    def _read(self) -> None:
        self.traced += 1
        for (key, event), (_, following) in zip(self._pending, self._pending[1:], strict=False):
            if key is not None:
                pair = self.seconds.setdefault(key, [0.0, 0.0])
                pair[0] += event.elapsed_time(following) / 1000
        self._pending = []

    def mark(self, key: tuple[CodeType, int] | None) -> None:
        """Record where on the device's time line a line of the user's begins."""
        if len(self._events) < MAX_EVENTS and not self.device.is_capturing():
            event = self.device.make_event()
            self.device.record(event)
            self._events.append((key, event))

    def see(self) -> tuple[CodeType, int] | None:
        """Note that torch is called, and return the user's line that called it. Never raises."""
        try:
            key = self.line()
            if not self._events or self._events[-1][0] != key:
                self.mark(key)
        except Exception as error:  # told when the step is over
            self.is_off, self._error = True, error
            return None
        return key

    def line(self) -> tuple[CodeType, int] | None:
        """Return the innermost line of the user's code that is running."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            mine = self._users.get(name)
            if mine is None:
                mine = self._users[name] = is_users(name)
            if mine:
                return (frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None

    def _make_mode(self) -> Any:
        lines = self

        class Tracing(self.torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if lines.is_off:
                    return func(*args, **(kwargs or {}))
                key = lines.see()
                try:
                    result = func(*args, **(kwargs or {}))
                except BaseException as error:
                    drop_frame(error)
                    raise
                if key is not None and args and is_sync(func, args[0], result):
                    lines.seconds.setdefault(key, [0.0, 0.0])[1] += 1
                return result

        return Tracing()


def is_sync(func: Any, tensor: Any, result: Any) -> bool:
    """Say whether a call made the host wait for the device."""
    if not getattr(tensor, "is_cuda", False):
        return False
    name = getattr(func, "__name__", "")
    return name in SYNCHRONISING or (name == "to" and not result.is_cuda)
