"""Errors go from one process to another, as loaders' workers send them."""

from __future__ import annotations

import pickle

import pytest

from stoker import errors
from stoker.errors import DataError, StokerError, UsageError


@pytest.mark.parametrize("kind", [StokerError, UsageError, DataError, errors.FileError])
def test_an_error_is_the_same_in_another_process(kind: type[StokerError]) -> None:
    error = kind("what", why="why", fix="fix")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.exit_code) == (kind, str(error), error.exit_code)
