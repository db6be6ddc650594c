"""Which command is started, and the one child that it becomes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from stoker.engine.command import find_python, make_command
from stoker.errors import ScriptError, StokerError, UsageError
from test_run_unchanged import Ended, ended, ran, started


def command(*words: str, module: bool = False, dashes: bool = False) -> tuple[str, ...]:
    return make_command(words, is_module=module, is_command=dashes, python="PYTHON")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "train").touch()
    (tmp_path / "job.sh").touch()
    (tmp_path / "tool").touch(mode=0o755)
    (tmp_path / "tool.py").touch(mode=0o755)
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__main__.py").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("train.py", "-x", "--", "y"), ("PYTHON", "train.py", "-x", "--", "y")),
        (("./train.py",), ("PYTHON", "./train.py")),
        (("app/", "-m"), ("PYTHON", "app/", "-m")),
        (("train",), ("PYTHON", "train")),
        (("tool.py",), ("PYTHON", "tool.py")),
        (("./tool", "a b"), ("./tool", "a b")),
        (("ls", "-l"), ("ls", "-l")),
        (("python3", "train.py"), ("python3", "train.py")),
    ],
    ids=str,
)
def test_words_become_a_command(words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert command(*words) == wanted


@pytest.mark.usefixtures("here")
def test_a_module_goes_to_python_and_a_command_after_dashes_to_itself() -> None:
    assert command("pkg.train", "-x", module=True) == ("PYTHON", "-m", "pkg.train", "-x")
    assert command("ls", "train.py", dashes=True) == ("ls", "train.py")
    assert command("./tool.py", dashes=True) == ("./tool.py",)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("empty",), "`empty` is a folder"),
        (("tain.py",), "there is no script `tain.py`"),
        (("job.sh",), "`job.sh` is not Python"),
        (("no-such-command",), "there is no command `no-such-command`"),
        (("/",), "`/` is a folder"),
    ],
    ids=str,
)
def test_words_that_cannot_be_run_are_errors(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ScriptError) as error:
        command(*words)
    assert error.value.what == said


@pytest.mark.parametrize("name", ["my job.sh", "my folder"])
def test_what_to_type_instead_can_be_pasted(here: Path, name: str) -> None:
    (here / "my folder").mkdir()
    (here / "my job.sh").touch()
    with pytest.raises(ScriptError) as error:
        command(name)
    (quoted,) = (each for each in shlex.split(error.value.fix.partition(",")[0]) if "my" in each)
    assert quoted.startswith(name)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [(), ("",), (".",), ("..",)], ids=str)
@pytest.mark.parametrize("dashes", [False, True])
def test_odd_words_are_errors_of_ours(words: tuple[str, ...], dashes: bool) -> None:
    with pytest.raises(StokerError):
        command(*words, dashes=dashes)


def make_environment(folder: Path) -> str:
    python = folder / "bin/python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    return str(folder)


def test_the_active_environment_comes_before_our_own_python(tmp_path: Path) -> None:
    venv, conda = (make_environment(tmp_path / each) for each in ("venv", "conda"))
    assert find_python(None, {}) == sys.executable
    assert find_python(None, {"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}) == f"{venv}/bin/python"
    assert find_python(None, {"CONDA_PREFIX": conda}) == f"{conda}/bin/python"
    # Where conda's own environment is active in every shell, one that is made later counts.
    for env in ({}, {"CONDA_PREFIX": conda}):
        assert find_python(None, {"VIRTUAL_ENV": sys.prefix, **env}) == sys.executable
    for broken in ("", "/no/such", str(tmp_path)):
        assert find_python(None, {"VIRTUAL_ENV": broken}) == sys.executable


def test_the_interpreter_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    python = make_environment(tmp_path) + "/bin/python"
    assert find_python(python, {"VIRTUAL_ENV": "/elsewhere"}) == python
    with pytest.raises(UsageError, match="no interpreter `python9`"):
        find_python("python9", {})
    Path(python).chmod(0o644)
    with pytest.raises(UsageError):
        find_python(python, {})


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LC_ALL": "C"}])
def test_the_locale_is_as_it_was_given(given: dict[str, str], tmp_path: Path) -> None:
    """In a C locale Python changes it for whatever it starts."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **given}
    words = [sys.executable, "-m", "stoker", "run", "--quiet", "--", "env"]
    told = dict(line.split("=", 1) for line in ran(words, tmp_path, env).out.splitlines())
    assert {name: told[name] for name in told if name.startswith(("LC_", "LANG"))} == given


# -- the child: in a process of its own, because it blocks signals -------------------------------

CHILD = "import os, signal, sys\nfrom stoker.engine.local import Child, end_as, wait\n"


def with_child(text: str, cwd: Path) -> Ended:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    return ran([sys.executable, "-c", CHILD + text], cwd, env)


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_an_exit_code_is_returned(code: int, tmp_path: Path) -> None:
    text = f"sys.exit(end_as(wait(Child(['sh', '-c', 'exit {code}'], os.environ))))"
    assert with_child(text, tmp_path) == (code, "", "")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV", "SIGPIPE", "SIGXFSZ"])
def test_we_die_of_the_signal_that_the_child_died_of(name: str, tmp_path: Path) -> None:
    number = getattr(signal, name)
    # Whoever runs the tests in the background has it ignored.
    text = "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    text += f"end_as(wait(Child(['sh', '-c', 'ulimit -c 0; kill -{number} $$'], os.environ)))"
    assert with_child(text, tmp_path) == (-number, "", "")
    assert list(tmp_path.glob("core*")) == []


def test_a_child_that_cannot_be_started_leaves_the_signals_alone(tmp_path: Path) -> None:
    text = (
        "before = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "try:\n    Child(['/no/such'], os.environ)\n"
        "except FileNotFoundError:\n"
        "    print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == before)\n"
    )
    assert with_child(text, tmp_path) == (0, "True\n", "")


def test_the_child_gets_the_environment_that_is_given(tmp_path: Path) -> None:
    text = "wait(Child(['/usr/bin/env'], {'A': 'b c', 'PATH': '/nowhere'}))"
    assert sorted(with_child(text, tmp_path).out.split("\n")) == ["", "A=b c", "PATH=/nowhere"]


def test_a_child_that_ends_at_once_is_noticed(tmp_path: Path) -> None:
    # Its end may come before anybody waits for it.
    text = "print(wait(Child(['true'], os.environ)))"
    assert {with_child(text, tmp_path) for _ in range(10)} == {(0, "0\n", "")}


def test_children_that_a_child_leaves_to_us_are_not_taken_for_it(tmp_path: Path) -> None:
    # As the first process of a container we get orphans, and their SIGCHLD.
    text = (
        "import ctypes\nctypes.CDLL(None).prctl(36, 1)\n"
        'line = \'(sh -c "exit 9" &) ; exec sh -c "read x < fifo; exit 3"\'\n'
        "os.mkfifo('fifo')\n"
        "child = Child(['sh', '-c', line], os.environ)\n"
        "os.read(child.fileno(), 1)\n"
        "print(child.poll())\n"
        "open('fifo', 'w').close()\n"
        "print(wait(child))\n"
    )
    assert with_child(text, tmp_path) == (0, "None\n3\n", "")


def test_signals_are_witnessed_however_many_files_may_be_open(tmp_path: Path) -> None:
    # A billion in some containers, for which `closerange` takes a minute where libc is older.
    text = (
        "from stoker.engine import local\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, local.PASSED_ON)\n"
        "os.closerange = lambda *_: signal.pause()\n"
        "local.WITNESS_S = 30\n"
        "witness = local.Witness(['train'])\n"
        "os.kill(witness.pid, signal.SIGUSR1)\n"
        "print(witness.has_heard(signal.SIGUSR1))\n"
        "witness.end()\n"
    )
    assert with_child(text, tmp_path) == (0, "True\n", "")


def test_many_signals_arrive(tmp_path: Path) -> None:
    line = "trap 'echo one' USR1; trap 'exit 3' USR2; echo ready; while :; do sleep 0.01; done"
    text = f"{CHILD}sys.exit(wait(Child(['bash', '-c', {line!r}], os.environ)))"
    with started([sys.executable, "-c", text], tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(20):
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGUSR2)
        assert ended(process) == (3, "", "")
