"""What the tests share: golden files, stand-in commands, odd folders."""

from __future__ import annotations

import difflib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import Command, Done
from compiled import compiled, jpegs_by
from effort import choose_profile

choose_profile()

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
FAKES = HERE / "fakes"


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to pass without the frameworks where all tests are to be run."""
    needed = (".venv-torch/more-ready", ".venv-tf/tf-ready", ".venv-objects/ready")
    missing = [each for each in needed if not (HERE.parent / each).exists()]
    # Under nohup, or in the background of a script, the tests ignore these, and so would every
    # program that they start.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if missing and os.environ.get("STOKER_TEST_ALL"):
        raise pytest.UsageError(f"{', '.join(missing)} not there: make test")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, whole; --update-golden rewrites it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        expected = path.read_text() if path.exists() else ""
        diff = "".join(
            difflib.unified_diff(expected.splitlines(True), text.splitlines(True), name, "now")
        )
        assert text == expected, diff

    return compare


Stoker = Callable[..., Done]


@pytest.fixture(scope="session")
def command() -> Iterator[Command]:
    """The real command, quick to start."""
    command = Command()
    yield command
    command.close()


@pytest.fixture
def stoker(tmp_path: Path, command: Command) -> Stoker:
    """Run the real command in an empty folder with an empty home, and no Slurm on the PATH."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)

    def run(*words: str, stdin: str | None = None, **environ: str) -> Done:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "COLUMNS": "100", **environ}
        return command.run(*words, cwd=tmp_path, env=env, stdin=stdin)

    return run


@pytest.fixture(params=["in C", "by libraries"])
def each_decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decode JPEGs with what is written in C, and without it."""
    with jpegs_by(compiled("_jpeg") if request.param == "in C" else None):
        yield


@pytest.fixture(params=["plain", "two words", "it's; $(odd) `here`", "line\nbreak", "ünïcödé ’"])
def odd_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a name that breaks careless quoting."""
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder


def job_environ(folder: Path, **environ: str) -> dict[str, str]:
    """The environment that Slurm gives a batch script, and the stand-ins first on the PATH."""
    local = folder / "local disk"
    local.mkdir(exist_ok=True)
    return {
        "PATH": f"{FAKES}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SLURM_JOB_ID": "4211",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "10",
        "LOCAL_SCRATCH": str(local),
        "SLURM_TMPDIR": str(local),
        "FAKE_LOG": str(folder / "argv.log"),
        **environ,
    }


def words(log: Path) -> list[list[str]]:
    """Read what the stand-ins were called with: one list a call."""
    raw = log.read_bytes().decode("utf-8", "surrogateescape") if log.exists() else ""
    return [call.split("\0") for call in raw.split("\0\0END\n")[:-1]]
