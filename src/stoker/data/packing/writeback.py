"""Bytes go to disk while more are written: at the end there is little left to wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import IO

# How often the size of the file is looked at, and how much it grows until it is brought to disk.
LOOK_S, STEP = 0.02, 32 << 20


@contextmanager
def written_early(file: IO[bytes]) -> Iterator[None]:
    """Bring a file that grows to disk, step by step. Raises OSError if the disk refuses it."""
    ends, errors = Event(), list[OSError]()
    thread = Thread(target=_sync_steps, args=(file.fileno(), ends, errors), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    if errors:  # The system tells of it once only.
        raise errors[0]


def _sync_steps(descriptor: int, ends: Event, errors: list[OSError]) -> None:
    synced = 0
    while not ends.wait(LOOK_S):
        size = os.fstat(descriptor).st_size
        if size - synced >= STEP:
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                errors.append(error)
                return
            synced = size
