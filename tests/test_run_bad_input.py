"""`stoker run` with what cannot work: the program's own way to fail, or one clear error of ours."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_run_unchanged import STOKER, Compare, Ended, ended, ran, started, until, watched

TOUCHES = "open('it ran', 'w').close()\nprint('out')\nraise SystemExit(4)\n"


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    return Compare(tmp_path)


def run(compare: Compare, *words: str, **env: str) -> Ended:
    return ran([*STOKER, "run", *words], compare.cwd, {**compare.env, **env})


def assert_error(done: Ended, *said: str) -> None:
    """One error of ours: what, why and fix, and nothing else."""
    assert done.out == ""
    lines = done.err.splitlines()
    assert [line.partition(":")[0].strip() for line in lines] == ["error", "why", "fix"], done.err
    for each in said:
        assert each in done.err
    assert done.code in (1, 2, 126, 127)


def assert_goes_on(done: Ended, why: str = "") -> str:
    """The program ran to its end, and one line says that it was not recorded; return it."""
    assert (done.code, done.out) == (4, "out\n"), done.err
    lines = [line for line in done.err.splitlines() if line]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("stoker: ")
    assert "recording" in lines[0]
    assert "None" not in lines[0]
    assert why in lines[0]
    return lines[0]


# -- nothing that can be run -------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [[], ["--"], ["-m"], ["-m", "--"], ["--quiet"], ["-o", "x"], [""], ["--", ""]], ids=str
)
def test_nothing_to_run_is_an_error(words: list[str], compare: Compare) -> None:
    assert_error(run(compare, *words))
    assert list(compare.cwd.iterdir()) == []


def test_a_script_that_does_not_exist_is_an_error_with_the_nearest_name(compare: Compare) -> None:
    compare.write(TOUCHES, "train_model.py")
    assert_error(run(compare, "train_modle.py"), "train_modle.py", "did you mean train_model.py?")
    assert_error(run(compare, "no/such/train.py"), "no/such/train.py")
    assert [each.name for each in compare.cwd.iterdir()] == ["train_model.py"]


def test_links_that_lead_nowhere_are_errors(compare: Compare) -> None:
    (compare.cwd / "dangling.py").symlink_to("nowhere.py")
    (compare.cwd / "circle.py").symlink_to("circle.py")
    assert_error(run(compare, "dangling.py"), "dangling.py")
    assert_error(run(compare, "circle.py"), "circle.py")


def test_a_folder_is_an_error_unless_python_can_run_it(compare: Compare) -> None:
    (compare.cwd / "src").mkdir()
    assert_error(run(compare, "src"), "`src` is a folder", "__main__.py")
    assert_error(run(compare, "--", "./src"), "`./src` is a folder")
    compare.write(TOUCHES, "src/__main__.py")
    assert run(compare, "--quiet", "src") == (4, "out\n", "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_cannot_be_read_is_an_error(compare: Compare) -> None:
    compare.write(TOUCHES)
    (compare.cwd / "script.py").chmod(0)
    assert_error(run(compare, "script.py"), "cannot be read")


@pytest.mark.parametrize("words", [["python9", "x.py"], ["./nothing"], ["/no/such"], ["a\nb"]])
def test_a_command_that_does_not_exist_is_an_error(words: list[str], compare: Compare) -> None:
    for each in (words, ["--", *words]):
        done = run(compare, *each)
        assert done.err.startswith("error: there is no command")
        assert done.err.count("error:") == 1
        assert "Traceback" not in done.err
        assert done.code != 0
    assert list(compare.cwd.iterdir()) == []


@pytest.mark.parametrize(
    "text", [b"#!/no/such/interpreter\n", b"#!\n", b"#!/dev/null\n", b"\x7fELF", b"", b"\0\0\0"]
)
def test_a_file_that_the_kernel_cannot_start_is_an_error(text: bytes, compare: Compare) -> None:
    script = compare.cwd / "job"
    script.write_bytes(text)
    script.chmod(0o755)
    assert_error(run(compare, "--", "./job"), "`./job` cannot be started")
    assert_error(run(compare, "--quiet", "./job"), "`./job` cannot be started")


def test_a_command_that_could_not_be_started_leaves_no_run_that_looks_alive(
    compare: Compare,
) -> None:
    script = compare.cwd / "job"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    run(compare, "-o", "here", "--", "./job")
    record = compare.cwd / "here/run.json"
    assert not record.exists() or json.loads(record.read_text())["end"] is not None


def test_a_shell_script_without_a_shell_is_an_error_with_the_remedy(compare: Compare) -> None:
    compare.write("echo $1; exit 3\n", "job.sh")
    assert_error(run(compare, "job.sh", "x"), "stoker run -- bash job.sh")
    assert run(compare, "--quiet", "--", "bash", "job.sh", "x") == (3, "x\n", "")


@pytest.mark.parametrize("python", ["python9", "/no/such", ".", "script.py"])
def test_an_interpreter_that_cannot_run_is_an_error(python: str, compare: Compare) -> None:
    name = compare.write(TOUCHES)
    assert_error(run(compare, "--python", python, name), python)


def test_an_interpreter_that_is_no_python_just_runs(compare: Compare) -> None:
    name = compare.write(TOUCHES)
    assert run(compare, "--quiet", "--python", "false", name).code == 1
    assert run(compare, "--quiet", "--python", "echo", name, "x") == (0, "script.py x\n", "")


def test_options_of_ours_that_do_not_exist_are_errors(compare: Compare) -> None:
    name = compare.write(TOUCHES)
    for words in (["--nosuch"], ["--outpu", "x"], ["-z"], ["-o"], ["--quiet=1"]):
        done = run(compare, *words, name) if words != ["-o"] else run(compare, "-o")
        assert_error(done)
        assert done.code == 2
    assert not (compare.cwd / "it ran").exists()


def test_a_module_that_does_not_exist_fails_as_python_says_it(compare: Compare) -> None:
    compare.same([sys.executable, "-m", "no.such.module"])
    compare.same([sys.executable, "-m", "os.path.nothing"])


@pytest.mark.parametrize(
    "text", [b"\0", b"\xff\xfe\0", b"print(\xe9)", b"if x", b"\x80\x81" * 999, b""]
)
def test_a_script_that_is_no_python_fails_as_python_says_it(text: bytes, compare: Compare) -> None:
    (compare.cwd / "script.py").write_bytes(text)
    compare.same([sys.executable, "script.py"])


# -- folders that cannot be written -------------------------------------------------------


def test_a_run_is_never_overwritten(compare: Compare) -> None:
    name = compare.write(TOUCHES)
    assert run(compare, "--quiet", "-o", "first", name).code == 4
    (compare.cwd / "it ran").unlink()
    before = (compare.cwd / "first/run.json").read_bytes()
    assert_error(run(compare, "-o", "first", name), "already holds a run")
    assert not (compare.cwd / "it ran").exists()
    assert (compare.cwd / "first/run.json").read_bytes() == before


def test_a_folder_that_is_there_and_has_no_run_is_taken(compare: Compare) -> None:
    name = compare.write(TOUCHES)
    compare.write("mine", "here/notes.txt")
    assert run(compare, "--quiet", "-o", "here", name) == (4, "out\n", "")
    assert json.loads((compare.cwd / "here/run.json").read_text())["exit"] == 4
    assert (compare.cwd / "here/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("options", [[], ["--lines"]], ids=["", "lines"])
@pytest.mark.parametrize(
    "path", ["a file", "a file/run", "a file/deep/run", "/proc/stoker", "/sys/stoker", "x" * 300]
)
def test_a_run_folder_that_cannot_be_made_costs_the_record_not_the_run(
    path: str, options: list[str], compare: Compare
) -> None:
    name = compare.write(TOUCHES)
    compare.write("mine", "a file")
    said = assert_goes_on(run(compare, *options, "-o", path, name))
    assert path.partition("/")[0] in said or len(path) > 255
    assert (compare.cwd / "a file").read_text() == "mine"


def test_samples_that_are_a_file_cost_the_record_not_the_run(compare: Compare) -> None:
    name = compare.write(TOUCHES)
    for each in ("samples", "steps", "run.json.new/x"):
        compare.write("", f"in the way of {each[:4]}/{each}")
        assert_goes_on(run(compare, "-o", f"in the way of {each[:4]}", name))


@pytest.mark.parametrize("folder", ["/proc", "/sys/kernel"])
def test_a_working_folder_that_cannot_be_written_costs_the_record_not_the_run(
    folder: str, compare: Compare
) -> None:
    compare.write("print('out')\nraise SystemExit(4)")
    words = [*STOKER, "run", str(compare.cwd / "script.py")]
    assert_goes_on(ran(words, Path(folder), compare.env))


def test_a_working_folder_that_is_gone_costs_the_record_not_the_run(compare: Compare) -> None:
    compare.write("print('out')\nraise SystemExit(4)")
    gone = compare.cwd / "gone"
    gone.mkdir()
    line = 'cd gone && rmdir ../gone && exec "$@"'
    words = [*STOKER, "run", str(compare.cwd / "script.py")]
    assert_goes_on(ran(["bash", "-c", line, "-", *words], compare.cwd, compare.env))
    with_folder = [*STOKER, "run", "--quiet", "-o", str(compare.cwd / "r"), *words[2:]]
    gone.mkdir()
    done = ran(["bash", "-c", line, "-", *with_folder], compare.cwd, compare.env)
    assert (done.code, done.out) == (4, "out\n"), done.err


def test_a_long_way_to_temporary_files_does_not_cost_the_record(compare: Compare) -> None:
    # The name of a socket has at most 107 bytes.
    room = compare.cwd / ("r" * 100)
    room.mkdir()
    name = compare.write(TOUCHES)
    done = run(compare, "--quiet", "-o", "here", name, TMPDIR=str(room))
    assert done == (4, "out\n", "")
    assert json.loads((compare.cwd / "here/run.json").read_text())["exit"] == 4
    assert list((compare.cwd / "here/steps").glob("*.json")) != []


@pytest.mark.parametrize("room", ["/no/such", "script.py", "/proc", "", "."])
def test_temporary_files_find_another_place(room: str, compare: Compare) -> None:
    name = compare.write(TOUCHES)
    assert run(compare, "--quiet", "-o", "here", name, TMPDIR=room) == (4, "out\n", "")
    assert json.loads((compare.cwd / "here/run.json").read_text())["exit"] == 4


# -- disks that fill and folders that go away ------------------------------------------------


def on_a_small_disk(compare: Compare, text: str, size: str = "64k") -> Ended:
    """Run a program that records on a disk of its own, which nobody else sees."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    disk = compare.cwd / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size} none disk && exec "$@"'
    ways = (["unshare", "-m"], ["unshare", "-rm"])
    for way in ways:
        if (
            subprocess.run(
                [*way, "bash", "-c", mount, "-", "true"],
                cwd=compare.cwd,
                capture_output=True,
                check=False,
            ).returncode
            == 0
        ):
            break
    else:
        pytest.skip("this machine lets nobody mount a disk")
    name = compare.write(text)
    words = [*STOKER, "run", "--quiet", "-o", "disk/run", "--", sys.executable, name]
    return ran([*way, "bash", "-c", mount, "-", *words], compare.cwd, compare.env)


FILLS = """
import os
with open('disk/large', 'wb', buffering=0) as file:
    size = 4096
    while size:
        try:
            file.write(b'x' * size)
        except OSError:
            size //= 2
"""
ENDS = "\nprint('out')\nraise SystemExit(4)\n"


def test_a_disk_that_fills_stops_recording_with_one_warning(compare: Compare) -> None:
    done = on_a_small_disk(compare, FILLS + ENDS)
    assert "No space left" in assert_goes_on(done, "recording stopped")


@pytest.mark.slow
def test_a_disk_that_stays_full_for_several_readings_gives_one_warning(compare: Compare) -> None:
    # Readings come every second, from a quarter of a second on.
    wait = (
        "import time\ndeadline = time.monotonic() + 2.6\nwhile time.monotonic() < deadline: pass\n"
    )
    done = on_a_small_disk(compare, FILLS + wait + ENDS)
    assert "No space left" in assert_goes_on(done, "recording stopped")


def test_a_disk_that_is_full_from_the_start_costs_the_record_not_the_run(compare: Compare) -> None:
    done = on_a_small_disk(compare, "print('out')\nraise SystemExit(4)", "4k,nr_inodes=2")
    assert_goes_on(done, "No space left")


def paused(compare: Compare) -> list[str]:
    """A watched program that says when it is there and goes on when its input ends."""
    name = compare.write(f"import sys\nprint('ready', flush=True)\nsys.stdin.read(){ENDS}")
    return watched([sys.executable, name], compare.cwd / "here")


def test_files_that_may_not_grow_stop_recording_with_one_warning(compare: Compare) -> None:
    with started(paused(compare), compare.cwd, compare.env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        done = ended(process)
    assert "File too large" in assert_goes_on(done, "recording stopped")


def remove(folder: Path) -> None:
    """Take a folder away at once: while its files go one by one, new ones may come."""
    shutil.rmtree(folder.rename(folder.with_name("gone")))


@pytest.mark.parametrize("way", ["removed", "a file now", "emptied", "moved"])
def test_a_run_folder_that_goes_away_stops_recording_with_one_warning(
    way: str, compare: Compare
) -> None:
    folder = compare.cwd / "here"
    with started(paused(compare), compare.cwd, compare.env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # Until the first reading is written, there is more to come that would fail.
        until(lambda: list(folder.glob("samples/*.jsonl")))
        if way == "moved":
            folder.rename(compare.cwd / "there")
        else:
            remove(folder)
        if way == "a file now":
            folder.write_text("mine")
        elif way == "emptied":
            folder.mkdir()
        done = ended(process)
    assert_goes_on(done, "recording stopped")
    if way == "a file now":
        assert folder.read_text() == "mine"


@pytest.mark.parametrize("way", ["removed", "moved"])
def test_a_report_of_a_run_that_is_gone_says_so(way: str, compare: Compare) -> None:
    words = [each for each in paused(compare) if each != "--quiet"]
    with started(words, compare.cwd, compare.env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if way == "removed":
            remove(compare.cwd / "here")
        else:
            (compare.cwd / "here").rename(compare.cwd / "there")
        done = ended(process)
    assert (done.code, done.out) == (4, "out\n")
    assert "Traceback" not in done.err
    assert done.err.startswith("stoker: recording stopped: No such file or directory")


# -- what comes through the socket --------------------------------------------------------------

NONSENSE = """
import os, socket
there = os.environ['STOKER_SCRIBE']
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.settimeout(100)
for each in (
    b'', b'\\xff', b'[]', b'{}', b'null', b'7', b'"x"', b'[' * 100_000, b'{"pid": "x"}',
    b'{"pid": 1}', b'{"pid": 1, "k": "nothing"}', b'{"pid": -1, "k": "bye"}',
    b'{"pid": 1, "k": "steps"}', b'{"pid": 1, "k": "facts"}',
    b'{"pid": 1, "k": "steps", "rank": 0, "t": [0, 1], "sums": []}',
    b'{"pid": 1, "k": "steps", "rank": 0, "t": [0, 1], "sums": {"a": [0, 0, 0, 0]}}',
    b'{"pid": 1, "k": "steps", "rank": 0, "t": [0, 1], "sums": {"a": [1, 1e999, 1, 1]}}',
    b'{"pid": 1, "k": "steps", "rank": 0, "t": [NaN, 1], "sums": {"a": [1, NaN, 1, 1]}}',
    b'{"pid": 1, "k": "steps", "rank": "../../x", "t": [0, 1], "sums": {"a": [1, 1, 1, 1]}}',
    b'{"pid": 1, "k": "facts", "opens": "x", "rank": 0, "child": false, "lines": 7}',
    b'{"pid": 2, "k": "facts", "opens": 0, "rank": [], "child": 1, "lines": [[]], "ppid": null}',
    b'{"pid": 2, "k": "bye"}',
):
    sender.sendto(each, there)
print('out')
raise SystemExit(4)
"""


def test_nonsense_in_our_socket_is_left_out(compare: Compare) -> None:
    name = compare.write(NONSENSE)
    done = run(compare, "--quiet", "-o", "here", name)
    assert done == (4, "out\n", "")
    record = json.loads((compare.cwd / "here/run.json").read_text())
    assert record["exit"] == 4
    files = {path.name for path in (compare.cwd / "here").rglob("*") if path.is_file()}
    assert not {each for each in files if "x" in each}


def test_nonsense_in_our_socket_does_not_stop_the_report(compare: Compare) -> None:
    name = compare.write(NONSENSE)
    done = run(compare, "-o", "here", name)
    assert (done.code, done.out) == (4, "out\n")
    assert "Traceback" not in done.err
    assert "no report" not in done.err
