"""Refused: a request that cannot be had, before anybody has looked for the nearest that can."""

from __future__ import annotations


class Refused(Exception):
    """What cannot be had, and why; `offers` finds the fix."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.what, self.why = what, why
