"""The local engine: one command on this machine, as if it had been typed without us.

Standard streams, terminal, process group and working folder are the child's as they were ours;
signals that reach us alone are passed on, and we end as the child ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Signals that somebody may send to us and mean for the program.
PASSED_ON = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM, signal.SIGXCPU,
)  # fmt: skip
# Whoever signals everybody has done so within this time.
WITNESS_S = 0.05
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
MAX_NAME = 15
# Where the kernel tells, among the words after a process's name, from where to where its command
# line and its environment are.
ARGUMENTS_FROM, ENVIRONMENT_TO = 45, 48


class Child:
    """The user's command while it runs."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
        # Where ended children are ignored, ours could not be waited for.
        ignored = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        parent = os.getpid()
        self._witness = Witness(command)

        def enter() -> None:
            # Whoever kills us with -9 means the program too.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, ignored)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            # No other thread runs yet, so `enter` is safe.
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                preexec_fn=enter,  # noqa: PLW1509
                close_fds=False,
            )
        except BaseException:
            self._witness.end()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise
        self.pid = self._process.pid
        self._is_over = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def fileno(self) -> int:
        """A descriptor that becomes readable when the child may have ended."""
        return self._read_end

    def poll(self) -> int | None:
        """Return the child's return code, negative for a signal, or None while it runs."""
        code = self._process.poll()
        if code is not None and not self._is_over:
            self._is_over = True
            self._witness.end()
        return code

    def _pass_on(self) -> None:
        while True:
            info = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
            if info.si_signo == signal.SIGCHLD:
                os.write(self._write_end, b".")
            elif not self._witness.has_heard(info.si_signo):
                with suppress(OSError):
                    self._process.send_signal(info.si_signo)


class Witness:
    """A process of ours that does nothing but hear the signals that the program gets as well.

    Who signals the group, the session or the job reaches it too; who means us alone does not. Nor does
    who has looked for `stoker`, as pkill does: it goes by the program's name.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._heard_at: dict[int, float] = {}
        self.pid = os.fork()
        if self.pid == 0:
            try:
                libc = ctypes.CDLL(None)
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                name = os.fsencode(command[0]).rpartition(b"/")[2][:MAX_NAME]
                libc.prctl(PR_SET_NAME, name)
                with suppress(OSError, ValueError, IndexError):
                    _show(b"signals: " + os.fsencode(" ".join(command)))
                # The user's pipes must end when the program does.
                for each in _open_files():
                    if each != write_end:
                        with suppress(OSError):
                            os.close(each)
                while True:
                    os.write(write_end, bytes([signal.sigwaitinfo(PASSED_ON).si_signo]))
            finally:
                os._exit(0)
        os.close(write_end)

    def has_heard(self, number: int) -> bool:
        """Say whether the signal that we just got was for all."""
        began = time.monotonic()
        while (left := began + WITNESS_S - time.monotonic()) > 0:
            # `timeout` signals us and then the group: what is for all may come to us twice.
            if self._heard_at.get(number, -1.0) > began - WITNESS_S:
                return True
            select.select([self._read_end], [], [], left)
            with suppress(BlockingIOError):
                for each in os.read(self._read_end, 100):
                    self._heard_at[each] = time.monotonic()
        return False

    def end(self) -> None:
        """Let it go."""
        os.kill(self.pid, signal.SIGKILL)
        with suppress(OSError):
            os.waitpid(self.pid, 0)


def _show(title: bytes) -> None:
    """Have `ps` and `pkill` see this instead of the words that this process was started with."""
    words = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    begin, end = int(words[ARGUMENTS_FROM]), int(words[ENVIRONMENT_TO])
    # Through this file a wrong address is an error, and no crash.
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(title[: end - begin - 1].ljust(end - begin, b"\0"))


def _open_files() -> Iterable[int]:
    """Return the descriptors that may be open.

    A container may allow a billion, and a Python made for an older libc closes them one by one.
    """
    try:
        return map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return range(os.sysconf("SC_OPEN_MAX"))


def wait(child: Child) -> int:
    """Return the child's code when it has ended."""
    while (code := child.poll()) is None:
        select.select([child], [], [])
        os.read(child.fileno(), 100)
    return code


def end_as(code: int) -> int:
    """Return the exit code, or die of the signal that the child died of."""
    if code >= 0:
        return code
    number = -code
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number not in (
        signal.SIGKILL,
        signal.SIGSTOP,
    ) else None
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
