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
