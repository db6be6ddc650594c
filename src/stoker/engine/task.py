"""Which of several tasks of a launcher this process is: srun's and mpirun's."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Task(NamedTuple):
    """One of the processes that a launcher has started side by side."""

    rank: int
    world: int
    # The same in all tasks of one launch; different in the next, if the launcher tells them apart.
    launch: str

    @property
    def launch_of_all(self) -> str:
        """The launch, with how many tasks it has."""
        return f"{self.launch} of {self.world}"


def read_task(env: Mapping[str, str]) -> Task | None:
    """Return our place among the tasks of a launch; None if we were started alone.

    >>> read_task({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4",
    ...            "SLURM_PROCID": "3"})
    Task(rank=3, world=4, launch='slurm-7.0')
    """
    # mpirun in a Slurm job starts its daemons with srun: its own variables are nearer to us.
    if "OMPI_COMM_WORLD_RANK" in env:
        rank, world = env["OMPI_COMM_WORLD_RANK"], env.get("OMPI_COMM_WORLD_SIZE", "")
        launch = "mpi-" + env.get("OMPI_MCA_ess_base_jobid", env.get("PMIX_NAMESPACE", ""))
    # In a batch script itself SLURM_PROCID is set as well, but no step id.
    elif env.get("SLURM_STEP_ID", "").isdecimal():
        rank, world = env.get("SLURM_PROCID", ""), env.get("SLURM_STEP_NUM_TASKS", "")
        attempt = env.get("SLURM_RESTART_COUNT", "0")
        launch = f"slurm-{env.get('SLURM_JOB_ID', '')}.{env['SLURM_STEP_ID']}"
        if attempt not in ("", "0"):
            launch += f"-attempt{attempt}"
    elif "PMI_RANK" in env:
        rank, world = env["PMI_RANK"], env.get("PMI_SIZE", "")
        launch = "mpi-" + env.get("PMI_JOBID", env.get("HYDI_CONTROL_FD", ""))
    else:
        return None
    if not (rank.isdecimal() and world.isdecimal()) or int(world) < 2:
        return None
    return Task(int(rank), int(world), launch)
