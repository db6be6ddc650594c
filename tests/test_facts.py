"""Fact files: the short way to read them comes to the same as the long one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.facts import BEGIN_BYTES, read_facts
from stoker.watch.folder import RunFolder

LINES = [["train.py", "load", 4, 1.0, 2.0, "data"]] * 500
FACTS = {"label": "0-n", "rank": 0, "facts": {"torch": "2"}, "notes": [], "cost_s": 0.5}
TOLD = {**FACTS, "lines": LINES, "workers": 2, "worker_lines": LINES}


def write(place: Path, value: dict[str, Any]) -> Path:
    RunFolder(place).write(place / "0-n.json", value)
    return place / "0-n.json"


def known(path: Path, is_checked: bool = False) -> tuple[dict[str, Any], int]:
    """What was read, without what neither way is asked for."""
    value, damaged = read_facts(path, is_checked=is_checked)
    return {name: each for name, each in value.items() if name in FACTS}, damaged


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(TOLD, id="as it is written"),
        pytest.param({"lines": LINES, **FACTS}, id="another order"),
        pytest.param({**TOLD, "facts": {"long": "x" * BEGIN_BYTES}}, id="long facts"),
        pytest.param({**TOLD, "facts": {"lines": [1, [2]]}, "notes": ['\n "lines": [']}, id="odd"),
        pytest.param(FACTS, id="no lines"),
    ],
)
def test_the_beginning_is_enough(tmp_path: Path, value: dict[str, Any]) -> None:
    path = write(tmp_path, value)
    wanted = {name: value[name] for name in FACTS}
    assert known(path) == known(path, is_checked=True) == (wanted, 0)


def test_the_lists_are_not_read(tmp_path: Path) -> None:
    assert "worker_lines" not in read_facts(write(tmp_path, TOLD))[0]


def test_a_torn_list_is_damage_and_costs_no_facts(tmp_path: Path) -> None:
    path = write(tmp_path, TOLD)
    path.write_bytes(path.read_bytes()[:-100])
    assert known(path, is_checked=True) == (FACTS, 1)


def test_what_is_not_there_is_no_damage(tmp_path: Path) -> None:
    assert read_facts(tmp_path / "none.json") == ({}, 0)


@given(st.binary(max_size=60) | st.lists(st.integers()).map(lambda each: json.dumps(each).encode()))
def test_anything_else_is_damage(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("facts") / "0-n.json"
    path.write_bytes(data)
    assert read_facts(path) == read_facts(path, is_checked=True) == ({}, 1)
