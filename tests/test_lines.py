"""Stacks become lines of the user's own code, whatever libraries stand above them."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import cast

import pytest

import stoker
from conftest import Stoker
from stoker.watch.folder import RunFolder
from stoker.watch.inside import lines as lines_module
from stoker.watch.inside.hooks import UNNAMED, phase_on
from stoker.watch.inside.lines import MAX_TOLD, Lines, is_users
from stoker.watch.inside.phases import LOSS, OPTIMIZER
from stoker.watch.summary import read_summary

NAMES = ("data", "h2d", "forward")
DATA, FORWARD, OTHER_THREAD = 0, 2, 3
LIBRARY = "/env/lib/python3.11/site-packages/torch/nn/modules/module.py"


def code(file: str, function: str = "main") -> CodeType:
    return compile("pass", file, "exec").replace(co_name=function)


class FakeFrame:
    """One call on a stack."""

    def __init__(self, code: CodeType, line: int | None, below: FakeFrame | None) -> None:
        self.f_code, self.f_lineno, self.f_back = code, line, below


def stack(*calls: tuple[str, str, int]) -> FrameType:
    """A stack of (file, function, line), the innermost first."""
    frame: FakeFrame | None = None
    for file, function, line in reversed(calls):
        frame = FakeFrame(code(file, function), line, frame)
    return cast(FrameType, frame)


LOADER = ("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "__next__", 733)
MODEL = (UNNAMED, "span", 1)
STEP = ("/env/lib/python3.11/site-packages/torch/optim/optimizer.py", "wrapper", 540)
TRAIN = ("/u/train.py", "train", 12)


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        ([LOADER], DATA),
        ([MODEL, STEP], OPTIMIZER),
        ([STEP], OPTIMIZER),
        ([MODEL], LOSS),
        ([("/u/loader.py", "__next__", 3)], LOSS),
        ([("/u/mine.py", "wrapper", 3)], LOSS),
        ([], LOSS),
    ],
)
def test_the_phase_of_a_step_that_passes_by_is_found_on_the_stack(
    calls: list[tuple[str, str, int]], phase: int
) -> None:
    inner = (LIBRARY, "linear", 7)
    assert phase_on(stack(inner, *calls, TRAIN), LOSS) == phase


def told(lines: Lines) -> list[tuple[object, ...]]:
    """File, function, line, seconds innermost, seconds anywhere, phase."""
    return [tuple(each) for each in lines.told(NAMES, {})]


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_the_innermost_line_has_the_time_and_its_callers_have_it_in_total(lines: Lines) -> None:
    here = ("/u/data.py", "load", 7), ("/u/train.py", "main", 40)
    lines.add(stack(*here), 0.5, DATA)
    lines.add(stack(*here), 0.25, DATA)
    lines.add(stack(("/u/train.py", "main", 40)), 1.0, FORWARD)
    assert told(lines) == [
        ("/u/train.py", "main", 40, 1.0, 1.75, "forward"),
        ("/u/data.py", "load", 7, 0.75, 0.75, "data"),
    ]
    assert lines.samples == 3


def test_time_in_a_library_is_that_of_the_line_which_called_it(lines: Lines) -> None:
    inner = (LIBRARY, "forward", 1), ("<frozen runpy>", "run", 2), (os.__file__, "walk", 3)
    lines.add(stack(*inner, ("/u/model.py", "forward", 9), (LIBRARY, "f", 4)), 1, FORWARD)
    assert told(lines) == [("/u/model.py", "forward", 9, 1, 1, "forward")]


def test_a_stack_without_a_line_of_the_user_is_nobodys(lines: Lines) -> None:
    lines.add(stack((LIBRARY, "forward", 1)), 1, FORWARD)
    lines.add(None, 1, FORWARD)
    assert told(lines) == []


def test_recursion_counts_once(lines: Lines) -> None:
    again = ("/u/tree.py", "walk", 3)
    lines.add(stack(again, again, ("/u/tree.py", "walk", 5), again, again), 2, DATA)
    assert told(lines) == [
        ("/u/tree.py", "walk", 3, 2, 2, "data"),
        ("/u/tree.py", "walk", 5, 0, 2, None),
    ]


def test_a_line_has_the_phase_of_most_of_its_time(lines: Lines) -> None:
    for seconds, phase in ((1, DATA), (3, FORWARD), (1.5, DATA), (0.1, OTHER_THREAD)):
        lines.add(stack(("/u/train.py", "main", 4)), seconds, phase)
    lines.add(stack(("/u/saver.py", "save", 2)), 1, OTHER_THREAD)
    assert [each[-1] for each in told(lines)] == ["forward", None]


def test_a_phase_that_is_not_sure_counts_where_no_other_was_seen(lines: Lines) -> None:
    copy, table = ("/u/train.py", "main", 4), ("/u/train.py", "main", 9)
    lines.add(stack(copy), 20, DATA, is_sure=False)
    lines.add(stack(copy), 1, FORWARD)
    lines.add(stack(table), 5, DATA, is_sure=False)
    assert [each[-1] for each in told(lines)] == ["forward", "data"]


def test_the_stack_of_a_forked_worker_ends_where_the_worker_begins(lines: Lines) -> None:
    """Below it are the frames of the parent, which the child will never return to."""
    bootstrap = ("/usr/lib/python3.11/multiprocessing/process.py", "_bootstrap", 314)
    parent = ("/u/train.py", "main", 40)
    lines.add(stack(("/u/data.py", "__getitem__", 7), bootstrap, parent), 1, DATA)
    assert [each[:3] for each in told(lines)] == [("/u/data.py", "__getitem__", 7)]
    mine = ("/u/multiprocessing/process.py", "run", 3)
    lines.add(stack(mine, parent), 1, DATA)
    assert len(told(lines)) == 3


def test_equal_functions_of_two_files_are_two(lines: Lines) -> None:
    """Python takes code for equal that differs only in the name of its file."""
    assert code("/u/old/model.py") == code("/u/new/model.py")
    lines.add(stack(("/u/old/model.py", "main", 1)), 1, DATA)
    lines.add(stack(("/u/new/model.py", "main", 1)), 3, DATA)
    assert [each[:4] for each in told(lines)] == [
        ("/u/new/model.py", "main", 1, 3),
        ("/u/old/model.py", "main", 1, 1),
    ]


def test_a_frame_that_has_no_line_yet_is_at_its_function(lines: Lines) -> None:
    frame = FakeFrame(code("/u/train.py").replace(co_firstlineno=12), None, None)
    lines.add(cast(FrameType, frame), 1, DATA)
    assert told(lines)[0][2] == 12


# -- what is kept, and what is told ------------------------------------------------------


def test_beyond_a_bound_the_lightest_are_forgotten(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINES", 20)
    for number in range(1, 201):
        lines.add(stack(("/u/made.py", "main", number)), 1000 if number % 40 == 0 else 1, DATA)
        assert len(lines.told((), {})) <= 20
    heavy = [each[2] for each in told(lines) if each[3] == 1000]
    assert sorted(cast(list[int], heavy)) == [40, 80, 120, 160, 200]


def test_the_heaviest_lines_are_told(lines: Lines) -> None:
    for number in range(1, 2 * MAX_TOLD):
        lines.add(stack(("/u/made.py", "main", number)), number, DATA)
    assert [each[2] for each in told(lines)] == list(range(2 * MAX_TOLD - 1, MAX_TOLD - 1, -1))


def test_what_the_device_knows_of_a_line_comes_last(lines: Lines) -> None:
    lines.add(stack(("/u/train.py", "main", 4)), 1, FORWARD)
    known = {"device_ms": 2.5, "sync": True}
    other = code("/u/model.py", "forward")
    rows = lines.told(NAMES, {(code("/u/train.py"), 4): known, (other, 9): {"device_ms": 1.0}})
    assert rows == [
        ["/u/train.py", "main", 4, 1, 1, "forward", known],
        ["/u/model.py", "forward", 9, 0.0, 0.0, None, {"device_ms": 1.0}],
    ]


# -- whose file is it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/home/u/train.py", "train.py", "./a b/träin.py", "/home/u/it's; $(odd)\n.py",
        "/home/u/lib/python/model.py", "/home/u/site-packages.py", "/tmp/ipykernel_71/3.py",
        "/home/u/my-site-packages/model.py", "/home/u/stoker/train.py",
    ],
)  # fmt: skip
def test_files_of_the_user(path: str) -> None:
    assert is_users(path)


@pytest.mark.parametrize(
    "path",
    [
        "", "<string>", "<frozen importlib._bootstrap>", "<eval_with_key>.0", "<x>.py",
        LIBRARY, "/usr/lib/python3/dist-packages/numpy/core.py", "/home/u/page.html",
        "../../../../../../../../../../" + LIBRARY, "/u/site-packages/x.so",
        os.__file__, sysconfig.get_paths()["stdlib"] + "/json/decoder.py",
        f"{sys.prefix}/lib/python3.11/x.py", stoker.__file__, lines_module.__file__,
        "no such file", "torch/nn/functional.pyx",
        "/tmp/torchinductor_me/7s/c7syt75bkqo54rhcdfqj.py", "/tmp/__autograph_generated_file0x1.py",
    ],
)  # fmt: skip
def test_files_of_others(path: str) -> None:
    assert not is_users(path)


def test_what_a_compiler_wrote_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/me/compiled")
    assert not is_users("/scratch/me/compiled/7s/c7syt75bkqo54rhcdfqj.py")
    assert is_users("/scratch/me/compiled_models/train.py")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_text("#!/usr/bin/env python\n")
    return tmp_path / "train"


def test_a_script_without_an_ending_is_the_users(script: Path) -> None:
    assert is_users(str(script))
    assert is_users("train")
    assert not is_users(str(script.parent))


def test_what_libraries_save_is_counted_by_the_outermost_function(lines: Lines) -> None:
    assert lines.saving() == {}
    env = "/env/lib/python3.11/site-packages"
    fit = ("/u/train.py", "main", 9)
    save = (f"{env}/lightning/trainer.py", "save_checkpoint", 40)
    lines.add(stack((f"{env}/safetensors/torch.py", "save_file", 3), save, fit), 0.5, DATA)
    lines.add(stack((f"{env}/torch/serialization.py", "save", 3), save, fit), 0.25, DATA)
    lines.add(stack((f"{env}/accelerate/accelerator.py", "save_state", 3), fit), 0.25, DATA)
    lines.add(stack((f"{env}/lightning/trainer.py", "fit", 50), fit), 4.0, DATA)
    lines.add(stack(("/u/train.py", "save_checkpoint", 4), fit), 8.0, DATA)
    saving = {"library": "lightning", "function": "save_checkpoint", "seconds": 1.0}
    assert lines.saving() == {"saving": saving}


HELD_AND_GIVEN_UP = """\
import os, time

def one_batch():
    squares = [number * number for number in range(20_000)]
    os.stat(".")

end = time.monotonic() + 3
while time.monotonic() < end:
    one_batch()
"""


@pytest.mark.slow
def test_a_line_that_holds_pythons_lock_is_seen_beside_one_that_gives_it_up(
    stoker: Stoker, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(HELD_AND_GIVEN_UP)
    assert stoker("run", "--quiet", "-o", "run", "train.py").returncode == 0
    rank = read_summary(RunFolder(tmp_path / "run")).ranks[0]
    held, given_up = (
        sum(each.own_s for each in rank.lines if each.line == line) for line in (4, 5)
    )
    # It takes all but a hundredth of the time. Who only looks when the lock is given up sees none.
    assert held > 0.2 * (held + given_up) > 0
