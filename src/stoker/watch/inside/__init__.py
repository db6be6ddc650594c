"""The part of Stoker that runs inside the user's processes.

It starts with the standard library alone, touches a framework only when the user's program
imports it, opens no files, and switches itself off when something breaks.
"""

from __future__ import annotations


def start() -> None:
    """Watch this process, by its main interpreter: in another a thread of ours would abort it."""
    if not _is_main_interpreter():
        return
    from .process import Watched

    Watched().start()


def _is_main_interpreter() -> bool:
    import _signal  # type: ignore[import-not-found]

    try:
        _signal.signal(0, _signal.SIG_DFL)  # there is no such signal
    except ValueError as error:
        return "interpreter" not in str(error)
    return True
