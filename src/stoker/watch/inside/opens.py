"""How many files the program opens.

Where that was compiled, functions of C stand in the places of `open` and `os.open`, and count.
Otherwise Python tells us, who then also count what it imports. Python tells those who listen of much
else, about twenty times for each batch from workers, which slows a loop of 3 ms by percents.
"""

from __future__ import annotations

import builtins
import io
import os
import sys

BuiltinFunctionType = type(len)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where the two functions are found.
PLACES: Any = ((builtins, io, sys.modules["_io"]), (os, sys.modules.get("posix")))
# Where `os` tells what its functions can do, by the functions.
ABILITIES = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")


class Listener:
    """Counts, as a key of a dictionary in which Python looks up its events.

    `dict.get` is a hook that takes no Python code to pass over most of them: only the event that has
    this key's hash is compared with it.
    """

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        """Count from now on."""
        sys.addaudithook({self: None}.get)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash("open")

    def __eq__(self, other: object) -> bool:
        opened = other == "open"
        self.count += opened
        return opened  # a lookup that is not told it has found its key may come by again


class Doorkeeper:
    """Counts in the places of `open` and `os.open`."""

    def __init__(self, opens: Any) -> None:
        self._opens = opens

    @property
    def count(self) -> int:
        """How many files were opened."""
        return int(self._opens.count)

    @count.setter
    def count(self, value: int) -> None:
        self._opens.count = value

    def start(self) -> None:
        """Count from now on."""
        for which, places in enumerate(PLACES):
            original = places[0].open
            counting = self._opens.instead(original, which)
            for name in ABILITIES:
                if original in getattr(os, name):
                    getattr(os, name).add(counting)
            for place in places:
                if getattr(place, "open", None) is original:
                    place.open = counting


def make_opens() -> Listener | Doorkeeper:
    """Return what counts them."""
    try:
        # Named at run time: the type checker cannot find it, and it may not be there at all.
        native: Any = __import__("_opens", globals(), fromlist=["Opens"], level=1)
    except ImportError:
        return Listener()
    # Somebody else may stand there already.
    if all(isinstance(places[0].open, BuiltinFunctionType) for places in PLACES):
        return Doorkeeper(native.Opens())
    return Listener()
