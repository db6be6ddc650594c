"""sbatch's and srun's options, from the manual pages of Slurm 20.11 to 25.11.

`getopt_long` reads the command lines, so an unambiguous beginning of a name is legal too.
"""

from __future__ import annotations

# Long names that take a value.
VALUED = frozenset(
    [
        "account",
        "acctg-freq",
        "array",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster-constraint",
        "clusters",
        "cluster",
        "comment",
        "constraint",
        "container",
        "container-id",
        "core-spec",
        "cores-per-socket",
        "cpu-bind",
        "cpu-freq",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "delay-boot",
        "dependency",
        "distribution",
        "environment",
        "error",
        "exclude",
        "export",
        "export-file",
        "extra",
        "extra-node-info",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hint",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mem-update",
        "mincpus",
        "network",
        "nodefile",
        "nodelist",
        "nodes",
        "ntasks",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "open-mode",
        "output",
        "partition",
        "power",
        "prefer",
        "priority",
        "profile",
        "qos",
        "reservation",
        "resources",
        "runtime",
        "segment",
        "signal",
        "sockets-per-node",
        "switches",
        "tasks-per-node",
        "thread-spec",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-task",
        "uid",
        "wait-all-nodes",
        "wckey",
        "wrap",
    ]
)
# Long names that take none, or may.
FLAGS = frozenset(
    [
        "consolidate-segments",
        "contiguous",
        "exclusive",
        "external",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "nice",
        "no-kill",
        "no-requeue",
        "oom-kill-step",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "resv-ports",
        "spread-job",
        "spread-segments",
        "stepmgr",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    ]
)
SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "V": "version",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
# srun has all of sbatch's that matter here, and these.
SRUN_VALUED = VALUED | frozenset(
    [
        "accel-bind",
        "bcast",
        "bcast-exclude",
        "compress",
        "epilog",
        "het-group",
        "jobid",
        "mpi",
        "msg-timeout",
        "prolog",
        "relative",
        "send-libs",
        "slurmd-debug",
        "task-epilog",
        "task-prolog",
        "threads",
        "treewidth",
    ]
)
SRUN_SHORT = {**SHORT, "K": "kill-on-bad-exit", "I": "immediate", "r": "relative", "T": "threads",
              "E": "preserve-env", "X": "disable-status", "Z": "no-allocate", "l": "label",
              "u": "unbuffered"}  # fmt: skip

# Options whose value is free text: an empty one is taken.
TEXT_OPTIONS = frozenset(
    [
        "account",
        "array",
        "comment",
        "constraint",
        "dependency",
        "error",
        "exclude",
        "export",
        "job-name",
        "licenses",
        "mail-user",
        "nodelist",
        "output",
        "partition",
        "qos",
        "reservation",
        "wckey",
        "chdir",
        "input",
        "begin",
        "mail-type",
    ]
)
# What common plugins add to sbatch: pyxis, Shifter, uenv, and what sites call their own.
PLUGIN_OPTIONS = frozenset(
    [
        "container-image",
        "container-mounts",
        "container-workdir",
        "container-name",
        "container-save",
        "container-mount-home",
        "no-container-mount-home",
        "container-remap-root",
        "no-container-remap-root",
        "container-entrypoint",
        "no-container-entrypoint",
        "container-env",
        "container-writable",
        "container-readonly",
        "image",
        "volume",
        "module",
        "uenv",
        "view",
        "argos",
        "ssd",
        "ear",
        "jobreport",
    ]
)

# Gone from Slurm, with what replaced them.
OBSOLETE = {
    "workdir": "chdir",
    "share": "oversubscribe",
    "cpu_bind": "cpu-bind",
    "mem_bind": "mem-bind",
}


# What people write who come from another scheduler or guess.
ALIASES = {
    "queue": "partition",
    "memory": "mem",
    "walltime": "time",
    "name": "job-name",
    "cores": "cpus-per-task",
    "cpus": "cpus-per-task",
    "tasks": "ntasks",
    "email": "mail-user",
    "gpu": "gpus",
    "stdout": "output",
    "stderr": "error",
    "project": "account",
}

# Two slips of the finger; more is another word.
MAX_SLIPS = 2


def meant(name: str) -> str | None:
    """Return the option that a misspelt name was meant to be.

    >>> meant("tiem"), meant("partion"), meant("walltime"), meant("image")
    ('time', 'partition', 'time', None)
    """
    known = OBSOLETE.get(name) or ALIASES.get(name)
    if known is not None:
        return known
    limit = MAX_SLIPS if len(name) > 5 else 1
    near = {
        each: _slips(name, each) for each in VALUED | FLAGS if abs(len(each) - len(name)) <= limit
    }
    best = min(near, key=lambda each: (near[each], each), default=None)
    return best if best is not None and near[best] <= limit else None


def _slips(one: str, other: str) -> int:
    """Count the letters dropped, added, changed or swapped between two words."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        new = [i]
        for j, b in enumerate(other, 1):
            cost = min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            new.append(cost)
        before, row = row, new
    return row[-1]


def canonical(name: str) -> str | None:
    """Return the full name of a long option, as getopt_long would read it.

    >>> canonical("cpus-per-t"), canonical("ntaks")
    ('cpus-per-task', None)
    """
    known = VALUED | FLAGS
    if name in known:
        return "ntasks-per-node" if name == "tasks-per-node" else name
    longer = [each for each in known if each.startswith(name)]
    return canonical(longer[0]) if len(longer) == 1 else None


def takes_value(name: str) -> bool:
    """Whether an option needs a value."""
    return name in VALUED
