"""Run ported scripts one after the other in the ranks that MPI has started: one start for all.

Started in each rank as `python port_mpi.py JOBS.json`: a list of {script, folder, log}. Horovod
meets once in a process, and MPI cannot be forked: scripts take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def run_job(job: dict[str, Any]) -> None:
    os.chdir(job["folder"])
    sys.argv = [job["script"]]
    with Path(job["log"]).open("a") as log, contextlib.redirect_stdout(log):
        try:
            runpy.run_path(job["script"], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise


def main() -> None:
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run_job(job)


if __name__ == "__main__":
    main()
