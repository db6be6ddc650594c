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
from collections.abc import Mapping, Sequence
from pathlib import Path

# Signals that somebody may send to us and mean for the program.
PASSED_ON = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM, signal.SIGXCPU,
)  # fmt: skip
# From the terminal's keyboard: the kernel has sent it to the child already.
SI_KERNEL = 0x80
PR_SET_PDEATHSIG = 1


class Child:
    """The user's command while it runs."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
        # Where ended children are ignored, ours could not be waited for.
        ignored = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        parent = os.getpid()

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
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise
        self.pid = self._process.pid
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def fileno(self) -> int:
        """A descriptor that becomes readable when the child may have ended."""
        return self._read_end

    def poll(self) -> int | None:
        """Return the child's return code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def _pass_on(self) -> None:
        while True:
            info = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
            if info.si_signo == signal.SIGCHLD:
                os.write(self._write_end, b".")
            elif info.si_code != SI_KERNEL and not _has_signalled_all(info.si_pid):
                self._process.send_signal(info.si_signo)


def _has_signalled_all(sender: int) -> bool:
    """Say whether the program has had the signal from the sender as well as we."""
    try:
        name = Path(f"/proc/{sender}/comm").read_text().strip()
        if name == "timeout":
            # Without --foreground it leads our group, and signals all of it.
            return os.getpgrp() == sender
        return name.startswith("slurmstepd") or _descends_from_us(sender)
    except OSError:
        return False


def _descends_from_us(pid: int) -> bool:
    """Say whether a process is the program's own: it signals its group, of which we are part."""
    while pid > 1:
        if pid == os.getpid():
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


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
