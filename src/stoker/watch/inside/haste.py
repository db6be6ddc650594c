"""Python's lock, for our thread at once; the program sees its own setting.

Who waits for Python's lock gets it when it is given up and not taken back at once, or by force
after 5 ms in which it was never given up. Code of less than that between two lines that give it up
would never be seen, and where it is given up often and briefly we would wait for a second and more.
While our thread runs, whoever waits therefore asks for the lock at once; less soon where other
threads of the program would get it from each other that soon, too.
"""

from __future__ import annotations

import sys

from .hooks import dressed, drop_frame

HASTE_S, HASTE_AMONG_MANY_S = 1e-6, 5e-4


class Haste:
    """The interval after which a thread that waits for Python's lock asks for it."""

    def __init__(self) -> None:
        self._get, self._set = sys.getswitchinterval, sys.setswitchinterval
        self._usual = self._get()
        self._is_the_programs = False

    def install(self) -> None:
        """Show the program its own interval, and take the one that it sets."""

        def getswitchinterval() -> float:
            return haste._usual

        def setswitchinterval(interval: float, /) -> None:
            try:
                haste._set(interval)
            except BaseException as error:
                drop_frame(error)
                raise
            haste._is_the_programs, haste._usual = True, haste._get()

        haste = self
        sys.getswitchinterval = dressed(getswitchinterval, self._get)
        sys.setswitchinterval = dressed(setswitchinterval, self._set)

    def hurry(self, is_alone: bool) -> None:
        """Want the lock at once, beside one thread of the program or several."""
        if not self._is_the_programs:
            self._set(HASTE_S if is_alone else HASTE_AMONG_MANY_S)

    def rest(self) -> None:
        """Leave the lock to the program's own threads."""
        if not self._is_the_programs:
            self._set(self._usual)
