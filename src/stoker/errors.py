"""Every error a user can meet.

StokerError
  UsageError     the command line cannot be understood (exit code 2)
  SpecError      the request asks for something that no cluster can give
  ClusterError   unknown cluster, partition or GPU, or a damaged profile
  ScriptError    a training or batch script cannot be read
  FileError      a file cannot be written, or would be overwritten
  SlurmError     Slurm is not here, does not answer, or refuses
  DataError      an archive or its index is damaged, or they do not belong together
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial


class StokerError(Exception):
    """What happened, why, and what to do about it; `str()` is ready for stderr."""

    exit_code = 1

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __reduce__(self) -> tuple[object, ...]:
        # Named arguments are not what an exception is made anew with in another process.
        return partial(type(self), why=self.why, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        return f"error: {self.what}\n  why: {self.why}\n  fix: {self.fix}"


class UsageError(StokerError):
    """The command line cannot be understood."""

    exit_code = 2


class SpecError(StokerError):
    """The request asks for something that no cluster can give."""


class ClusterError(StokerError):
    """A cluster, partition or GPU is unknown, or a cluster profile is damaged."""


class ScriptError(StokerError):
    """A training or batch script cannot be read."""


class FileError(StokerError):
    """A file cannot be written, or would be overwritten."""


class SlurmError(StokerError):
    """Slurm is not here, does not answer, or refuses."""


class DataError(StokerError):
    """An archive or its index is damaged, or they do not belong together."""


def nearest(name: str, legal: Iterable[str]) -> str | None:
    """Return the legal name that `name` was probably meant to be.

    >>> nearest("pputhi", ["mahti", "puhti"])
    'puhti'
    """
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in legal}
    match = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[match[0]] if match else None
