"""What a watched process says arrives, or is counted as lost; the process never notices."""

from __future__ import annotations

import _socket
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.inside.post import MAX_BYTES, Post, render_json


class Ear:
    """The scribe's end."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.setblocking(False)

    def heard(self) -> list[dict[str, Any]]:
        found = []
        try:
            while True:
                found.append(json.loads(self.socket.recv(1 << 18)))
        except BlockingIOError:
            return found

    def go(self) -> None:
        self.socket.close()
        Path(self.address).unlink(missing_ok=True)


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    ear = Ear(tmp_path / "ear")
    yield ear
    ear.go()


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_a_message_arrives_whole_and_says_who_sent_it(ear: Ear) -> None:
    assert Post(ear.address).send({"k": "facts", "text": "ünï\ncödé \udc80"})
    assert ear.heard() == [{"pid": os.getpid(), "k": "facts", "text": "ünï\ncödé \udc80"}]


def test_no_descriptor_is_kept_between_messages(ear: Ear) -> None:
    """A program may close all it knows not, and then use the same numbers for its own files."""
    before = descriptors()
    Post(ear.address).send({"k": "bye"})
    assert descriptors() == before
    assert len(ear.heard()) == 1


def test_a_closed_standard_stream_is_not_replaced_while_we_speak(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    class Spy(_socket.socket):
        def sendto(self, *arguments: Any) -> int:
            used.append(self.fileno())
            return super().sendto(*arguments)

    monkeypatch.setattr(_socket, "socket", Spy)
    stdin = os.dup(0)
    os.close(0)
    try:
        Post(ear.address).send({"k": "bye"})
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    assert used[0] > 2
    assert len(ear.heard()) == 1


def test_modules_of_the_program_are_neither_used_nor_hidden(ear: Ear) -> None:
    """Some programs have a `json.py` of their own."""
    words = "json", "socket", "select", "numbers", "enum"
    text = (
        "import sys\nbefore = set(sys.modules)\nfrom stoker.watch.inside.post import Post\n"
        f"Post({ear.address!r}).send({{'a': [1, 2.5, range(3)]}})\n"
        f"print(sorted((set(sys.modules) - before) & {set(words)}))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert ear.heard()[0]["a"] == [1, 2.5, "range"]


def test_without_a_scribe_nothing_is_sent_and_nothing_waited_for(tmp_path: Path) -> None:
    post = Post(str(tmp_path / "nobody"))
    assert post.send({"k": "facts"}, patience_s=60)
    assert post.is_dead
    assert post.send({"k": "facts"}, patience_s=60)


@pytest.mark.parametrize("address", ["", "x" * 500, "/", "a\0b"])
def test_an_address_that_is_none_is_a_scribe_that_is_not_there(address: str) -> None:
    post = Post(address)
    assert post.send({"k": "facts"})
    assert post.is_dead


def test_a_scribe_that_goes_away_is_not_missed(ear: Ear) -> None:
    post = Post(ear.address)
    post.send({"k": "facts"})
    ear.socket.close()
    assert post.send({"k": "bye"}, patience_s=60)
    assert post.is_dead


def test_a_scribe_that_does_not_listen_now_gets_it_later(ear: Ear) -> None:
    post = Post(ear.address)
    sent = 0
    while post.send({"number": sent}):
        sent += 1
    assert sent > 0
    assert not post.send({"number": sent}, patience_s=0.001)
    assert [each["number"] for each in ear.heard()] == list(range(sent))
    assert post.send({"number": sent})
    assert (post.is_dead, post.lost) == (False, 0)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_process_that_has_no_more_descriptors_says_it_later(
    code: int, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    post = Post(ear.address)
    with monkeypatch.context() as patch:
        patch.setattr(_socket, "socket", refuse)
        assert not post.send({"k": "facts"})
    assert post.send({"k": "facts"})
    assert len(ear.heard()) == 1


@pytest.mark.parametrize("size", [MAX_BYTES, 10 * MAX_BYTES])
def test_a_message_that_is_too_large_is_lost_and_counted(size: int, ear: Ear) -> None:
    post = Post(ear.address)
    assert post.send({"text": "x" * size})
    assert post.send({"k": "bye"})
    assert post.lost == 1
    assert [each["k"] for each in ear.heard()] == ["bye"]


class Shy:
    """As the objects of some programs."""

    def __str__(self) -> str:
        raise RuntimeError("never")

    __repr__ = __str__


def test_what_is_no_json_costs_neither_the_message_nor_the_next(ear: Ear) -> None:
    """A program may give a loader its number of workers as a number of NumPy."""
    number = type("int64", (), {"__module__": "numpy", "__index__": lambda self: 4})()
    array = type("ndarray", (), {"__module__": "numpy"})()
    post = Post(ear.address)
    assert post.send({"workers": number, "batch": array, "odd": Shy(), "inf": float("inf")})
    (heard,) = ear.heard()
    assert heard.pop("pid") == os.getpid()
    assert heard == {"workers": 4, "batch": "ndarray", "odd": "Shy", "inf": float("inf")}


def test_a_message_that_cannot_be_written_is_lost_and_counted(ear: Ear) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    post = Post(ear.address)
    for each in ({"a": endless}, {"a": deep}, {"a": {Shy(): 3}}):
        assert post.send(each)
    assert (post.lost, post.is_dead) == (3, False)
    while deep:
        deep = deep[0]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_what_json_can_say_is_said_as_it_is(value: object) -> None:
    assert json.loads(render_json(value)) == value


keys = st.text() | st.none() | st.integers() | st.tuples(st.integers())
anything = st.recursive(
    st.none() | st.floats() | st.text() | st.binary() | st.complex_numbers() | st.builds(Shy),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), anything))
def test_nothing_that_is_said_raises(message: dict[str, object]) -> None:
    Post("/nowhere/at/all").send(message)
    json.loads(render_json(message))
