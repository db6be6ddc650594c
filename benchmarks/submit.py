"""What `stoker submit`, a sweep of 1,000 and `stoker jobs` cost, on a real Slurm, beside sbatch and submitit.

    sudo .venv/bin/python benchmarks/submit.py
    sudo .venv/bin/python benchmarks/submit.py --repeats 30 --points 500

Starts the cluster of the tests (tests/slurm) in a temporary folder, and takes it down. Stoker and
submitit lie in folders of their own, compiled, and run with the same Python on the login node, as a
user without rights. All jobs are held: nothing runs meanwhile. What is compared is run in turn, each
command a fresh process; Slurm's commands are counted by programs of the same names in front of them,
in runs that are not timed.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import difference_of, median_of, render_table, spread_of, write_results
from machine import HERE, SRC, describe_machine, plain_environment, render_machine

sys.path.insert(0, str(HERE.parent / "tests"))
from slurm.cluster import BIN, SlurmCluster, why_not
from slurm.node import until
from stoker.watch.folder import RUNS

# In seconds; of a submission, what it adds to a bare sbatch.
BARS = {"submit": 0.3, "sweep": 2.0, "jobs": 1.0}
MAX_CALLS = {"sweep": 1, "jobs": 2}
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel", "srun", "sacctmgr")
SWEEPS = 5
SIDE = 10
# Figures whose middle half is wider than this part of their median are called uneven.
WIDE = 0.3
OURS, BARE, PEER = "stoker submit", "sbatch --parsable", "submitit submit"
NAMED = f"{OURS} --cluster tiny"
DRY = f"{NAMED} --dry-run"
SUBMITTING = (BARE, OURS, NAMED, PEER)
# The ended jobs of a day, which is what `stoker jobs` asks for.
ENDED = ("sacct", "--allocations", "--starttime=now-1day", "--endtime=now", "--state=CA,CD,F,TO")

# Runs commands in turn on the login node, and prints the seconds of each.
TIMER = """
import json, os, resource, subprocess, sys, time
asked = json.load(sys.stdin)
told = {name: {"seconds": [], "cpu_s": [], "said": [], "lines": []} for name in asked["commands"]}
def cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
for _ in range(asked["rounds"]):
    for name, command in asked["commands"].items():
        before, start = cpu(), time.perf_counter()
        done = subprocess.run(command["words"], env={**os.environ, **command["env"]},
                              capture_output=True, text=True)
        told[name]["seconds"].append(time.perf_counter() - start)
        told[name]["cpu_s"].append(cpu() - before)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        told[name]["said"].append(done.stdout[-200:])
        told[name]["lines"].append(len(done.stdout.splitlines()))
print(json.dumps(told))
"""

# One submission, or the sweep; prints the seconds without Python's start and the import.
SUBMITIT = """
import sys, time
import submitit
from submitit.helpers import CommandFunction
account, side, points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start = time.perf_counter()
executor = submitit.AutoExecutor(folder="submitit")
executor.update_parameters(
    timeout_min=5, gpus_per_node=1, cpus_per_task=10, slurm_partition="gpu", slurm_account=account,
    slurm_additional_parameters={"hold": True},
)
train = CommandFunction([sys.executable, "train.py"])
if points:
    pairs = [(f"--lr={n % side}", f"--seed={n // side}") for n in range(points)]
    jobs = executor.map_array(train, *zip(*pairs))
    assert len({job.job_id for job in jobs}) == points
else:
    executor.submit(train)
print(time.perf_counter() - start)
"""


class Command(NamedTuple):
    """A command line on the login node, and what its environment has besides."""

    words: tuple[str, ...]
    env: dict[str, str]


class Bench:
    """The cluster, and the commands that are compared on it."""

    def __init__(self, cluster: SlurmCluster, points: int) -> None:
        self.cluster, self.points = cluster, points
        self.folder = cluster.folder("compared")
        (self.folder / "train.py").write_text("print('trains')\n")
        (self.folder / "peer.py").write_text(SUBMITIT)
        self._ours, self._peer = cluster.shared / "ours", cluster.shared / "peer"
        # A copy: nobody changes it meanwhile, and the user cannot compile what belongs to others.
        shutil.copytree(SRC, self._ours, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self._ours, quiet=1)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(self._peer)]
        subprocess.run([*pip, "submitit"], check=True)
        self._count_calls()
        self.time({"detect": self.stoker("cluster", "detect", "--save")}, 1, self.folder)
        self.time({OURS: self.submit()}, 1, self.folder)
        # What Stoker leaves of one job.
        (self._run,) = self.folder.glob(f"{RUNS}/*")

    def _count_calls(self) -> None:
        """Put programs in front of Slurm's own that write down their names."""
        self._front, self._called = self.cluster.folder("front"), self.folder / "called"
        for name in COMMANDS:
            path = self._front / name
            lines = f'#!/bin/sh\necho {name} >> {self._called}\nexec /usr/bin/{name} "$@"\n'
            path.write_text(lines)
            path.chmod(0o755)

    # The commands.

    def stoker(self, *words: str) -> Command:
        line = (str(self.cluster.python), "-m", "stoker", *words)
        return Command(line, {"PYTHONPATH": str(self._ours)})

    def submit(self, *words: str) -> Command:
        options = ("--account", self.cluster.account, "--time", "5m", "--gpus", "1")
        return self.stoker("submit", *options, "--sbatch=--hold", *words, "train.py")

    def sweep(self) -> Command:
        lr = "lr=" + ",".join(map(str, range(SIDE)))
        seed = "seed=" + ",".join(map(str, range(self.points // SIDE)))
        return self.submit("--sweep", lr, "--sweep", seed)

    def bare(self) -> Command:
        """Return sbatch with the very script that Stoker submitted."""
        return Command(("sbatch", "--parsable", str(self._run / "job.sh")), {})

    def submitit(self, points: int = 0) -> Command:
        line = (str(self.cluster.python), "peer.py", self.cluster.account, str(SIDE), str(points))
        return Command(line, {"PYTHONPATH": str(self._peer)})

    def submitit_version(self) -> str:
        return (
            next(self._peer.glob("submitit-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        )

    # Running them.

    def time(self, commands: Mapping[str, Command], rounds: int, cwd: Path) -> dict[str, Any]:
        asked = {name: command._asdict() for name, command in commands.items()}
        done = self.cluster.on(
            self.cluster.login, self.cluster.python, "-I", "-c", TIMER, cwd=cwd, timeout=600,
            stdin=json.dumps({"commands": asked, "rounds": rounds}),
        )  # fmt: skip
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def calls(self, command: Command, cwd: Path) -> dict[str, int]:
        """Return how often a command calls which of Slurm's."""
        env = {**command.env, "PATH": f"{self._front}:{BIN}"}
        self._called.unlink(missing_ok=True)
        self.time({"counted": command._replace(env=env)}, 1, cwd)
        names = self._called.read_text().split() if self._called.exists() else []
        return dict(Counter(names))

    # What is measured.

    def measure_submit(self, repeats: int) -> dict[str, Any]:
        commands = {
            BARE: self.bare(),
            OURS: self.submit(),
            NAMED: self.submit("--cluster", "tiny"),
            DRY: self.submit("--cluster", "tiny", "--dry-run"),
            PEER: self.submitit(),
            "python -c pass": Command((str(self.cluster.python), "-c", "pass"), {}),
        }
        self.time(commands, 1, self.folder)
        told = self.time(commands, repeats, self.folder)
        for name, command in commands.items():
            told[name]["calls"] = self.calls(command, self.folder)
        # The first of all, an unmeasured round, the rounds, and one that was counted.
        assert len(self._queued()) == 1 + len(SUBMITTING) * (repeats + 2)
        self.cluster.cancel_all()
        return with_inside(told, PEER)

    def measure_sweep(self) -> dict[str, Any]:
        commands = {"stoker": self.sweep(), "submitit": self.submitit(self.points)}
        told: dict[str, Any] = {}
        for round_ in range(SWEEPS + 1):
            for name, command in commands.items():
                if not round_:
                    told[name] = {"calls": self.calls(command, self.folder), "seconds": [],
                                  "cpu_s": [], "said": [], "lines": []}  # fmt: skip
                    told[name]["queued"] = len(self._queued())
                else:
                    new = self.time({name: command}, 1, self.folder)[name]
                    for key, values in new.items():
                        told[name][key] += values
                self.cluster.cancel_all()
        return with_inside(told, "submitit")

    def measure_jobs(self, repeats: int) -> list[dict[str, Any]]:
        """Fill the queue in several ways, and list it in each."""
        script, rows = self.bare().words[-1], []
        empty, full = self.cluster.folder("empty"), self.cluster.folder("full")
        loop = f'for n in $(seq {self.points}); do sbatch --parsable "$0" || exit; done'
        ids = self._shell(empty, loop, script).split()
        rows += self._list(f"{self.points:,} jobs wait", empty, repeats)
        self._write_runs(full, ids)
        known = self._ended()
        rows += self._list("the same, each with a run folder here", full, repeats)
        self.cluster.cancel_all()
        until(
            lambda: self._ended() >= known + self.points, "the accounting knows the ended ones", 120
        )
        array = f'sbatch --parsable --array=0-{self.points - 1} "$0"'
        job = self._shell(empty, array, script).strip()
        before = f"and {self.points:,} others ended today"
        rows += self._list(
            f"an array of {self.points:,} waits in one line, {before}", empty, repeats
        )
        # What is changed of one element takes it out of the line that they share.
        split = f'for n in $(seq 0 {self.points - 1}); do scontrol update JobId="$0_$n" Nice=1 || exit; done'
        self._shell(empty, split, job)
        extra = {"stoker jobs --all": self.stoker("jobs", "--all"),
                 "stoker jobs --json": self.stoker("jobs", "--json")}  # fmt: skip
        what = f"the array's elements wait in a line each, {before}"
        rows += self._list(what, empty, repeats, extra)
        self.cluster.cancel_all()
        return rows

    def _list(
        self, what: str, cwd: Path, repeats: int, extra: Mapping[str, Command] | None = None
    ) -> list[dict[str, Any]]:
        commands = {
            "squeue --me": Command(("squeue", "--me"), {}),
            "sacct, a day": Command(ENDED, {}),
            "stoker jobs": self.stoker("jobs"),
            **(extra or {}),
        }
        self.time(commands, 1, cwd)
        told = self.time(commands, repeats, cwd)
        return [
            {"queue": what, "command": name, "calls": self.calls(command, cwd),
             **{key: told[name][key] for key in ("seconds", "cpu_s")}, "printed": max(told[name]["lines"])}
            for name, command in commands.items()
        ]  # fmt: skip

    def _write_runs(self, cwd: Path, ids: Sequence[str]) -> None:
        """Leave the run folders that `stoker submit` would have left, one for each job."""
        for number, job in enumerate(ids):
            run = cwd / RUNS / f"20260101-{number:06}-train"
            shutil.copytree(self._run, run)
            facts = json.loads((run / "job.json").read_text())
            (run / "job.json").write_text(json.dumps({**facts, "id": job}))

    def _shell(self, cwd: Path, line: str, *words: str) -> str:
        """Return what a line of shell prints; it may take minutes."""
        on = self.cluster.on(self.cluster.login, "bash", "-c", line, *words, cwd=cwd, timeout=300)
        return on.stdout

    def _queued(self) -> list[str]:
        return self._shell(self.folder, "squeue --me --array --noheader --format=%i").split()

    def _ended(self) -> int:
        return len(self._shell(self.folder, shlex.join([*ENDED, "--noheader"])).splitlines())


def with_inside(told: dict[str, Any], peer: str) -> dict[str, Any]:
    """Return the figures without what was printed, but with the seconds that submitit took inside."""
    for name, each in told.items():
        said = each.pop("said")
        if name == peer:
            each["inside_s"] = [float(text) for text in said]
    return told


# -- the page ------------------------------------------------------------------------


def render_calls(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in calls.items()) or "none"


def render_half(values: Sequence[float], unit: float, digits: int) -> str:
    spread = spread_of([each * unit for each in values])
    return f"{spread.low:.{digits}f} to {spread.high:.{digits}f}"


def verdict(is_kept: bool) -> str:
    return "kept" if is_kept else "**missed**"


def render_submit(told: Mapping[str, Any]) -> str:
    base, rows = told[BARE]["seconds"], []
    for name, each in told.items():
        median = median_of(each["seconds"])
        added = difference_of(each["seconds"], base)
        adds = f"{added.value * 1e3:+.0f} ({added.low * 1e3:+.0f} to {added.high * 1e3:+.0f})"
        rows.append(
            [f"`{name}`", f"{median.value * 1e3:.0f}", render_half(each["seconds"], 1e3, 0),
             f"{max(each['seconds']) * 1e3:.0f}", adds if name in SUBMITTING[1:] else "",
             f"{median_of(each['cpu_s']).value * 1e3:.0f}", render_calls(each["calls"])]
        )  # fmt: skip
    head = ["command", "median, ms", "middle half, ms", "slowest, ms", "adds to sbatch, ms (95 %)",
            "CPU, ms", "calls of Slurm"]  # fmt: skip
    return render_table(head, rows)


def render_sweep(told: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{each['queued']:,}", f"{median_of(each['seconds']).value:.2f}",
         ", ".join(f"{second:.2f}" for second in each["seconds"]),
         f"{median_of(each['cpu_s']).value:.2f}", render_calls(each["calls"])]
        for name, each in told.items()
    ]  # fmt: skip
    head = ["", "elements in the queue", "median, s", "each, s", "CPU, s", "calls of Slurm"]
    return render_table(head, rows)


def render_jobs(rows: Sequence[Mapping[str, Any]]) -> str:
    shown, last = [], ""
    for each in rows:
        queue = each["queue"] if each["queue"] != last else ""
        last = each["queue"]
        shown.append(
            [queue, f"`{each['command']}`", f"{median_of(each['seconds']).value:.2f}",
             render_half(each["seconds"], 1, 2), f"{max(each['seconds']):.2f}",
             f"{median_of(each['cpu_s']).value:.2f}", f"{each['printed']:,}", render_calls(each["calls"])]
        )  # fmt: skip
    head = ["queue", "command", "median, s", "middle half, s", "slowest, s", "CPU, s",
            "lines printed", "calls of Slurm"]  # fmt: skip
    return render_table(head, shown)


def render_bars(results: Mapping[str, Any]) -> str:
    submit, sweep = results["submit"], results["sweep"]["stoker"]
    added = difference_of(submit[OURS]["seconds"], submit[BARE]["seconds"]).value
    took, calls = median_of(sweep["seconds"]).value, sweep["calls"].get("sbatch", 0)
    listed = [each for each in results["jobs"] if each["command"] == "stoker jobs"]
    slowest = max(median_of(each["seconds"]).value for each in listed)
    most = max(sum(each["calls"].values()) for each in listed)
    points = f"{results['points']:,}"
    pairs = zip(submit[OURS]["seconds"], submit[BARE]["seconds"], strict=True)
    over = {
        "submit": [ours - bare for ours, bare in pairs],
        "sweep": sweep["seconds"],
        "jobs": [second for each in listed for second in each["seconds"]],
    }
    rounds = [
        f"{sum(second > BARS[name] for second in seconds)} of {len(seconds)}"
        for name, seconds in over.items()
    ]
    rows = [
        ["`stoker submit` adds to `sbatch`", "300 ms", f"{added * 1e3:.0f} ms", rounds[0],
         verdict(added <= BARS["submit"])],
        [f"a sweep of {points}", "2 s, 1 sbatch", f"{took:.2f} s, {calls} sbatch", rounds[1],
         verdict(took <= BARS["sweep"] and calls <= MAX_CALLS["sweep"])],
        [f"`stoker jobs` with {points} in the queue, the slowest queue below", "1 s, 2 calls",
         f"{slowest:.2f} s, {most} calls", rounds[2],
         verdict(slowest <= BARS["jobs"] and most <= MAX_CALLS["jobs"])],
    ]  # fmt: skip
    return render_table(["what", "bar", "median", "single runs slower than the bar", ""], rows)


def render_noise(results: Mapping[str, Any]) -> str:
    """Say how busy the machine was, and which figures are uneven."""
    measured = {**results["submit"], **{f"sweep, {k}": v for k, v in results["sweep"].items()}}
    measured |= {f"{each['command']} ({each['queue']})": each for each in results["jobs"]}
    wide = []
    for name, each in measured.items():
        spread = spread_of(each["seconds"])
        if spread.high - spread.low > WIDE * spread.median:
            wide.append(name)
    load = f"The load was {results['load'][0]} before and {results['load'][1]} at the end, on {results['machine']['cores']} cores that also run the cluster: controller, data base and five nodes."
    return (
        f"{load} The middle half is wider than {WIDE:.0%} of the median in {len(wide)} of {len(measured)} "
        f"figures{': ' if wide else ''}{'; '.join(wide)}. What else runs on so few cores shows in the times, "
        "so their differences count more than their sizes.\n"
    )


def render_worse(results: Mapping[str, Any]) -> str:
    submit, sweep, jobs = results["submit"], results["sweep"], results["jobs"]
    alone = median_of(submit[PEER]["inside_s"]).value
    whole = median_of(sweep["submitit"]["inside_s"]).value
    ours = median_of(submit[OURS]["seconds"]).value
    asking = difference_of(submit[OURS]["seconds"], submit[NAMED]["seconds"])
    peer = difference_of(submit[OURS]["seconds"], submit[PEER]["seconds"])
    last = {each["command"]: median_of(each["seconds"]).value for each in jobs[-5:]}
    return (
        "**What is worse.** "
        f"Whoever submits from a Python that has submitit imported waits only {alone * 1e3:.0f} ms for one job and "
        f"{whole:.2f} s for the sweep; `stoker submit` is a new process each time ({ours * 1e3:.0f} ms), of which "
        f"{median_of(submit[DRY]['seconds']).value * 1e3:.0f} ms are there without submitting (`--dry-run`). "
        f"Beside a fresh Python with submitit, one `stoker submit` takes {peer.value * 1e3:+.0f} ms "
        f"({peer.low * 1e3:+.0f} to {peer.high * 1e3:+.0f}). "
        "Without `--cluster` it asks Slurm for the cluster's name first, one call more: "
        f"{asking.value * 1e3:+.0f} ms ({asking.low * 1e3:+.0f} to {asking.high * 1e3:+.0f}). "
        f"`stoker jobs` tells more than `squeue --me`, and takes longer: {last['stoker jobs']:.2f} s against "
        f"{last['squeue --me']:.2f} s in the last queue of the table, `--all` {last['stoker jobs --all']:.2f} s, "
        f"`--json` {last['stoker jobs --json']:.2f} s.\n\n"
        "**What this does not show.** The files are on a local disk, and nobody else asks the controller: on a site "
        "with a slow home and a busy controller all of it takes longer, sbatch too. No job has begun, so that no "
        "run folder has readings for `stoker jobs` to look at; it looks at those of 50 jobs at most.\n"
    )


def render_page(results: Mapping[str, Any]) -> str:
    repeats = results["repeats"]
    return "\n".join(
        [
            "# Submitting and listing\n",
            f"{render_machine(results['machine'])} Slurm {results['slurm']}, submitit {results['submitit']}.\n",
            f"`{results['command']}`\n",
            render_bars(results),
            render_noise(results),
            "## One job\n",
            f"In turn, {repeats} rounds after one unmeasured; `sbatch` gets the very script that Stoker wrote, "
            "submitit the same command, also with one GPU for five minutes. Each is a fresh process.\n",
            render_submit(results["submit"]),
            f"## A sweep of {results['points']:,}\n",
            f"`stoker submit --sweep lr=… --sweep seed=…` and submitit's `map_array` of the same points, in turn, "
            f"{SWEEPS} times each, the queue emptied between.\n",
            render_sweep(results["sweep"]),
            f"## `stoker jobs` with {results['points']:,} jobs in the queue\n",
            f"In turn with Slurm's own commands, {results['lists']} rounds after one unmeasured.\n",
            render_jobs(results["jobs"]),
            render_worse(results),
        ]
    )


def measure(cluster: SlurmCluster, args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(cluster, args.points)
    results: dict[str, Any] = {
        "slurm": cluster.on(cluster.login, "sbatch", "--version").stdout.split()[-1],
        "submitit": bench.submitit_version(),
    }
    for name, work in (
        ("submit", lambda: bench.measure_submit(args.repeats)),
        ("sweep", bench.measure_sweep),
        ("jobs", lambda: bench.measure_jobs(args.lists)),
    ):
        began = time.monotonic()
        results[name] = work()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20, help="submissions of one job")
    parser.add_argument("--lists", type=int, default=10, help="listings of each queue")
    parser.add_argument("--points", type=int, default=1000, help="of the sweep, and in the queue")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "submit.json")
    args = parser.parse_args()
    if reason := why_not():
        parser.exit(1, f"{reason}\n")
    machine = describe_machine(str(SlurmCluster.python), (), plain_environment())
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="stoker-bench-")))
    try:
        cluster.up()
        # Ended jobs count for some minutes; a site allows for more of them than the tests need.
        with cluster.configured(MaxJobCount="100000"):
            measured = measure(cluster, args)
    finally:
        cluster.down()
    results = {
        "command": shlex.join(["benchmarks/submit.py", *sys.argv[1:]]),
        "machine": machine,
        "repeats": args.repeats,
        "lists": args.lists,
        "points": args.points,
        "load": [machine["load_before"], round(os.getloadavg()[0], 2)],
        **measured,
    }
    write_results(args.output, results, render_page(results))


if __name__ == "__main__":
    main()
