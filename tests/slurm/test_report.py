"""The report of a real job has what Slurm accounted of it."""

from __future__ import annotations

import json
from pathlib import Path

from slurm.cluster import SlurmCluster
from slurm.node import until

BURN = """
import time
room = bytearray(100_000_000)
begin = time.process_time()
while time.process_time() - begin < 3:
    pass
"""


def accounted(slurm: SlurmCluster, job: str) -> None:
    """Wait until the accounting has all of a job: of a short one it may learn the end first."""
    words = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=Timelimit,State")
    ends = ("00:05:00|COMPLETED", "00:05:00|FAILED")
    until(
        lambda: slurm.on(slurm.login, *words, "--jobs", job).stdout.strip() in ends,
        "sacct has the whole job",
    )


def submit(slurm: SlurmCluster, folder: Path, script: str) -> str:
    job = slurm.sbatch(folder, "--mem=1G", "--time=5", script=script)
    slurm.wait(job, "COMPLETED", "FAILED", timeout=120)
    accounted(slurm, job)
    return job


def test_a_run_inside_a_job_is_reported_with_what_slurm_accounted(slurm: SlurmCluster) -> None:
    folder = slurm.folder("burnt")
    (folder / "burn.py").write_text(BURN)
    job = submit(slurm, folder, f"srun {slurm.python} -m stoker run --quiet burn.py")
    for words in ((), (job,)):
        text = slurm.stoker("report", *words, cwd=folder).stdout
        assert f"job      {job} (sbatch): completed, " in text
        assert "Slurm    CPU efficiency " in text
    told = json.loads(slurm.stoker("report", job, "--json", cwd=folder).stdout)["job"]
    assert told["state"] == "COMPLETED"
    assert told["nodes"] == "r03c01"
    assert told["cpu_s"] >= 3
    assert [step["name"] for step in told["steps"]] == ["batch", "0"]
    slurm.stoker("report", job, "--html", "page.html", cwd=folder)
    assert f"{job} (sbatch): completed, " in (folder / "page.html").read_text()


def test_a_job_without_a_run_folder_is_reported_from_the_accounting(slurm: SlurmCluster) -> None:
    folder = slurm.folder("no-run")
    job = submit(slurm, folder, "srun bash -c 'exit 7'; srun true; exit 0")
    done = slurm.stoker("report", job, cwd=folder)
    assert f"job      {job} (sbatch): completed\n" in done.stdout
    assert "step     0: failed (exit code 7)\n" in done.stdout
    assert done.stderr.endswith("next: stoker submit YOUR_SCRIPT.py\n")


def test_a_report_goes_on_while_the_accounting_is_down(slurm: SlurmCluster) -> None:
    folder = slurm.folder("not-accounted")
    (folder / "short.py").write_text("print('done')\n")
    job = submit(slurm, folder, f"srun {slurm.python} -m stoker run --quiet short.py")
    slurm.stop_accounting()
    done = slurm.stoker("report", job, cwd=folder)
    assert "run      " in done.stdout
    assert f"what Slurm accounted of job {job} is not here" in " ".join(done.stdout.split())


def test_a_job_that_nobody_knows_is_an_error(slurm: SlurmCluster) -> None:
    done = slurm.stoker("report", "999999", cwd=slurm.folder("nobody"), check=False)
    assert done.returncode == 2
    assert "there is no run `999999`" in done.stderr
