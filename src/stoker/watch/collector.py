"""Python's search for rings of values, switched off while much is read that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep Python from looking for rings among millions of values that have none.

    Of the report of a thousand machines it would take half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Nor at the end of the process, which has only this to do.
            gc.freeze()
            gc.enable()
