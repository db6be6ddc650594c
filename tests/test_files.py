"""What a command writes: a file whole, and into devices and pipes what they are for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker.commands.files import check_free, write_file
from stoker.errors import FileError


def test_a_file_is_written_and_not_over_another(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_file(path, "ünïcödé")
    assert path.read_text() == "ünïcödé"
    with pytest.raises(FileError, match="exists already"):
        write_file(path, "another")
    write_file(path, "another", force=True)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("another", [path])


@pytest.mark.parametrize("force", [True, False])
def test_a_device_stays_what_it_is(force: bool) -> None:
    """As root, the null device of the machine would be gone otherwise."""
    ours, theirs = os.openpty()
    terminal = Path(os.ttyname(theirs))
    check_free(terminal, force=force)
    write_file(terminal, "a line\n", force=force)
    assert os.read(ours, 100).split() == [b"a", b"line"]
    assert terminal.is_char_device()
    for each in (ours, theirs):
        os.close(each)


@pytest.mark.parametrize("force", [True, False])
def test_into_a_pipe_goes_the_text(tmp_path: Path, force: bool) -> None:
    pipe = tmp_path / "pipe"
    read: list[str] = []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "a,b\n", force=force)
    reader.join(timeout=10)
    assert (read, pipe.is_fifo()) == (["a,b\n"], True)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        write_file(tmp_path, "text", force=True)
