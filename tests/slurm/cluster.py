"""A real Slurm on this machine: a login node with the controller and the accounting, and five nodes."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from slurm import inside
from slurm.node import Node, until

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = Path(__file__).with_name("etc")
LOGIN = "login1"
NODES = {
    "r01g01": "10.99.0.11",
    "r01g02": "10.99.0.12",
    "r02g01": "10.99.0.21",
    "r02g02": "10.99.0.22",
    "r03c01": "10.99.0.31",
}
# They exist on the cluster only. The colleague is there to fill it.
USERS = {"root": 0, "trainee": 20001, "colleague": 20002}
ACCOUNT = "project_2001234"
OTHER_ACCOUNT = "project_2005678"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "ip", "unshare", "nsenter")
# What the site's administrator would have typed once.
SITE = (
    ("add", "cluster", "tiny"),
    ("add", "account", f"{ACCOUNT},{OTHER_ACCOUNT}", "Organization=tests"),
    ("add", "user", "trainee,colleague,root", f"Account={ACCOUNT}"),
    ("add", "user", "colleague", f"Account={OTHER_ACCOUNT}"),
    ("add", "qos", "gpusmall", "Flags=DenyOnLimit"),
)
SMALL = ("modify", "qos", "gpusmall", "set", "MaxTRESPerJob=gres/gpu=2")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}
# Also the sign of a folder that `down` may remove.
KEY = "munge.key"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
BIN = "/usr/local/bin:/usr/bin:/bin"


def why_not() -> str | None:
    """Return why no cluster can be started on this machine, or None."""
    if os.geteuid() != 0:
        return "a cluster needs root, for its namespaces"
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=path)]:
        return f"{', '.join(missing)} not there: scripts/setup-slurm"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if tried.returncode == 0 else "this machine does not give namespaces"


class SlurmCluster:
    """The cluster of one state folder, which holds all that there is of it."""

    account = ACCOUNT
    other_account = OTHER_ACCOUNT
    login = LOGIN
    nodes = tuple(name for name in NODES if "g" in name)
    python = ROOT / ".venv/bin/python"
    torch = ROOT / ".venv-torch/bin/python"

    def __init__(self, state: Path) -> None:
        self.state = state
        self.shared = state / "shared"
        folders = [self.shared, ROOT, *_homes_of(self.python, self.torch)]
        self._login = Node(state, LOGIN, "10.99.0.1", folders)
        self._nodes = {name: Node(state, name, at, folders) for name, at in NODES.items()}

    # Up and down.

    @property
    def is_up(self) -> bool:
        """Whether the login node is there."""
        return self._login.pid is not None

    @property
    def has_cages(self) -> bool:
        """Whether Slurm has control groups here, as on real sites: no process leaves, memory is bounded."""
        return bool(inside.cages(str(self.state), LOGIN))

    def processes(self) -> list[int]:
        """Return the first process of each machine that is up."""
        return [node.pid for node in (self._login, *self._nodes.values()) if node.pid is not None]

    @property
    def _stays(self) -> Path:
        """There if the machines outlive who starts them; for whoever boots one later."""
        return self.state / "stays"

    def up(self, *, outlives_us: bool = False) -> None:
        """Start everything, and return when all nodes are idle."""
        self._lay_out()
        if outlives_us:
            self._stays.touch()
        for node in (self._login, *self._nodes.values()):
            node.boot(outlives_us=outlives_us)
        self._login.wait_until_ready()
        self._start_login()
        for node in self._nodes.values():
            self._start_node(node)
        until(lambda: set(self._states().values()) == {"idle"}, "all nodes are idle")

    def down(self) -> None:
        """Stop everything, and remove the state folder."""
        for node in (*self._nodes.values(), self._login):
            node.crash()
            node.clear_away()
        if (self.state / KEY).exists():
            shutil.rmtree(self.state)

    def _lay_out(self) -> None:
        """Make the state folder, with the configuration of all machines."""
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o755)
        if any(self.state.iterdir()):
            raise FileExistsError(
                f"{self.state} is not empty; take another folder, or `down` first"
            )
        key = self.state / KEY
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        for name in ("pids", "ready", "etc", "munge", "controller", "database", "log", "shared"):
            (self.state / name).mkdir()
        for name in ("log", "shared"):
            (self.state / name).chmod(0o1777)
        shutil.copytree(CONFIGURATION, self.state / "etc/slurm")
        if not self.has_cages:
            self._do_without_cages()
        self._write_names()
        shutil.chown(self.state / "controller", "slurm")
        shutil.chown(self.state / "database", "mysql")
        shutil.chown(self.state / "etc/slurm/slurmdbd.conf", "slurm")
        (self.state / "etc/slurm/slurmdbd.conf").chmod(0o600)

    def _do_without_cages(self) -> None:
        """Let Slurm find processes by their parents, and watch their memory now and then."""
        path = self.state / "etc/slurm/slurm.conf"
        text = path.read_text().replace("proctrack/cgroup", "proctrack/linuxproc")
        text = text.replace("task/cgroup", "task/none")
        path.write_text(f"{text}\nJobAcctGatherParams=OverMemoryKill\n")

    def _write_names(self) -> None:
        """Write who and what has which number, as the machines know it."""
        etc = self.state / "etc"
        hosts = {"localhost": "127.0.0.1", LOGIN: self._login.address, **NODES}
        etc.joinpath("hosts").write_text("".join(f"{at} {name}\n" for name, at in hosts.items()))
        passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        for user, number in USERS.items():
            if number:
                home = self.folder(f"home/{user}", user=user)
                passwd += f"{user}:x:{number}:{number}::{home}:/bin/bash\n"
                group += f"{user}:x:{number}:\n"
        etc.joinpath("passwd").write_text(passwd)
        etc.joinpath("group").write_text(group)

    def _start_login(self) -> None:
        """Start the switch, munge, the data base, the accounting and the controller."""
        self._login.network("link", "set", "lo", "up")
        self._login.network("link", "add", "switch", "type", "bridge")
        self._login.network("address", "add", "10.99.0.1/24", "dev", "switch")
        self._login.network("link", "set", "switch", "up")
        log, key = "--log-file=/run/cluster/log/munged.log", f"--key-file=/run/cluster/{KEY}"
        seed = "--seed-file=/run/munge/munge.seed"
        self._as_root(LOGIN, "munged", "--force", key, log, seed)
        settings = "--defaults-file=/etc/slurm/mariadb.cnf"
        self._as_root(LOGIN, "mariadb-install-db", settings, "--skip-test-db")
        self._as_root(LOGIN, "setsid", "--fork", "mariadbd", settings)
        ping = ("mariadb-admin", "--socket=/run/mysqld/mysqld.sock", "ping")
        until(lambda: self._succeeds(LOGIN, *ping), "the data base answers")
        self.start_accounting()
        for words in SITE:
            self.manage(*words)
        self.start_controller()
        # The accounting learns what a GPU is from the controller.
        limit = ("sacctmgr", "--immediate", *SMALL)
        until(lambda: self._succeeds(LOGIN, *limit), "the accounting knows GPUs")

    def _start_node(self, node: Node) -> None:
        node.wait_until_ready()
        node.plug_into(self._login)
        self._as_root(node.name, "slurmd")

    # Commands on its machines.

    def on(
        self,
        host: str,
        *words: str | Path,
        user: str = "trainee",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine, as after a fresh login."""
        done = subprocess.run(
            self.words(host, *words, user=user, cwd=cwd, env=env),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            line = " ".join(map(str, words))
            raise RuntimeError(
                f"{host}: {line}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def words(
        self,
        host: str,
        *words: str | Path,
        user: str = "trainee",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command line of `on`, for whoever wants the process itself."""
        home = self.shared / "home" / user if USERS[user] else Path("/")
        path = BIN if USERS[user] else f"{SBIN}:{BIN}"
        environ = {"HOME": str(home), "USER": user, "LOGNAME": user, "PATH": path}
        environ |= {"LANG": "C.UTF-8", "SHELL": "/bin/bash", **(env or {})}
        node = self._login if host == LOGIN else self._nodes[host]
        line = [str(word) for word in words]
        return node.words(line, user=USERS[user], folder=cwd or home, environ=environ)

    def stoker(
        self,
        *words: str | Path,
        cwd: Path,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run Stoker on the login node as the user."""
        line = (self.python, "-m", "stoker", *words)
        return self.on(LOGIN, *line, cwd=cwd, check=check, env=env, stdin=stdin, timeout=timeout)

    def update(self, *words: str) -> str:
        """Tell the controller something as root: the words after `scontrol`."""
        return self._as_root(LOGIN, "scontrol", *words)

    def manage(self, *words: str) -> str:
        """Tell the accounting something as root: the words after `sacctmgr`."""
        return self._as_root(LOGIN, "sacctmgr", "--immediate", *words)

    def _as_root(self, host: str, *words: str) -> str:
        return self.on(host, *words, user="root").stdout

    def _succeeds(self, host: str, *words: str) -> bool:
        return self.on(host, *words, user="root", check=False).returncode == 0

    # Folders and jobs.

    def folder(self, name: str, user: str = "trainee") -> Path:
        """Make a fresh folder that all machines see, and that the user owns."""
        path = self.shared / name
        number = 1
        while path.exists():
            number += 1
            path = self.shared / f"{name}-{number}"
        path.mkdir(parents=True)
        os.chown(path, USERS[user], USERS[user])
        return path

    def sbatch(self, cwd: Path, *options: str, script: str, user: str = "trainee") -> str:
        """Submit a script and return the job's number; the account is the user's, unless given."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        words = ("sbatch", "--parsable", f"--account={ACCOUNT}", *options)
        return self.on(LOGIN, *words, user=user, cwd=cwd, stdin=text).stdout.strip()

    def state_of(self, job: str) -> str:
        """Return a job's state: the controller's word, or the accounting's of its last attempt."""
        shown = self.on(LOGIN, "scontrol", "show", "job", "--oneliner", job, check=False).stdout
        if found := re.search(r"\bJobState=(\S+)", shown):
            return found[1]
        words = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=State")
        states = self.on(LOGIN, *words, "--jobs", job, check=False).stdout.splitlines()
        return states[-1].split()[0] if states else "UNKNOWN"

    def reason_of(self, job: str) -> str:
        """Return why a job waits, in Slurm's word."""
        return self.on(LOGIN, "squeue", "--noheader", "--format=%r", "--jobs", job).stdout.strip()

    def wait(self, job: str, *states: str, timeout: float = 60) -> str:
        """Wait until a job is in one of these states, and return it."""
        seen: list[str] = []

        def look() -> str | None:
            seen.append(self.state_of(job))
            # A requeued job shows how it ended for a moment.
            if set(seen[-5:]) <= ENDED - set(states) and len(seen) >= 5:
                raise RuntimeError(f"job {job} is {seen[-1]}, not {' or '.join(states)}")
            return seen[-1] if seen[-1] in states else None

        try:
            return str(until(look, f"job {job} is {' or '.join(states)}", timeout))
        except TimeoutError as late:
            shown = self.on(LOGIN, "scontrol", "show", "job", job, check=False).stdout
            raise TimeoutError(f"{late}; it is {seen[-1]}\n{shown}") from None

    def wait_reason(self, job: str, *reasons: str, timeout: float = 60) -> str:
        """Wait until a job waits for one of these reasons, and return it."""
        asked = f"job {job} waits for {' or '.join(reasons)}"
        return until(
            lambda: next((r for r in [self.reason_of(job)] if r in reasons), ""), asked, timeout
        )

    def end_in(self, job: str, seconds: int) -> None:
        """Move a running job's end: limits are whole minutes, this is not.

        Slurm looks every 30 s. For a `--signal` that comes before the end, and at the next look,
        take 40 s or more, and a signal some 20 s before.
        """
        self.update("update", f"JobId={job}", f"EndTime=now+{seconds}seconds")

    def cancel_all(self) -> None:
        """Cancel everybody's jobs, and return when their nodes are free."""
        for user, number in USERS.items():
            if number:
                self.on(LOGIN, "scancel", "--user", user, user="root", check=False)
        queue = ("squeue", "--noheader", "--format=%i")
        until(lambda: not self._as_root(LOGIN, *queue).strip(), "the queue is empty")

    # What goes wrong on real sites.

    def crash(self, node: str) -> None:
        """Take a node's power away: it does not even say goodbye to who is connected to it."""
        self._login.network("link", "set", f"to-{node}", "down", check=False)
        self._nodes[node].crash()

    def boot(self, node: str) -> None:
        """Start a crashed node, and return when the controller has it back."""
        self._nodes[node].boot(outlives_us=self._stays.exists())
        self._start_node(self._nodes[node])
        self.wait_node(node, "idle", "mixed", "allocated")

    def cut(self, node: str) -> None:
        """Pull a node's cable; its processes go on."""
        self._login.network("link", "set", f"to-{node}", "down")

    def heal(self, node: str) -> None:
        """Put the cable back."""
        self._login.network("link", "set", f"to-{node}", "up")

    def wait_node(self, node: str, *states: str, timeout: float = 60) -> str:
        """Wait until the controller sees a node in one of these states, as `sinfo` names them."""
        asked = f"{node} is {' or '.join(states)}"
        return until(
            lambda: next((s for s in [self._states().get(node, "")] if s in states), ""),
            asked,
            timeout,
        )

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on, nobody is answered."""
        self._stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld, and return when it answers."""
        self._as_root(LOGIN, "slurmctld")
        until(lambda: self._succeeds(LOGIN, "scontrol", "ping"), "the controller answers")

    def stop_accounting(self) -> None:
        """Stop slurmdbd; the controller goes on without."""
        self._stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd, and return when it answers."""
        self._as_root(LOGIN, "slurmdbd")
        asked = ("sacctmgr", "--noheader", "show", "cluster")
        until(lambda: self._succeeds(LOGIN, *asked), "the accounting answers")

    def _stop(self, daemon: str) -> None:
        self._succeeds(LOGIN, "pkill", "--pidfile", f"/run/slurm/{daemon}.pid")
        until(lambda: not self._runs(daemon), f"{daemon} is gone")

    def _runs(self, daemon: str) -> bool:
        return self._succeeds(LOGIN, "pgrep", "--exact", daemon)

    @contextmanager
    def configured(self, **settings: str | None) -> Iterator[None]:
        """Change settings of slurm.conf for a while, or leave them out; the controller starts anew."""
        path = self.state / "etc/slurm/slurm.conf"
        before = path.read_text()
        changed = before
        for name, value in settings.items():
            changed = re.sub(rf"(?m)^{name}=.*\n", "", changed)
            if value is not None:
                changed = f"{name}={value}\n{changed}"
        try:
            self._configure(path, changed)
            yield
        finally:
            self._configure(path, before)

    def without_accounting(self) -> AbstractContextManager[None]:
        """Be a site without accounting for a while; projects and their limits go with it."""
        return self.configured(
            AccountingStorageType="accounting_storage/none",
            AccountingStorageTRES=None,
            AccountingStorageEnforce=None,
        )

    def _configure(self, path: Path, text: str) -> None:
        path.write_text(text)
        self.stop_controller()
        self.start_controller()
        self.update("reconfigure")

    def repair(self) -> None:
        """Bring back what a test took away."""
        if not self._runs("slurmdbd"):
            self.start_accounting()
        if not self._runs("slurmctld"):
            self.start_controller()
        for name, node in self._nodes.items():
            (self.boot if node.pid is None else self.heal)(name)
        for name, state in self._states().items():
            if state.rstrip("*") in ("down", "drained", "draining", "inval"):
                self.update("update", f"NodeName={name}", "State=RESUME")
        until(lambda: not set("".join(self._states().values())) & {"*"}, "all nodes answer")

    def _states(self) -> dict[str, str]:
        """Return how the controller sees each node."""
        words = ("sinfo", "--noheader", "--Node", "--format=%N %T")
        lines = self.on(LOGIN, *words, user="root", check=False).stdout.splitlines()
        return dict(line.split() for line in lines)


def _homes_of(*pythons: Path) -> list[Path]:
    """Return where the Pythons of these environments are installed."""
    homes = []
    for python in pythons:
        settings = python.parents[1] / "pyvenv.cfg"
        if settings.exists() and (found := re.search(r"(?m)^home = (.+)$", settings.read_text())):
            home = Path(found[1])
            homes += [home.parent, home.resolve().parent]
    return sorted(set(homes))
