"""`stoker run` changes nothing: every program is run without us and with us, and compared."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from patience import OUTLIVED, TRIES, UNTOLD

# Real processes, some hundreds of them.
pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent
TORCH = ROOT / ".venv-torch/bin/python"
PATIENCE_S = 60.0

_found = shutil.which("stoker", path=str(Path(sys.executable).parent))
# The installed command: `python -m stoker` would have the user's folder on its path.
STOKER = [_found] if _found else [sys.executable, "-m", "stoker"]

needs_torch = pytest.mark.skipif(not TORCH.exists(), reason=f"there is no {TORCH} with torch")
# Removing our frames from a traceback works from this version on.
needs_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


class Ended(NamedTuple):
    """How a process ended and what it said."""

    code: int
    out: str
    err: str


def names_us(told: bytes) -> bool:
    """Say whether anything of ours is named there, wherever this checkout is."""
    return b"stoker" in told.replace(os.fsencode(ROOT), b"")


def make_environ(home: Path, **more: str) -> dict[str, str]:
    """A user's environment, without what the tests themselves are run with."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **more}


@contextmanager
def started(
    words: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own; nothing of it is left afterwards."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=make_environ(cwd) if env is None else env,
        start_new_session=True,
        **{**streams, **how},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process: subprocess.Popen[bytes], stdin: bytes = b"") -> Ended:
    """Wait for the end, and for everybody who holds the output open."""
    out, err = process.communicate(stdin if process.stdin else None, timeout=PATIENCE_S)
    return Ended(process.returncode, text_from(out or b""), text_from(err or b""))


def text_from(raw: bytes) -> str:
    """What was said, without the addresses of objects."""
    return re.sub(r"0x[0-9a-f]{8,}", "0x…", raw.decode("utf-8", "surrogateescape"))


def ran(
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    **how: Any,
) -> Ended:
    """Run a process to its end."""
    with started(words, cwd, env, **how) as process:
        return ended(process, stdin)


def watched(words: Sequence[str], run: Path, *options: str) -> list[str]:
    """The command line that runs `words` under watch, silently."""
    return [*STOKER, "run", "--quiet", "-o", str(run), *options, "--", *words]


class Compare:
    """Runs programs in a folder, without us and with us."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "project"
        self.cwd.mkdir()
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.env = make_environ(folder)

    def write(self, text: str, name: str = "script.py") -> str:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def run_path(self) -> Path:
        return self.runs / str(len(list(self.runs.iterdir())))

    def last_run(self) -> Path:
        return self.runs / str(len(list(self.runs.iterdir())) - 1)

    def both(
        self,
        words: Sequence[str],
        through: Callable[[Path], list[str]] | None = None,
        **how: Any,
    ) -> tuple[Ended, Ended]:
        """Run a command without us and then with us; `through` gives the second command line.

        What a library itself says by chance is no difference: both are run again.
        """
        env = {**self.env, **how.pop("env", {})}
        for _ in range(TRIES):
            run = self.run_path()
            command = through(run) if through else watched(words, run)
            without = ran(words, self.cwd, env, **how)
            with_us = ran(command, self.cwd, env, **how)
            said = without.err + with_us.err
            if OUTLIVED not in said and UNTOLD not in said:
                break
        record = json.loads((run / "run.json").read_text())
        assert record["exit"] == with_us.code
        assert record["end"] is not None
        return without, with_us

    def same(self, words: Sequence[str], **how: Any) -> Ended:
        """Assert that a command is the same without us and with us, and return how it ended."""
        without, with_us = self.both(words, **how)
        assert with_us == without
        return without

    def same_script(self, text: str, *arguments: str, **how: Any) -> Ended:
        """The same for a Python script."""
        name = self.write(text)
        options = ["--quiet", "--python", sys.executable]
        return self.same(
            [sys.executable, name, *arguments],
            through=lambda run: [*STOKER, "run", *options, "-o", str(run), name, *arguments],
            **how,
        )


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    return Compare(tmp_path)


def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so; fail when it does not come."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        select.select([], [], [], 0.01)


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does, or nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def is_waiting(pid: int) -> bool:
    return state_of(pid) == "S"


# -- small programs ------------------------------------------------------------------

SCRIPTS = {
    "says who it is": """
        import __main__, os, sys
        print(__name__, __file__, __main__.__dict__.keys() == globals().keys())
        print(sorted(globals()), __doc__, __spec__, __loader__.__class__, __builtins__)
        print(sys.argv, sys.orig_argv[1:], sys.executable, sys.path, os.getcwd())
        print(sys.flags, sys.warnoptions, sys._xoptions, sys.prefix, sys.exec_prefix)
    """,
    "raises": """
        def inner(x):
            return 1 / x
        def outer():
            try:
                inner(0)
            except ZeroDivisionError as error:
                raise ValueError("no result") from error
        outer()
    """,
    "raises what is no Exception": "class Stop(BaseException): pass\nraise Stop('now')",
    "cannot be parsed": "print('before')\nif True print('x')",
    "cannot import": "import no_such_module_anywhere",
    "exits early": "import sys\nprint('a')\nsys.exit(3)\nprint('b')",
    "exits with a large number": "raise SystemExit(256 + 7)",
    "exits with words": "import sys\nsys.exit('it went wrong')",
    "ends with os._exit": "import os\nprint('lost', end='')\nos.write(1, b'kept')\nos._exit(5)",
    "interrupts itself": "raise KeyboardInterrupt",
    "is killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "is terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "crashes": """
        import os, resource, signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    """,
    "aborts": """
        import os, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    """,
    "dies of a real-time signal": "import os, signal\nos.kill(os.getpid(), signal.SIGRTMIN + 3)",
    "has functions at exit": """
        import atexit, threading
        atexit.register(print, 'last')
        atexit.register(lambda: 1 / 0)
        threading.Thread(target=lambda: threading.main_thread().join() or print('thread')).start()
        print('end')
    """,
    "forgets its functions at exit": "import atexit\natexit.register(print, 'no')\natexit._clear()",
    "prints bytes": "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 300)",
    "replaces stdout": "import io, sys\nsys.stdout = io.StringIO()\nprint('gone')",
    "closes stdout": "import sys\nprint('first')\nsys.stdout.close()\nsys.stderr.write('last')",
    "closes descriptor 1": "import os\nprint('unwritten')\nos.close(1)",
    "closes descriptor 2": "import os\nos.close(2)\n1 / 0",
    "closes every descriptor": "import os\nos.closerange(0, 1000)\nos._exit(4)",
    "reads its input": "import sys\nprint(sys.stdin.read().upper(), input.__name__)",
    "changes folder": "import os\nos.makedirs('d', exist_ok=True)\nos.chdir('d')\nprint(open('/proc/self/comm').read())",
    "removes its folder": """
        import os, sys
        os.makedirs('gone')
        os.chdir('gone')
        os.rmdir('../gone')
        print(sys.argv)
        raise ValueError('here')
    """,
    "clears its environment": """
        import os, subprocess, sys
        os.environ.clear()
        print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True))
    """,
    "has a DataLoader of its own": """
        class DataLoader:
            def __iter__(self):
                yield from range(3)
        print(list(DataLoader()), DataLoader.__iter__.__qualname__)
    """,
    "loads in threads": """
        import queue, threading
        batches = queue.Queue(2)
        def load():
            for each in range(50):
                batches.put(each)
            batches.put(None)
        threading.Thread(target=load).start()
        print(sum(iter(batches.get, None)))
    """,
    "joins all its threads": """
        import threading
        for each in range(3):
            threading.Thread(target=sum, args=(range(1000),)).start()
        for each in threading.enumerate():
            if each is not threading.current_thread():
                each.join()
        print(threading.active_count(), threading.enumerate()[0].name)
    """,
    "dies in a thread": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name='loader')
        thread.start()
        thread.join()
    """,
    "leaves daemon threads": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        print('end')
    """,
    "handles signals": """
        import os, signal
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, lambda *told: print(told[0], told[1].f_code.co_name))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            os.kill(os.getpid(), number)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
    """,
    "waits for a blocked signal": """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        for each in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            print(signal.sigwait({signal.SIGUSR1}))
    """,
    "keeps Ctrl-C off while it saves": """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)
        print('saved', {signal.SIGINT in signal.sigpending() for each in range(10_000)})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    """,
    "forks": """
        import os, sys
        sys.stdout.flush()
        if os.fork() == 0:
            print('child')
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "forks where Python does not see it": """
        import ctypes, os, sys
        libc = ctypes.PyDLL(None)
        if libc.fork() == 0:
            sys.exit(9)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "forks in many threads at once": """
        import os, threading
        codes = []
        def fork():
            for each in range(15):
                pid = os.fork()
                if pid == 0:
                    os._exit(7)
                codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        threads = [threading.Thread(target=fork) for each in range(8)]
        for each in threads: each.start()
        for each in threads: each.join()
        print(codes)
    """,
    "forks at exit": """
        import atexit, os
        @atexit.register
        def fork():
            if os.fork() == 0:
                print('child', flush=True)
                os._exit(0)
            os.wait()
    """,
    "becomes another program": "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo $0 $1; exit 7', 'a', 'b'])",
    "becomes another Python": """
        import os, sys
        code = 'import sys, __main__; print(sys.argv, sys.path, 1 / 0)'
        os.execv(sys.executable, [sys.executable, '-c', code, 'x'])
    """,
    "starts other Pythons": """
        import subprocess, sys
        code = 'import sys; print(sys.path, sys.flags, sys.argv); sys.exit(4)'
        for options in ([], ['-I'], ['-E'], ['-s'], ['-IS'], ['-W', 'error'], ['-O']):
            done = subprocess.run([sys.executable, *options, '-c', code, 'x'], capture_output=True)
            print(done.returncode, done.stdout, done.stderr)
    """,
    "starts a child with preexec_fn": """
        import os, signal, subprocess
        def before():
            os.umask(0o77)
            os.write(2, b'%d' % len(os.listdir('/proc/self/task')))
        command = ['grep', '-E', 'Sig(Blk|Ign)|Umask', '/proc/self/status']
        done = subprocess.run(command, preexec_fn=before, capture_output=True, text=True)
        # Without signals 32 and 33, which the C library keeps for its threads.
        print([hex(int(each, 16) & ~(3 << 31)) for each in done.stdout.split()[1::2]])
    """,
    "uses asyncio": """
        import asyncio, os, signal, sys
        async def main():
            loop, seen = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, seen.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await seen.wait()
            child = await asyncio.create_subprocess_exec(sys.executable, '-c', 'exit(6)')
            print(await child.wait(), await asyncio.to_thread(sum, [1, 2]))
            await asyncio.gather(fails(), fails())
        async def fails():
            raise RuntimeError('in a task')
        asyncio.run(main())
    """,
    "has a tracer": """
        import sys
        seen = []
        def trace(frame, event, arg):
            seen.append((event, frame.f_code.co_name, frame.f_lineno))
            return trace
        def work(n):
            return [open('/dev/null').close() for _ in range(n)]
        sys.settrace(trace)
        work(2)
        sys.settrace(None)
        print(seen)
    """,
    "has no garbage collector": """
        import gc, weakref
        gc.disable()
        class Node: pass
        node = Node()
        seen = weakref.ref(node)
        del node
        print(gc.isenabled(), seen(), gc.callbacks, gc.get_threshold(), gc.get_debug())
    """,
    "recurses too deeply": """
        def depth(n):
            try:
                return depth(n + 1)
            except RecursionError:
                return n
        print(depth(0))
        def fall():
            fall()
        fall()
    """,
    "looks at modules and hooks": """
        import builtins, sys, threading
        print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
        print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit())
        print(threading.gettrace() if hasattr(threading, 'gettrace') else None)
        print(builtins.__import__, builtins.open, sys.unraisablehook is sys.__unraisablehook__)
    """,
    "warns": """
        import warnings
        def old():
            warnings.warn('use new()', DeprecationWarning, stacklevel=2)
        old()
        warnings.warn('careful')
    """,
    "is written in another encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\u00e4'))",
    "leaves a file open": "import socket\nhere = open('/dev/null')\nthere = socket.socket()\nprint(1)",
}
MULTIPROCESSING = """
import multiprocessing, os, sys

def work(n):
    return n * n, multiprocessing.current_process().name

def fails():
    raise ValueError('in a child')

def ends():
    os._exit(9)

if __name__ == '__main__':
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        print(sorted(each[0] for each in pool.map(work, range(20))))
        try:
            pool.apply(divmod, (1, 0))
        except ZeroDivisionError as error:
            print(repr(error), error.__cause__)
    for target in (fails, ends):
        child = context.Process(target=target, name='child')
        child.start()
        child.join()
        print(child.exitcode, multiprocessing.active_children(), flush=True)
    queue = context.Queue()
    child = context.Process(target=queue.put, args=(b'x' * 100_000,))
    child.start()
    print(len(queue.get()))
    child.join()
"""


def text_of(name: str) -> str:
    lines = SCRIPTS[name].splitlines()
    first = next(line for line in lines if line.strip())
    indent = len(first) - len(first.lstrip())
    return "\n".join(line[indent:] for line in lines) + "\n"


@needs_311
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_the_same_that(name: str, compare: Compare) -> None:
    compare.same_script(text_of(name), "--epochs", "3", "-o", "--", "", stdin=b"some words\n")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_is_the_same_with(method: str, compare: Compare) -> None:
    done = compare.same_script(MULTIPROCESSING, method)
    assert "100000" in done.out


@needs_311
@pytest.mark.parametrize(
    "options",
    [
        ["-W", "error"], ["-X", "dev"], ["-O"], ["-P"], ["-I"], ["-W", "error", "-X", "dev", "-bb"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("name", ["says who it is", "forks", "warns", "leaves a file open"])
def test_options_of_the_interpreter_are_kept(
    options: list[str], name: str, compare: Compare
) -> None:
    compare.same([sys.executable, *options, compare.write(text_of(name)), "x"])


def test_every_way_to_start_a_program_gives_it_the_same_world(compare: Compare) -> None:
    text = text_of("says who it is")
    compare.write(text, "package/train.py")
    compare.write(text, "package/__main__.py")
    shutil.make_archive(str(compare.cwd / "app"), "zip", compare.cwd / "package")
    (compare.cwd / "app.zip").rename(compare.cwd / "app.pyz")
    for words in (
        ["-m", "package.train", "-x", "--", "-m"],
        ["-m", "package", "--quiet"],
        ["package", "x"],
        ["app.pyz", "-o", "x"],
        ["package/train.py"],
        ["./package//train.py"],
        ["../project/package/train.py"],
        ["package/", "x"],
        [str(compare.cwd / "package/train.py")],
    ):
        compare.same([sys.executable, *words])
        compare.same(
            [sys.executable, *words],
            through=lambda run, words=words: [
                *STOKER, "run", "--quiet", "--python", sys.executable, "-o", str(run), *words,
            ],
        )  # fmt: skip


def test_a_module_may_follow_our_options_and_two_dashes(compare: Compare) -> None:
    compare.write("import sys\nprint(sys.argv[1:])", "train.py")
    done = compare.same(
        [sys.executable, "-m", "train", "--quiet", "--"],
        through=lambda run: [
            *STOKER, "run", "-m", "--quiet", "-o", str(run), "--", "train", "--quiet", "--",
        ],
    )  # fmt: skip
    assert done.out == "['--quiet', '--']\n"


def test_a_program_may_come_from_its_input(compare: Compare) -> None:
    text = b"import sys\nprint(sys.argv, __name__)\n1 / 0\n"
    done = compare.same([sys.executable, "-", "x"], stdin=text)
    assert done.out == "['-', 'x'] __main__\n"


def test_a_shell_script_and_its_children_are_the_same(compare: Compare) -> None:
    compare.write("import sys\nprint(sys.argv, sys.path)\nsys.exit(3)", "train.py")
    compare.write(f"echo one\n{sys.executable} train.py a; echo $?\ncd /; pwd; exit 9\n", "job.sh")
    done = compare.same(["bash", "job.sh", "x"])
    assert done.code == 9


def test_arguments_that_are_no_text_arrive(compare: Compare) -> None:
    name = compare.write("import os, sys\nprint([os.fsencode(each) for each in sys.argv])")
    done = compare.same([sys.executable, name, "\udcff\udcfe", "ä", "a b\n", "", "'\"$(x)"])
    assert r"\xff\xfe" in done.out


def test_an_odd_folder_is_the_same(odd_path: Path) -> None:
    compare = Compare(odd_path)
    compare.same_script("import os, sys\nprint(os.getcwd(), sys.path)\n1/0")


def test_an_empty_environment_is_enough(compare: Compare) -> None:
    compare.env = {}
    compare.same_script("import os\nprint(os.environ.get('HOME'), os.environ.get('PATH'))")


# -- what the program inherits -------------------------------------------------------

INHERITED = """
import os, resource, signal, sys
print(sorted(os.listdir('/proc/self/fd')))
masks = ('SigB', 'SigI', 'SigP', 'Umask', 'NoNew')
told = [line.split() for line in open('/proc/self/status') if line.startswith(masks)]
# Without signals 32 and 33, which the C library keeps for its threads.
print([(name, int(each, 16) & ~(3 << 31)) for name, each in told])
print(open('/proc/self/limits').read(), open('/proc/self/oom_score_adj').read())
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0))
print(os.getsid(0) == os.getpgrp(), os.getcwd(), os.get_blocking(1), os.isatty(0))
print([signal.getsignal(each) for each in signal.valid_signals()])
"""


@pytest.mark.parametrize("restore", [True, False], ids=["usual signals", "SIGPIPE ignored"])
def test_descriptors_signals_and_limits_are_inherited(restore: bool, compare: Compare) -> None:
    compare.same_script(INHERITED, restore_signals=restore)
    if restore:
        # Whether SIGPIPE was ignored before us, Python does not tell: programs other than Python
        # get it as nearly everybody has it.
        # The last digits: without signals 32 and 33, which the C library keeps for its threads.
        compare.same(
            ["sh", "-c", "grep Sig[^Q] /proc/self/status | sed 's/\\t.*\\(.......\\)$/ \\1/'"]
        )


def test_other_descriptors_reach_the_program(compare: Compare) -> None:
    name = compare.write("import sys\nprint(open(sys.argv[1]).read())")
    line = f"{sys.executable} {name} <(echo from a pipe)"
    assert compare.same(["bash", "-c", line]).out == "from a pipe\n\n"
    run = compare.run_path()
    through = " ".join([*STOKER, "run", "--quiet", "-o", str(run), line])
    assert ran(["bash", "-c", through], compare.cwd, compare.env).out == "from a pipe\n\n"


def test_the_environment_differs_only_where_watching_enters(compare: Compare) -> None:
    (compare.cwd / "mine").mkdir()
    name = compare.write("import json, os\nprint(json.dumps(dict(os.environ)))")
    without, with_us = compare.both([sys.executable, name], env={"PYTHONPATH": "mine::", "A": ""})
    before, now = json.loads(without.out), json.loads(with_us.out)
    added = {each for each in now if now[each] != before.get(each)}
    assert {each for each in added if not each.startswith("STOKER_")} == {"PYTHONPATH"}
    assert now["PYTHONPATH"].endswith(":mine::")
    assert set(before) - set(now) == set()


@pytest.mark.parametrize("path", ["", "mine", "mine::", ":mine", "/no/such:mine"])
def test_sys_path_is_the_same_with_a_pythonpath_of(path: str, compare: Compare) -> None:
    compare.write("print('mine')", "mine/module.py")
    compare.same_script("import sys\nprint(sys.path)\nimport module", env={"PYTHONPATH": path})


def test_a_background_job_is_the_same(compare: Compare) -> None:
    # A shell without job control starts it with Ctrl-C ignored and nothing to read.
    name = compare.write(
        "import signal, sys\nprint(signal.getsignal(2), sys.stdin.read())\nexit(8)"
    )
    run = compare.run_path()
    lines = [
        " ".join(words) + " & wait $!; echo $?"
        for words in ([sys.executable, name], watched([sys.executable, name], run))
    ]
    without, with_us = (ran(["sh", "-c", line], compare.cwd, compare.env) for line in lines)
    assert with_us == without
    assert without.out.endswith("8\n")


def test_ended_children_that_nobody_waits_for_do_not_cost_the_exit_code(compare: Compare) -> None:
    name = compare.write("raise SystemExit(5)")
    run = compare.run_path()
    ignoring = partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
    words = watched([sys.executable, name], run)
    assert ran(words, compare.cwd, compare.env, preexec_fn=ignoring).code == 5


def test_the_program_is_watched_at_all(compare: Compare) -> None:
    # Or else all of these tests would say little.
    compare.same_script("print('hello')")
    facts = list((compare.last_run() / "steps").glob("*.json"))
    assert [json.loads(each.read_text())["argv"] for each in facts] == [["script.py"]]


def other_python(*names: str) -> str:
    """The first of these interpreters that this machine has."""
    ask = "import sys; print(sys.executable)"
    for name in names:
        with suppress(OSError, subprocess.CalledProcessError):
            asked = [name, "-c", ask]
            return subprocess.check_output(asked, stderr=subprocess.DEVNULL, text=True).strip()
    pytest.skip(f"there is no {' or '.join(names)}")


def test_python_2_is_left_alone(compare: Compare) -> None:
    name = compare.write("import sys\nprint(sys.path, 'sitecustomize' in sys.modules)\n1 / 0")
    compare.same([other_python("python2", "python2.7"), "-B", name])


INTERPRETERS = """
try:
    import _interpreters as interpreters
    makes = interpreters.create, lambda: interpreters.create('legacy')
except ImportError:
    import _xxsubinterpreters as interpreters
    makes = interpreters.create, lambda: interpreters.create(isolated=False)
for make in makes * 4:
    inner = make()
    interpreters.run_string(inner, "import os; print(open(os.devnull).read(), end='inside ')")
    interpreters.destroy(inner)
print('end')
"""


@pytest.mark.parametrize(
    "python", [sys.executable, "python3.10", "python3.12", "python3.13"], ids=os.path.basename
)
def test_interpreters_within_the_program_live_and_end(python: str, compare: Compare) -> None:
    name = compare.write(INTERPRETERS)
    done = compare.same([other_python(python), "-u", name])
    assert done.out == "inside " * 8 + "end\n"


PROFILED = """
import cProfile, os, pstats

def work(seconds):
    while os.times().user < seconds:
        sum(range(1000))

def profiled():
    until = os.times().user + 0.2
    profile = cProfile.Profile()
    profile.runcall(work, until)
    return sorted(name for _, _, name in pstats.Stats(profile).stats)

# One may begin while somebody looks at our lines.
print(min((profiled() for each in range(3)), key=len))
"""


@pytest.mark.parametrize(
    "python", [sys.executable, "python3.12", "python3.13"], ids=os.path.basename
)
def test_a_profile_is_the_programs_alone(python: str, compare: Compare) -> None:
    compare.same([other_python(python), compare.write(PROFILED)])


# -- modules that look like ours, or like a framework ---------------------------------


# The interpreter that runs `stoker` itself finds this module too; it is for the script alone.
FOR_THE_SCRIPT = "import sys\nif sys.orig_argv[1] == 'script.py':\n    "


def test_a_sitecustomize_of_the_user_is_run_once_and_first(compare: Compare) -> None:
    says = "print('site', __name__, __file__, sys.path)\nmark = 1"
    compare.write(FOR_THE_SCRIPT + says, "mine/sitecustomize.py")
    done = compare.same_script(
        "import sitecustomize\nprint(sitecustomize.mark, sitecustomize.__spec__.name)",
        env={"PYTHONPATH": str(compare.cwd / "mine")},
    )
    assert done.out.count("site sitecustomize") == 1


@needs_311
@pytest.mark.parametrize(
    "text", ["1 / 0", "import no_such_module", "raise SystemExit(3)", "exec('if x y')"]
)
@pytest.mark.parametrize("verbose", ["", "1"], ids=["short", "with traceback"])
def test_a_broken_sitecustomize_says_the_same(text: str, verbose: str, compare: Compare) -> None:
    # Asked for, Python shows the traceback and also every import: those are not compared.
    compare.write(FOR_THE_SCRIPT + text, "mine/sitecustomize.py")
    env = {"PYTHONPATH": str(compare.cwd / "mine"), "PYTHONVERBOSE": verbose}
    name = compare.write("print('runs')")
    without, with_us = compare.both([sys.executable, name], env=env)
    assert with_us[:2] == without[:2]
    for done in (without, with_us):
        assert "/inject/" not in "".join(re.findall(r'  File "(.*)"', done.err))
    if not verbose:
        assert with_us.err == without.err


def test_without_a_sitecustomize_there_is_none(compare: Compare) -> None:
    # Debian's Python has one of its own.
    compare.same_script("import sys\nprint('sitecustomize' in sys.modules)\nimport sitecustomize")


def test_a_usercustomize_is_run(compare: Compare) -> None:
    # An environment has no user's site: take the Python that it was made from.
    python = getattr(sys, "_base_executable", sys.executable)
    base = compare.cwd / "base"
    ask = [python, "-c", "import site; print(site.getusersitepackages())"]
    folder = ran(ask, compare.cwd, {**compare.env, "PYTHONUSERBASE": str(base)}).out.strip()
    compare.write("print('user')", f"{folder}/usercustomize.py")
    name = compare.write("import sys\nprint(sys.path)")
    done = compare.same([python, name], env={"PYTHONUSERBASE": str(base)})
    assert done.out.startswith("user\n")


def test_modules_of_the_user_that_hide_the_standard_library_are_not_imported(
    compare: Compare,
) -> None:
    for name in ("json", "socket", "select", "struct", "random", "inspect", "dataclasses"):
        compare.write(f"print('the user has {name}')", f"{name}.py")
    assert compare.same_script("print('script')").out == "script\n"


def test_a_module_of_the_user_may_be_called_stoker(compare: Compare) -> None:
    compare.write("fire = 'mine'", "stoker.py")
    assert compare.same_script("import stoker\nprint(stoker.fire)").out == "mine\n"


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_a_module_of_the_user_may_be_called(name: str, compare: Compare) -> None:
    compare.write("def light():\n    return 'on'", f"{name}.py")
    done = compare.same_script(f"import {name}\nprint({name}.light(), {name}.__spec__)")
    assert done.code == 0


@needs_311
@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_a_framework_that_cannot_be_imported_says_the_same(name: str, compare: Compare) -> None:
    text = "raise ImportError('libcudart.so.12: cannot open shared object file')"
    compare.write(f"import {name}._C", f"{name}/__init__.py")
    compare.write(text, f"{name}/_C.py")
    compare.same_script(
        f"try:\n    import {name}\nexcept ImportError as error:\n    print(error)\nimport {name}"
    )


def test_only_the_path_of_a_python_without_site_has_our_folder(compare: Compare) -> None:
    # With -S nobody can take it off again; it holds nothing but a sitecustomize.
    name = compare.write("import sys\nprint(*sys.path, sep='\\n')")
    without, with_us = compare.both([sys.executable, "-S", name])
    more = [each for each in with_us.out.splitlines() if each not in without.out.splitlines()]
    assert len(more) == 1
    assert {each.name for each in Path(more[0]).iterdir()} - {"__pycache__"} == {"sitecustomize.py"}


# -- input, output, terminals ---------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_streams_that_are_closed_or_full_stay_so(closed: str, compare: Compare) -> None:
    name = compare.write(
        "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\n"
        "open('seen', 'a').write(f'{sys.stdin} {sys.stdout} {sys.stderr}\\n')\nsys.exit(6)"
    )
    run = compare.run_path()
    without, with_us = (
        ran(["bash", "-c", f'"$@" {closed}', "-", *words], compare.cwd, compare.env)
        for words in ([sys.executable, name], watched([sys.executable, name], run))
    )
    assert with_us == without
    first, second = (compare.cwd / "seen").read_text().splitlines()
    assert second == first


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2> >(exec true)"])
def test_a_report_that_nobody_can_read_changes_neither_stdout_nor_exit_code(
    where: str, compare: Compare
) -> None:
    # The program waits until the reader of the last case is gone: its end of the pipe breaks.
    name = compare.write(
        "import select, sys\nprint('out')\n"
        "if sys.argv[1] == '2> >(exec true)':\n"
        "    poll = select.poll()\n    poll.register(2, 0)\n    poll.poll(20_000)\n"
        "sys.exit(6)"
    )
    words = [*STOKER, "run", "-o", str(compare.run_path()), "--", sys.executable, name, where]
    done = ran(["bash", "-c", f'"$@" {where}', "-", *words], compare.cwd, compare.env)
    assert (done.code, done.out) == (6, "out\n")


def test_a_reader_that_goes_away_ends_the_program_as_without_us(compare: Compare) -> None:
    name = compare.write("import os\nwhile True:\n    print('line' * 100)")
    run = compare.run_path()
    codes = []
    for words in ([sys.executable, name], watched([sys.executable, name], run)):
        line = '"$@" | head -c 10 > /dev/null; echo ${PIPESTATUS[0]}'
        codes.append(ran(["bash", "-c", line, "-", *words], compare.cwd, compare.env))
    assert codes[0] == codes[1]


def test_input_that_the_program_does_not_read_is_left_for_the_next(compare: Compare) -> None:
    name = compare.write("import os\nprint(os.read(0, 3))")
    run = compare.run_path()
    words = watched([sys.executable, name], run)
    done = ran(["bash", "-c", '"$@"; cat', "-", *words], compare.cwd, compare.env, b"abcdef")
    assert done.out == "b'abc'\ndef"


def test_the_report_comes_after_everything_that_the_program_says(compare: Compare) -> None:
    name = compare.write("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1/0")
    words = [sys.executable, name]
    run = compare.run_path()
    without = ran(words, compare.cwd, compare.env, stderr=subprocess.STDOUT)
    with_us = ran(
        [*STOKER, "run", "-o", str(run), "--", *words],
        compare.cwd,
        compare.env,
        stderr=subprocess.STDOUT,
    )
    assert with_us.out.startswith(without.out)
    assert len(with_us.out) > len(without.out)
    assert with_us.code == without.code


def take_terminal() -> None:
    os.setsid()
    ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A pseudo terminal with a program in it."""

    def __init__(self, words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.master, inner = pty.openpty()
        termios.tcsetwinsize(inner, (33, 77)) if hasattr(termios, "tcsetwinsize") else None
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            preexec_fn=take_terminal,  # noqa: PLW1509
        )
        os.close(inner)
        self.text = ""

    def read_until(self, wanted: str | None) -> str:
        """Read until something is shown, or to the end; return all that was shown until now."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted is None or wanted not in self.text:
            left = deadline - time.monotonic()
            assert select.select([self.master], [], [], max(0.0, left))[0], self.text
            try:
                self.text += os.read(self.master, 1000).decode()
            except OSError:  # everybody has closed the other end
                assert wanted is None, self.text
                break
        return self.text

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> tuple[int, str]:
        text = self.read_until(None)
        return self.process.wait(timeout=PATIENCE_S), text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@contextmanager
def terminal(words: Sequence[str], compare: Compare) -> Iterator[Terminal]:
    shown = Terminal(words, compare.cwd, compare.env)
    try:
        yield shown
    finally:
        shown.close()


def in_terminals(compare: Compare, name: str) -> Iterator[Terminal]:
    """The same program in a terminal, without us and with us."""
    for words in (
        [sys.executable, name],
        watched([sys.executable, name], compare.run_path()),
    ):
        with terminal(words, compare) as shown:
            yield shown


def test_a_terminal_stays_a_terminal(compare: Compare) -> None:
    name = compare.write(
        "import os, sys\n"
        "print([os.isatty(each) for each in range(3)], os.get_terminal_size())\n"
        "print(os.tcgetpgrp(0) == os.getpgrp(), os.ttyname(0) == os.ttyname(2))\n"
        "open('/dev/tty', 'w').write('straight\\n')\n"
        "print(sys.stdout.line_buffering, input('name? '))\nsys.exit(4)"
    )
    ends = []
    for shown in in_terminals(compare, name):
        shown.read_until("name?")
        shown.type("ash\n")
        ends.append(shown.end())
    assert ends[0] == ends[1]
    assert ends[0][0] == 4
    assert "[True, True, True] os.terminal_size(columns=77, lines=33)" in ends[0][1]


@needs_311
def test_ctrl_c_in_a_terminal_interrupts_the_program(compare: Compare) -> None:
    name = compare.write(
        "import os\nprint('ready', os.getpid(), 'now')\ndef wait():\n    input()\nwait()"
    )
    ends = []
    for shown in in_terminals(compare, name):
        # Python may miss a signal that comes just before it waits.
        pid = shown.read_until("now").partition("ready ")[2].split()[0]
        until(partial(is_waiting, int(pid)))
        shown.type("\x03")
        ends.append(shown.end())
    (code, text), with_us = ((code, re.sub(r"ready \d+", "", text)) for code, text in ends)
    assert with_us == (code, text)
    assert code == -signal.SIGINT
    assert text.count("KeyboardInterrupt") == 1


# Says what it has seen when SIGXCPU comes. Of all signals that we pass on it has the highest
# number, and the kernel hands out the lowest first: whatever was sent before comes before.
# Handlers in Python may interrupt each other, so the interpreter's own record is read.
LAST = signal.SIGXCPU
COUNTING = """
import os, signal
for each in ('SIGINT', 'SIGUSR1', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGALRM', 'SIGUSR2', 'SIGXCPU'):
    signal.signal(getattr(signal, each), lambda *_: None)
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
os.write(1, f'ready {os.getpid()} {os.getppid()} now\\n'.encode())
seen = []
while signal.SIGXCPU not in seen:
    seen += os.read(reader, 100)
    if seen != [signal.SIGXCPU]:
        open('seen', 'w').close()
    # and then
os.set_blocking(reader, False)
try:
    seen += os.read(reader, 100)
except BlockingIOError:
    pass
names = [signal.Signals(each).name for each in seen if each != signal.SIGXCPU]
os.write(1, f'{names}\\n'.encode())
os._exit(3)
"""


@pytest.mark.parametrize("key", ["\x03", "\x1c"], ids=["Ctrl-C", "Ctrl-Backslash"])
def test_a_key_of_the_terminal_reaches_the_program_once(key: str, compare: Compare) -> None:
    for shown in in_terminals(compare, compare.write(COUNTING)):
        shown.read_until("now")
        shown.type(key)
        # It is shown when everybody in front of the terminal has been signalled.
        shown.read_until("^")
        os.kill(shown.process.pid, LAST)
        code, text = shown.end()
        assert code == 3
        name = {"\x03": "SIGINT", "\x1c": "SIGQUIT"}[key]
        assert f"['{name}']" in text


def test_ctrl_z_stops_the_program_and_fg_continues_it(compare: Compare) -> None:
    name = compare.write("import os, sys\nprint('ready', os.getpid(), 'now')\ninput()\nsys.exit(7)")
    shell = [sys.executable, str(PROGRAMS / "unchanged_shell.py")]
    ends = []
    for words in ([sys.executable, name], watched([sys.executable, name], compare.run_path())):
        with terminal([*shell, *words], compare) as shown:
            pid = int(shown.read_until("now").partition("ready ")[2].split()[0])
            shown.type("\x1a")
            shown.read_until("job is stopped")
            until(partial(is_stopped, pid))
            shown.type("fg\n")
            shown.read_until("job goes on")
            shown.type("to the script\n")
            ends.append(shown.end()[1].partition("job ended with")[2])
    assert ends == [" 7\r\n", " 7\r\n"]


# -- signals --------------------------------------------------------------------------


@contextmanager
def counting(
    compare: Compare, *before: str, text: str = COUNTING
) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A watched program that counts signals, once it is ready, its pid and its parent's."""
    words = watched([sys.executable, compare.write(text)], compare.run_path())
    with started([*before, *words], compare.cwd, compare.env) as process:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        yield process, int(line[1]), int(line[2])


@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM"])
def test_a_signal_to_us_reaches_the_program_once(number: str, compare: Compare) -> None:
    with counting(compare) as (process, _, supervisor):
        assert supervisor == process.pid
        process.send_signal(getattr(signal, number))
        process.send_signal(LAST)
        assert ended(process) == (3, f"['{number}']\n", "")


def test_a_signal_to_the_group_reaches_the_program_once(compare: Compare) -> None:
    with counting(compare) as (process, _, supervisor):
        # Two that come at once would be one: we are held back until the first is seen.
        os.kill(supervisor, signal.SIGSTOP)
        until(partial(is_stopped, supervisor))
        os.killpg(process.pid, signal.SIGUSR1)
        until((compare.cwd / "seen").exists)
        os.kill(supervisor, signal.SIGCONT)
        os.kill(supervisor, LAST)
        assert ended(process) == (3, "['SIGUSR1']\n", "")


def test_a_program_that_signals_its_own_group_is_signalled_once(compare: Compare) -> None:
    then = "if signal.SIGUSR2 in seen:\n        seen.clear()\n        os.killpg(0, signal.SIGUSR1)"
    text = COUNTING.replace("# and then", then)
    with counting(compare, text=text) as (process, pid, supervisor):
        os.kill(supervisor, signal.SIGSTOP)
        until(partial(is_stopped, supervisor))
        os.kill(pid, signal.SIGUSR2)
        until((compare.cwd / "seen").exists)
        until(partial(is_waiting, pid))
        os.kill(supervisor, signal.SIGCONT)
        os.kill(supervisor, LAST)
        assert ended(process) == (3, "['SIGUSR1']\n", "")


FOUND_BY = {
    "our name": (["-x", "stoker"], False),
    "our words": (["-f", "stoker run"], False),
    "the interpreter's name": (["-f", "python"], True),
    "the program's words": (["-f", "script.py"], True),
}


@pytest.mark.parametrize(("pattern", "is_both"), FOUND_BY.values(), ids=FOUND_BY)
def test_whatever_pkill_finds_us_by_the_program_is_signalled_once(
    pattern: list[str], is_both: bool, compare: Compare
) -> None:
    with counting(compare) as (process, _, supervisor):
        os.kill(supervisor, signal.SIGSTOP)
        until(partial(is_stopped, supervisor))
        # In this session only: others may be under test beside it.
        subprocess.run(["pkill", "-USR1", "-s", f"{process.pid}", *pattern], check=True)
        if is_both:
            until((compare.cwd / "seen").exists)
        os.kill(supervisor, signal.SIGCONT)
        os.kill(supervisor, LAST)
        assert ended(process) == (3, "['SIGUSR1']\n", "")


@pytest.mark.parametrize("options", [[], ["--foreground"]], ids=["its group", "foreground"])
def test_timeout_signals_the_program_once(options: list[str], compare: Compare) -> None:
    before = ["timeout", *options, "-s", "USR1", "60"]
    with counting(compare, *before) as (process, _, supervisor):
        process.send_signal(signal.SIGUSR1)
        # It passes the signal on to its child, and without --foreground to the group.
        until(partial(is_waiting, process.pid))
        os.kill(supervisor, LAST)
        assert ended(process)[1] == "['SIGUSR1']\n"


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU", "SIGQUIT"])
def test_a_program_without_a_handler_dies_of_the_signal_and_is_reported(
    number: str, compare: Compare
) -> None:
    name = compare.write("import signal\nprint('ready', flush=True)\nsignal.pause()")
    run = compare.run_path()
    words = [*STOKER, "run", "-o", str(run), "--", sys.executable, name]
    with started(words, compare.cwd, compare.env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(getattr(signal, number))
        done = ended(process)
    assert done.code == -getattr(signal, number)
    assert json.loads((run / "run.json").read_text())["exit"] == done.code
    said = done.err.splitlines()
    assert said[-1:] not in ([], ["KeyboardInterrupt"]), "there is no report"


def test_whoever_kills_us_kills_the_program(compare: Compare) -> None:
    with counting(compare) as (process, pid, _):
        process.kill()
        assert ended(process).code == -signal.SIGKILL
        until(lambda: state_of(pid) in ("", "Z", "X"))


def test_whoever_kills_the_program_has_us_say_so(compare: Compare) -> None:
    with counting(compare) as (process, pid, _):
        os.kill(pid, signal.SIGKILL)
        assert ended(process).code == -signal.SIGKILL
    assert json.loads((compare.last_run() / "run.json").read_text())["exit"] == -signal.SIGKILL


def test_a_program_that_is_stopped_goes_on_later(compare: Compare) -> None:
    with counting(compare) as (process, pid, _):
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T")
        process.send_signal(signal.SIGUSR1)
        assert process.poll() is None
        os.kill(pid, signal.SIGCONT)
        process.send_signal(LAST)
        assert ended(process) == (3, "['SIGUSR1']\n", "")


@pytest.mark.slow
def test_the_program_does_not_need_us_to_go_on(compare: Compare) -> None:
    with counting(compare) as (process, pid, _):
        process.send_signal(signal.SIGSTOP)
        until(lambda: state_of(process.pid) == "T")
        os.kill(pid, LAST)
        until(lambda: state_of(pid) == "Z")
        process.send_signal(signal.SIGCONT)
        assert ended(process) == (3, "[]\n", "")


def test_signals_go_to_any_command(compare: Compare) -> None:
    line = "trap 'echo caught; exit 5' TERM; echo ready; while :; do read -t 0.05 _ <> <(:); done"
    words = watched(["bash", "-c", line], compare.run_path())
    with started(words, compare.cwd, compare.env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert ended(process)[:2] == (5, "caught\n")


def test_nothing_is_left_behind(compare: Compare) -> None:
    room = compare.cwd / "tmp"
    room.mkdir()
    with started(
        watched([sys.executable, "-c", "print(1)"], compare.run_path()),
        compare.cwd,
        {**compare.env, "TMPDIR": str(room)},
    ) as process:
        ended(process)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert list(room.iterdir()) == []
    assert [each.name for each in compare.cwd.iterdir()] == ["tmp"]


def test_a_daemon_outlives_us(compare: Compare) -> None:
    name = compare.write(
        "import os, time\n"
        "if os.fork():\n    os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork():\n    os._exit(0)\n"
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "for each in range(3):\n    os.dup2(null, each)\n"
        "os.closerange(3, 256)\n"
        "open('daemon', 'w').write(str(os.getpid()))\n"
        "for each in range(6000):\n"
        "    if os.path.exists('go'):\n"
        "        open('went', 'w').close()\n"
        "        break\n"
        "    time.sleep(0.01)\n"
    )
    compare.same([sys.executable, name])
    # Two of them: without us, and with us.
    (compare.cwd / "went").unlink(missing_ok=True)
    until((compare.cwd / "daemon").exists)
    pid = int((compare.cwd / "daemon").read_text() or 0)
    (compare.cwd / "go").touch()
    until((compare.cwd / "went").exists)
    until(lambda: state_of(pid) in ("", "Z"))


# -- with lines counted, where a program of ours runs the script ------------------------


@needs_torch
@needs_311
@pytest.mark.parametrize(
    "name",
    [
        "says who it is", "raises", "exits early", "exits with words", "is terminated",
        "has functions at exit", "joins all its threads", "forks", "handles signals",
        "cannot be parsed", "removes its folder",
    ],
)  # fmt: skip
def test_a_script_is_the_same_with_lines_counted_that(name: str, compare: Compare) -> None:
    # How the interpreter was called is the one thing that shows.
    words = [str(TORCH), compare.write(text_of(name).replace("sys.orig_argv[1:]", "''")), "x", "--"]
    options = ["--quiet", "--lines", "--python", words[0]]
    compare.same(words, through=lambda run: [*STOKER, "run", *options, "-o", str(run), *words[1:]])


@needs_torch
@pytest.mark.parametrize("safe", ["", "1"], ids=["any path", "safe path"])
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "package"], ["-m", "package.train", "-m"], ["-m", "no_such"], ["package", "x"],
        ["app.pyz", "-o"], ["empty.zip"], ["train.pyc"], ["linked.py"], ["folder/../linked.py"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_program_is_the_same_with_lines_counted_that_is_started_by(
    words: list[str], safe: str, compare: Compare
) -> None:
    says = text_of("says who it is").replace("sys.orig_argv[1:]", "''")
    compare.write(says, "package/train.py")
    compare.write(says, "package/__main__.py")
    compare.write("", "package/__init__.py")
    (compare.cwd / "folder").mkdir()
    (compare.cwd / "linked.py").symlink_to("package/train.py")
    shutil.make_archive(str(compare.cwd / "app"), "zip", compare.cwd / "package")
    (compare.cwd / "app.zip").rename(compare.cwd / "app.pyz")
    shutil.make_archive(str(compare.cwd / "empty"), "zip", compare.cwd / "folder")
    compiling = "import py_compile; py_compile.compile('package/train.py', 'train.pyc')"
    ran([str(TORCH), "-c", compiling], compare.cwd)
    options = ["--quiet", "--lines", "--python", str(TORCH)]
    compare.same(
        [str(TORCH), *words],
        through=lambda run: [*STOKER, "run", *options, "-o", str(run), *words],
        env={"PYTHONSAFEPATH": safe},
    )


# -- descriptors that we must not hold -------------------------------------------------

# Watching speaks for the first time after a second: until then there is nothing to disturb.
AFTER_WE_SPOKE = """
import os, resource, socket, sys, time
def sockets():
    links = []
    for each in os.listdir('/proc/self/fd'):
        try:
            links.append(os.readlink('/proc/self/fd/' + each))
        except OSError:
            pass
    return [each for each in links if each.startswith('socket')]
def wait():
    deadline = time.monotonic() + 2.5
    while not sockets() and time.monotonic() < deadline:
        time.sleep(0.01)
before = len(sockets())
wait()
"""


def after_we_spoke(compare: Compare, text: str, shell: str = '"$@"') -> Ended:
    name = compare.write(AFTER_WE_SPOKE + text)
    words = watched([sys.executable, name], compare.run_path())
    return ran(["bash", "-c", shell, "-", *words], compare.cwd, compare.env)


@pytest.mark.slow
def test_a_program_that_closes_all_descriptors_does_not_get_our_messages(compare: Compare) -> None:
    done = after_we_spoke(
        compare,
        "os.closerange(3, 256)\n"
        "pairs = [socket.socketpair() for _ in range(3)]\n"
        "time.sleep(2.5)\n"
        "for pair in pairs:\n"
        "    for each in pair:\n"
        "        each.setblocking(False)\n"
        "        try:\n"
        "            print(each.recv(60))\n"
        "        except BlockingIOError:\n"
        "            pass\n"
        "print('end')",
    )
    assert done == (0, "end\n", "")


@pytest.mark.slow
def test_a_forked_child_that_closes_all_descriptors_keeps_its_own(compare: Compare) -> None:
    done = after_we_spoke(
        compare,
        "if os.fork() == 0:\n"
        "    os.closerange(3, 256)\n"
        "    files = [open(str(each), 'w') for each in range(4)]\n"
        "    time.sleep(2.5)\n"
        "    for each in files:\n"
        "        each.write('mine')\n"
        "        each.flush()\n"
        "    print('end', flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()",
    )
    assert done == (0, "end\n", "")


@pytest.mark.slow
def test_the_program_may_open_as_many_files_as_without_us(compare: Compare) -> None:
    done = after_we_spoke(
        compare,
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "files = []\n"
        "try:\n"
        "    while True:\n"
        "        files.append(os.open('/dev/null', 0))\n"
        "except OSError:\n"
        "    print(len(files))",
        '"$@" 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&- 10<&-',
    )
    assert done == (0, "17\n", "")


@pytest.mark.slow
def test_a_closed_stdout_does_not_become_ours(compare: Compare) -> None:
    done = after_we_spoke(
        compare, "try:\n    os.write(1, b'x')\nexcept OSError as error:\n    sys.exit(str(error))",
        '"$@" >&-',
    )  # fmt: skip
    assert done == (1, "", "[Errno 9] Bad file descriptor\n")


# -- runs in runs ------------------------------------------------------------------------


def test_a_run_in_a_run_is_one_run(compare: Compare) -> None:
    inner = watched([sys.executable, "-c", "exit(7)"], compare.cwd / "inner")
    done = ran(watched(inner, compare.run_path()), compare.cwd, compare.env)
    assert done == (7, "", "")
    assert not (compare.cwd / "inner").exists()


@pytest.mark.parametrize("is_left", [False, True], ids=["that is gone", "that was killed"])
def test_a_run_that_carries_the_environment_of_a_run_records_itself(
    is_left: bool, compare: Compare
) -> None:
    # As in a batch job that was submitted from a run; whoever is killed leaves its socket.
    address = compare.cwd / "s"
    if is_left:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
            left.bind(str(address))
    stale = {**compare.env, "STOKER_SCRIBE": str(address), "STOKER_RUN": "/gone"}
    run = compare.run_path()
    assert ran(watched([sys.executable, "-c", "exit(7)"], run), compare.cwd, stale).code == 7
    assert json.loads((run / "run.json").read_text())["exit"] == 7


def test_a_program_that_carries_the_environment_of_a_run_is_not_disturbed(compare: Compare) -> None:
    name = compare.write("import os\nprint(os.environ.pop('STOKER_SCRIBE'))")
    done = ran(watched([sys.executable, name], compare.run_path()), compare.cwd, compare.env)
    inject = ROOT / "src/stoker/watch/inject"
    stale = {**compare.env, "STOKER_SCRIBE": done.out.strip(), "PYTHONPATH": str(inject)}
    name = compare.write("import sys\nprint(sys.path, 'sitecustomize' in sys.modules)\n1 / 0")
    plain = ran([sys.executable, name], compare.cwd, compare.env)
    assert ran([sys.executable, name], compare.cwd, stale) == plain


# -- with torch ----------------------------------------------------------------------------


def torch_program(name: str, *words: str) -> list[str]:
    return [str(TORCH), str(PROGRAMS / f"unchanged_{name}.py"), *words]


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["0"], ["2"], ["2", "spawn"], ["2", "persistent"], ["0", "sampler"]], ids=" ".join
)
def test_losses_and_random_numbers_are_the_same_bit_for_bit(
    words: list[str], compare: Compare
) -> None:
    done = compare.same(torch_program("losses", *words))
    assert done.code == 0
    assert done.out.count("loss") == 24


@needs_torch
@pytest.mark.slow
def test_an_error_in_a_training_loop_looks_the_same(compare: Compare) -> None:
    for words in (["forward"], ["worker"]):
        done = compare.same(torch_program("fails", *words))
        assert done.code == 1
        assert "the user's error" in done.err


class Seen(NamedTuple):
    """What a program found out about itself, by topic, without us and with us."""

    without: dict[str, str]
    with_us: dict[str, str]


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One program looks at many things; starting torch once for each would take long."""
    compare = Compare(tmp_path_factory.mktemp("seen"))
    without, with_us = compare.both(torch_program("seen"))
    assert without.code == with_us.code == 0, with_us.err
    return Seen(json.loads(without.out), json.loads(with_us.out))


TOPICS = [
    "error in the dataset", "error in a worker", "error in collate", "error in the sampler",
    "error in forward", "error in an inner module of the same class", "error in backward",
    "error of backward", "error in grad inside forward", "error in the closure",
    "error in a hook of the optimizer", "error in zero_grad", "error of the scaler",
    "error of a collective", "error of a loader in a thread", "error of a model in a thread",
    "end of the loader", "error in the batch's to",
    "place of a warning of torch", "place of a warning in forward",
    "place of a warning in the dataset", "warnings of a dataset's length",
    "graph of a model with a layer of the same class", "calls patched by others",
    "lives of objects", "signatures", "attributes of the model", "state of the optimizer", "threads",
]  # fmt: skip


@needs_torch
@needs_311
@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_the_program_sees_the_same(topic: str, seen: Seen) -> None:
    assert seen.with_us[topic] == seen.without[topic]
    assert not names_us(seen.with_us[topic].encode())


@needs_torch
@pytest.mark.slow
def test_every_topic_is_looked_at(seen: Seen) -> None:
    assert sorted(seen.without) == sorted(TOPICS)


@needs_torch
@pytest.mark.slow
def test_what_is_saved_can_be_loaded_without_us(compare: Compare) -> None:
    folder = compare.cwd / "saved"
    folder.mkdir()
    words = torch_program("saves", str(folder))
    done = ran(watched(words, compare.run_path()), compare.cwd, compare.env)
    assert done.code == 0, done.err
    saved = sorted(folder.iterdir())
    assert [each.name for each in saved] == [
        "copy.pt", "exported.pt2", "exported_strictly.pt2", "loader.pkl", "model.pt", "optimizer.pkl",
        "scripted.pt", "state.pt", "traced.pt",
    ]  # fmt: skip
    # What the compiler reads is told with its stack, on which our frame stands.
    told = [each.name for each in saved if names_us(each.read_bytes())]
    assert told in ([], ["exported_strictly.pt2"])
    loaded = ran([*words, "load"], compare.cwd, compare.env)
    assert (loaded.code, loaded.out) == (0, done.out), loaded.err


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["device"]], ids=["every step is measured", "few are"])
def test_compiled_programs_have_the_same_graphs_breaks_and_recompiles(
    compare: Compare, words: list[str]
) -> None:
    without, with_us = compare.both(torch_program("compiled", *words))
    assert without.code == with_us.code == 0, with_us.err
    assert json.loads(with_us.out) == json.loads(without.out)


def steps_of_ranks(run: Path) -> dict[int, int]:
    facts = [json.loads(each.read_text()) for each in (run / "steps").glob("*.json")]
    return {each["rank"]: each["steps"] for each in facts}


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_each_rank_records_for_itself(launcher: str, compare: Compare) -> None:
    words = {
        "torchrun": [str(TORCH.parent / "torchrun"), "--nproc_per_node", "2", "--standalone"],
        "spawn": [str(TORCH)],
    }[launcher]  # fmt: skip
    if not Path(words[0]).exists():
        pytest.skip(f"there is no {words[0]}")
    words += [str(PROGRAMS / "unchanged_ranks.py")]
    without, with_us = compare.both(words, env={"OMP_NUM_THREADS": "1"})
    assert (without.code, without.out) == (with_us.code, with_us.out), with_us.err
    assert without.code == 0, without.err
    assert steps_of_ranks(compare.last_run()) == {0: 12, 1: 12}


@needs_torch
@pytest.mark.slow
def test_a_rank_that_fails_ends_the_launcher_as_without_us(compare: Compare) -> None:
    words = [str(TORCH.parent / "torchrun"), "--nproc_per_node", "2", "--standalone"]
    words += [str(PROGRAMS / "unchanged_ranks.py"), "fail"]
    without, with_us = compare.both(words, env={"OMP_NUM_THREADS": "1"})
    assert without.code == with_us.code == 1
    assert "the user's error" in with_us.err


@needs_torch
@pytest.mark.slow
def test_workers_do_not_outlive_a_program_that_is_killed(compare: Compare) -> None:
    # Not new with us, but a hook in the worker could keep it.
    words = watched(torch_program("workers"), compare.run_path())
    with started(words, compare.cwd, compare.env) as process:
        assert process.stdout is not None
        pid, *workers = (int(each) for each in process.stdout.readline().split())
        assert len(workers) == 2
        os.kill(pid, signal.SIGKILL)
        assert ended(process).code == -signal.SIGKILL
        until(lambda: all(state_of(each) in ("", "Z") for each in workers))


@needs_torch
@pytest.mark.slow
def test_ctrl_c_ends_a_training_with_workers_and_is_reported(compare: Compare) -> None:
    run = compare.run_path()
    words = [*STOKER, "run", "-o", str(run), "--", *torch_program("workers")]
    with terminal(words, compare) as shown:
        shown.read_until("\n")
        shown.type("\x03")
        code, text = shown.end()
    assert code == -signal.SIGINT
    assert "stoker/watch" not in text
    assert json.loads((run / "run.json").read_text())["exit"] == -signal.SIGINT
    assert list(steps_of_ranks(run)) == [0]
