"""The part of Stoker that runs inside the user's processes.

It starts with the standard library alone, touches a framework only when the user's program
imports it, opens no files, and switches itself off when something breaks.
"""

from __future__ import annotations


def start() -> None:
    """Watch this process."""
    from .process import Watched

    Watched().start()
