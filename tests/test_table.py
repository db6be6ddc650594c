"""How wide text is: as the terminal that it goes to, or without an edge."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

import pytest

from stoker.report.table import MAX_WIDTH, NO_EDGE, width

RUN = [
    sys.executable,
    "-m",
    "stoker",
    "run",
    "-o",
    "run",
    "--",
    sys.executable,
    "-c",
    f"pass  # {99 * 'x'}",
]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal that is 77 columns wide."""
    ours, theirs = os.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 33, 77, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_text_is_as_wide_as_where_it_goes_to(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with Path(os.devnull).open("w") as nobody:
        assert [width(terminal[1]), width(nobody.fileno())] == [77, NO_EDGE]
        for told, edge in (("90", 90), ("7", 60), ("700", MAX_WIDTH), ("0", MAX_WIDTH)):
            monkeypatch.setenv("COLUMNS", told)
            assert width(nobody.fileno()) == edge
    for told in ("0", "wide", "-5"):
        monkeypatch.setenv("COLUMNS", told)
        assert width(terminal[1]) == 77


@pytest.mark.parametrize("stdout", [subprocess.DEVNULL, None], ids=["elsewhere", "closed"])
def test_the_report_of_a_run_fits_its_terminal_wherever_the_output_is(
    terminal: tuple[int, int], stdout: int | None, tmp_path: Path
) -> None:
    ours, theirs = terminal
    words = RUN if stdout is not None else ["sh", "-c", 'exec "$@" >&-', "sh", *RUN]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run(words, cwd=tmp_path, env=env, stdout=stdout, stderr=theirs, check=True)
    text = os.read(ours, 1 << 16).decode()
    assert "next: stoker" in text
    assert max(map(len, text.splitlines())) == 77
