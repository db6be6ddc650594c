"""What a command writes: a file whole, and into devices and pipes what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("force", [True, False])
def test_what_is_printed_into_a_file_goes_behind_what_is_there(
    tmp_path: Path, name: str, force: bool
) -> None:
    """As `stoker report --csv /dev/stdout >> file` does; the name stays what it is."""
    program = (
        "from pathlib import Path; from stoker.commands.files import write_file\n"
        f"print('first'); write_file(Path({name!r}), 'a,b\\n', force={force}); print('last')"
    )
    file = tmp_path / "file"
    file.write_text("before\n")
    with file.open("a") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert file.read_text() == "before\nfirst\na,b\nlast\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["", ".", "file/below", "a" * 250, "a" * 300, "/dev/fd/999"])
@pytest.mark.parametrize("force", [True, False])
def test_a_place_where_no_file_can_be_is_an_error_of_the_user(
    tmp_path: Path, name: str, force: bool
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write|exists already"):
        write_file(tmp_path / name, "text", force=force)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
