"""The end of a job: waiting for it without asking Slurm too often, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stoker.engine.queue import Job, find_queued, read_end
from stoker.errors import SlurmError

# How often Slurm is asked whether the job has ended: at first, and in the end.
ASK_S = (2.0, 10.0)
# How often we look whether it is time to ask again.
LOOK_S = 0.3


class End:
    """Whether a job has ended, without asking Slurm more often than is polite."""

    def __init__(self, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.job, self.clock = job, clock
        self.is_ended = False
        self.jobs: list[Job] = []
        self.next_s = -1.0
        self.pause_s, self.longest_s = ASK_S

    def __call__(self) -> bool:
        """Return whether it has ended; Slurm being away is not an end."""
        if self.is_ended or self.clock() < self.next_s:
            return self.is_ended
        self.next_s = self.clock() + self.pause_s
        self.pause_s = min(self.longest_s, 1.5 * self.pause_s)
        try:
            found = find_queued([self.job])
        except SlurmError:
            return False
        self.jobs = found or self.jobs
        self.is_ended = all(job.is_ended for job in found)
        return self.is_ended

    def last(self) -> list[Job]:
        """Return how it ended, as the accounting or else the controller has it."""
        try:
            return read_end(self.job)
        except SlurmError:
            return self.jobs


def wait_for(job: str) -> list[Job]:
    """Return how a job ended, once it has: itself, or each element of an array."""
    end = End(job)
    while not end():
        time.sleep(LOOK_S)
    return end.last()


def exit_code(jobs: Sequence[Job]) -> int:
    """Return the worst exit code of a job or of the elements of one; never 0 if one ended badly."""
    return max((_code(job) for job in jobs), default=0)


def _code(job: Job) -> int:
    if job.exit_code:
        return job.exit_code
    if job.signal:
        return 128 + job.signal
    return 0 if job.state == "COMPLETED" else 1
