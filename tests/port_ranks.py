"""Run scripts in N processes each, forked from one that has PyTorch already: starts in no time.

Started as `python port_ranks.py JOBS.json MODULE…`: a list of {script, ranks, folder, log}, and what
else to import once for all.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_rank(job: dict[str, Any], rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["ranks"]),
        "LOCAL_WORLD_SIZE": str(job["ranks"]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        **job.get("env", {}),
    }  # fmt: skip
    if job["ranks"] == 1:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    os.chdir(job["folder"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(os.open(f"{job['log']}.{rank}", os.O_WRONLY | os.O_CREAT), 2)
    sys.argv = [job["script"]]
    runpy.run_path(job["script"], run_name="__main__")


def run_job(job: dict[str, Any]) -> int:
    children, port = [], free_port()
    for rank in range(job["ranks"]):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                one_rank(job, rank, port)
                code = 0
            except SystemExit as end:
                code = int(end.code or 0) if not isinstance(end.code, str) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                import atexit

                atexit._run_exitfuncs()
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(codes, key=abs)


def preload(names: tuple[str, ...]) -> None:
    """Import what every child would import for itself."""
    for name in names:
        importlib.import_module(name)


def main() -> None:
    preload(("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.optim"))
    preload(tuple(sys.argv[2:]))
    jobs = json.loads(Path(sys.argv[1]).read_text())
    codes = [run_job(job) for job in jobs]
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
