"""Bytes that go to disk early: in steps, and a refusal is not lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

import pytest

from stoker.data.packing import writeback
from stoker.data.packing.writeback import written_early

# A machine with much else to do may take long to start a thread.
PATIENCE_S = 100.0


def test_a_file_that_grows_is_brought_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = Event(), os.fdatasync

    def noting(descriptor: int) -> None:
        real(descriptor)
        synced.set()

    monkeypatch.setattr(os, "fdatasync", noting)
    monkeypatch.setattr(writeback, "STEP", 4)
    with (tmp_path / "a").open("wb", buffering=0) as file, written_early(file):
        for _ in range(2):
            file.write(b"four")
            assert synced.wait(PATIENCE_S)
            synced.clear()


def test_a_refusal_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Event()

    def refusing(_: int) -> None:
        asked.set()
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def write() -> None:
        with (tmp_path / "a").open("wb", buffering=0) as file, written_early(file):
            file.write(b"x")
            assert asked.wait(PATIENCE_S)

    monkeypatch.setattr(os, "fdatasync", refusing)
    monkeypatch.setattr(writeback, "STEP", 1)
    with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
        write()


def test_what_goes_wrong_meanwhile_stays_what_it_is(tmp_path: Path) -> None:
    def write() -> None:
        with (tmp_path / "a").open("wb") as file, written_early(file):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write()
