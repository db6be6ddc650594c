"""The test cluster from a terminal: `python tests/slurm up | down | shell | on | crash | boot | cut | heal`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from slurm.cluster import LOGIN, NODES, USERS, SlurmCluster, why_not

STATE = Path("/tmp/stoker-cluster")


def main() -> int:
    """Run one command on the cluster of one state folder."""
    parser = argparse.ArgumentParser(prog="python tests/slurm", description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE, help="where all of it is kept")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start it and leave it running")
    verbs.add_parser("down", help="stop it and remove its folder")
    verbs.add_parser("shell", help="a shell on its login node, started for it where it is down")
    on = verbs.add_parser("on", help="run a command on one of its machines")
    on.add_argument("host", choices=(LOGIN, *NODES))
    on.add_argument("--user", choices=USERS, default="trainee")
    on.add_argument("words", nargs=argparse.REMAINDER)
    for verb in ("crash", "boot", "cut", "heal"):
        verbs.add_parser(verb, help=f"{verb} a node").add_argument("node", choices=NODES)
    asked = parser.parse_args()
    if reason := why_not():
        parser.exit(1, f"{reason}\n")
    cluster = SlurmCluster(asked.state.resolve())
    if asked.verb == "up":
        start(cluster, outlives_us=True)
    elif asked.verb == "down":
        cluster.down()
    elif asked.verb == "shell":
        return shell(cluster)
    elif asked.verb == "on":
        return subprocess.call(cluster.words(asked.host, *asked.words, user=asked.user))
    else:
        getattr(cluster, asked.verb)(asked.node)
    return 0


def start(cluster: SlurmCluster, *, outlives_us: bool) -> None:
    """Start the cluster and tell how long it took; what is half up is taken down."""
    began = time.monotonic()
    try:
        cluster.up(outlives_us=outlives_us)
    except FileExistsError as taken:
        raise SystemExit(str(taken)) from None
    except BaseException:
        cluster.down()
        raise
    print(f"up in {time.monotonic() - began:.1f} s, in {cluster.state}", file=sys.stderr)


def shell(cluster: SlurmCluster) -> int:
    """Leave a person in a shell on the login node; a cluster started for it ends with it."""
    is_ours = not cluster.is_up
    if is_ours:
        start(cluster, outlives_us=False)
    environ = {"PATH": f"{cluster.python.parent}:/usr/local/bin:/usr/bin:/bin", "TERM": "xterm"}
    print(f"account {cluster.account}; shared folder {cluster.shared}", file=sys.stderr)
    try:
        return subprocess.call(cluster.words(LOGIN, "bash", "-i", env=environ))
    finally:
        if is_ours:
            cluster.down()


if __name__ == "__main__":
    raise SystemExit(main())
