"""Files that a program opens, counted in the place of `open` or as Python tells."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys

import pytest

from compiled import compiled
from stoker.watch.inside.opens import Listener, make_opens

needs_c = pytest.mark.skipif(type(make_opens()) is Listener, reason="_opens.c was not compiled")

COUNTING = """
import io, os, sys
from stoker.watch.inside.opens import Listener, make_opens
opens = Listener() if sys.argv[1] == "Python" else make_opens()
opens.start()
before = opens.count
open(sys.executable, "rb").close()
io.open(sys.executable, mode="rb").close()
os.close(os.open(sys.executable, flags=os.O_RDONLY))
if sys.argv[1] == 'C':
    os.fdopen(os.dup(0)).close()
found = opens.count - before
sys.audit("opened")
sys.audit("ope")
sys.audit("pickle.find_class", "torch", "Tensor")
assert opens.count - before == found == 3, opens.count
child = os.fork()
if not child:
    opens.count = 0
    open(sys.executable, "rb").close()
    os._exit(opens.count)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert opens.count - before == 3
"""

LIKE = """
import builtins, inspect, io, os, pickle, shutil, sys, traceback
from stoker.watch.inside.opens import make_opens

def looked_at():
    for each in (open, os.open):
        yield type(each), repr(each), str(inspect.signature(each)), each.__doc__, each.__module__
        yield each.__name__, each.__qualname__, each.__self__, pickle.dumps(each)
    for each in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        yield os.open in each

before, original = list(looked_at()), (open, os.open)
make_opens().start()
assert list(looked_at()) == before
assert open is builtins.open is io.open is sys.modules["_io"].open is not original[0]
assert os.open is sys.modules["posix"].open is not original[1]
assert pickle.loads(pickle.dumps(open)) is open
try:
    open("/nowhere/at all")
except FileNotFoundError as error:
    assert len(traceback.extract_tb(error.__traceback__)) == 1
for wrong in ((), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
    try:
        open(*wrong)
    except (TypeError, ValueError, OSError) as error:
        mine = type(error), str(error)
    try:
        original[0](*wrong)
    except (TypeError, ValueError, OSError) as error:
        assert mine == (type(error), str(error))
"""


def run(program: str, *words: str, seed: str = "0") -> None:
    # In a process of its own: what counts can never be taken away again.
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, *words],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# A lookup may pass the same place of the dictionary twice: with the seeds 0, 3 and 5 it does.
@pytest.mark.parametrize("seed", ["0", "1", "3", "5"])
def test_files_that_python_tells_of_are_counted_once_and_no_other_event(seed: str) -> None:
    run(COUNTING, "Python", seed=seed)


@needs_c
def test_files_that_are_opened_are_counted() -> None:
    run(COUNTING, "C")


def test_what_counts_is_compiled_without_warnings() -> None:
    assert compiled("_opens").Opens().count == 0


def test_where_somebody_else_stands_files_are_told_by_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builtins, "open", lambda *args, **kwargs: None)
    assert type(make_opens()) is Listener


@needs_c
def test_what_counts_is_like_what_it_stands_for() -> None:
    run(LIKE)
