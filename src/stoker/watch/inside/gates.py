"""Gates before our wrappers, in C where that was compiled: steps pass by them without any Python.

A compiler that reads Python, as torch.compile does, is to find functions of Python. Gates are there
from when it is imported, as every optimizer does, until it is asked for anything.

They stand where a function is looked up for each call, and not where programs keep it: tables of
functions, such as those for `__torch_function__`, are to find what they have.
"""

from __future__ import annotations

from contextlib import suppress

from .hooks import named
from .passing import Passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .timeline import Timeline

NATIVE: Any
try:
    # Named at run time: the type checker cannot find it, and it may not be there at all.
    NATIVE = __import__("_gate", globals(), fromlist=["Notes"], level=1)
except ImportError:
    NATIVE = None


class Gates:
    """Puts wrappers in their places, and gates before them while no compiler reads."""

    def __init__(self, timeline: Timeline, native: Any = NATIVE) -> None:
        self._timeline = timeline
        self._native = native
        self._is_open = False
        # Where each is, as an attribute or as a value of a dictionary: place, name, wrapper, gate.
        self._places: list[tuple[Any, Any, Any, Any]] = []
        if native is not None:
            timeline.passing_type = _in_reach_of(native)

    def put(self, place: Any, name: str, wrapper: Any, way: str, original: Any = None) -> None:
        """Make a wrapper an attribute; steps that pass by go such a way to what it wraps.

        A class stands for its `__call__` of the moment, as in `spanning`.
        """
        setattr(place, name, wrapper)
        self._remember(place, name, wrapper, way, original or wrapper.__wrapped__)

    def register(self, register: Callable[[Any], Any], hook: Any, way: str) -> None:
        """Have a hook called before or after each step of an optimizer."""
        handle = register(hook)
        hooks = getattr(handle, "hooks_dict_ref", lambda: None)()
        if hooks is not None:
            self._remember(hooks, handle.id, hook, way, hook)

    def _remember(self, place: Any, name: Any, wrapper: Any, way: str, original: Any) -> None:
        if self._native is None:
            return
        gate = getattr(self._native, way)(self._timeline, wrapper, original)
        named(gate, wrapper).__wrapped__ = original
        self._places.append((place, name, wrapper, gate))
        if self._is_open:
            _exchange(place, name, wrapper, gate)

    def behind(self, found: Any) -> Any:
        """Return the wrapper if a gate was found: what goes around it is read by compilers too."""
        return next((wrapper for _, _, wrapper, gate in self._places if gate is found), found)

    def open(self) -> None:
        """Put the gates in place."""
        self._is_open = True
        for place, name, wrapper, gate in self._places:
            _exchange(place, name, wrapper, gate)

    def close(self) -> None:
        """Leave only the wrappers, for good."""
        self._native = None
        while self._places:
            place, name, wrapper, gate = self._places.pop()
            _exchange(place, name, gate, wrapper)


def _exchange(place: Any, name: Any, old: Any, new: Any) -> None:
    """Put the new where the old is, unless somebody else has put something there, or forbids it."""
    with suppress(Exception):
        if isinstance(place, dict):
            if place.get(name) is old:
                place[name] = new
        elif vars(place).get(name) is old:
            setattr(place, name, new)


def _in_reach_of(native: Any) -> type:
    """Return Passing with its attributes where gates find them without asking Python."""
    methods = {"__init__": Passing.__init__, "stepped": Passing.stepped}
    return type("Passing", (native.Notes,), {"__slots__": (), **methods})
