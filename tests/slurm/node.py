"""One machine of the cluster: namespaces of its own, with a name, an address and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from slurm import inside

INSIDE = Path(inside.__file__)
SPACES = ("--net", "--ipc", "--uts", "--mount", "--pid", "--cgroup")
# Enter control groups, then become the program after `--`.
ENTER = 'until [ "$1" = -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
INTERFACE = "ib0"
PATIENCE_S = 60.0

T = TypeVar("T")


def until(question: Callable[[], T | None], what: str, timeout: float = PATIENCE_S) -> T:
    """Ask until the answer is true, and return it; `TimeoutError` says what was waited for."""
    end = time.monotonic() + timeout
    while not (answer := question()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s")
        time.sleep(0.05)
    return answer


class Node:
    """A machine that can be booted, entered, and lost."""

    def __init__(self, state: Path, name: str, address: str, folders: Sequence[Path]) -> None:
        self.state = state
        self.name = name
        self.address = address
        self._folders = folders

    @property
    def pid(self) -> int | None:
        """The machine's first process, as this machine counts; None where it is down."""
        try:
            starter = int(self._pid_file.read_text())
            words = Path(f"/proc/{starter}/cmdline").read_bytes().split(b"\0")
            # The number may be another program's by now.
            if {os.fsencode(self.state), os.fsencode(INSIDE), self.name.encode()} - set(words):
                return None
            return int(Path(f"/proc/{starter}/task/{starter}/children").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    @property
    def _pid_file(self) -> Path:
        return self.state / "pids" / self.name

    @property
    def _is_ready(self) -> Path:
        return self.state / "ready" / self.name

    @property
    def _cages(self) -> list[Path]:
        return [*inside.cages(str(self.state), self.name).values()]

    def boot(self, *, outlives_us: bool) -> None:
        """Start the machine; it dies with this process, unless it is to outlive it."""
        self._is_ready.unlink(missing_ok=True)
        leash = [] if outlives_us else ["setpriv", "--pdeathsig", "KILL"]
        for cage in self._cages:
            cage.mkdir(parents=True, exist_ok=True)
        enter = ["sh", "-c", ENTER, "sh", *map(str, self._cages), "--"]
        program = [sys.executable, "-I", str(INSIDE), str(self.state), self.name]
        words = [
            *leash,
            *enter,
            "unshare",
            *SPACES,
            "--fork",
            "--mount-proc",
            "--kill-child",
            *program,
            *map(str, self._folders),
        ]
        log, how = (
            self.state / "log" / f"boot-{self.name}.log",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        )
        silent = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        logged = [(os.POSIX_SPAWN_OPEN, number, str(log), how, 0o644) for number in (1, 2)]
        pid = os.posix_spawnp(
            words[0], words, os.environ, file_actions=[silent, *logged], setsid=True
        )
        self._pid_file.write_text(str(pid))

    def wait_until_ready(self) -> None:
        """Wait until its files are arranged; its boot log tells why they are not."""
        until(self._is_ready.exists, f"{self.name} is ready (see {self.state}/log)")

    def crash(self) -> None:
        """Lose the machine with all its processes at once, as with its power."""
        if (pid := self.pid) is None:
            return
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # another program has started it
            os.waitpid(int(self._pid_file.read_text()), 0)
        until(lambda: not Path(f"/proc/{pid}").exists(), f"{self.name} is gone")
        self._pid_file.unlink()

    def clear_away(self) -> None:
        """Remove the control groups of a machine that is down; they outlive their processes."""
        for cage in self._cages:
            for folder, _, _ in os.walk(cage, topdown=False):
                until(partial(_removed, Path(folder)), f"{folder} is empty")
            with suppress(OSError):  # others' are still in it
                cage.parent.rmdir()

    def plug_into(self, switch: Node) -> None:
        """Lay a cable to the switch, which stands in another machine."""
        cable, own = f"to-{self.name}", f"/proc/{self.pid}/ns/net"
        # The cable of a crashed machine goes away some time after it.
        switch.network("link", "delete", cable, check=False)
        # A machine that boots again has the card it had: its neighbours remember it.
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))
        ends = ("type", "veth", "peer", "name", INTERFACE, "address", card, "netns", own)
        switch.network("link", "add", cable, *ends)
        switch.network("link", "set", cable, "master", "switch", "up")
        self.network("link", "set", "lo", "up")
        self.network("address", "add", f"{self.address}/24", "dev", INTERFACE)
        self.network("link", "set", INTERFACE, "up")

    def network(self, *words: str, check: bool = True) -> None:
        """Run `ip` in the machine's network."""
        net = f"--net=/proc/{self.pid}/ns/net"
        subprocess.run(["nsenter", net, "ip", *words], check=check, capture_output=not check)

    def words(
        self, words: Sequence[str], *, user: int, folder: Path, environ: Mapping[str, str]
    ) -> list[str]:
        """Return the command line that runs a command on the machine as a user."""
        if self.pid is None:
            raise RuntimeError(f"{self.name} is down")
        become = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
        settings = [f"{name}={value}" for name, value in environ.items()]
        return [
            "nsenter", "--target", str(self.pid), *SPACES,
            "setpriv", *become, "--pdeathsig", "KILL",
            "env", "--ignore-environment", f"--chdir={folder}", *settings, *words,
        ]  # fmt: skip


def _removed(folder: Path) -> bool:
    """Remove a folder; False while it is in use."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
