"""Jobs are cancelled: those that are one's own, and those only."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoker.engine.queue import Job, check_id, find_queued, no_job
from stoker.engine.slurm import call
from stoker.errors import SlurmError


def find_own(ids: Sequence[str]) -> tuple[dict[str, list[Job]], list[str]]:
    """Return the live jobs of each id, and the ids of those that have ended already.

    Raises SlurmError if one is somebody else's, or is not known: then nothing is cancelled.
    """
    live: dict[str, list[Job]] = {}
    ended = []
    for job in dict.fromkeys(check_id(each) for each in ids):
        found = find_queued([job])
        if not found:
            raise no_job(job)
        others = {each.uid for each in found} - {os.getuid()}
        if others:
            raise SlurmError(
                f"job {job} is not yours",
                why=f"it belongs to the user with the number {min(each or 0 for each in others)}",
                fix="stoker jobs, for your own",
            )
        running = [each for each in found if not each.is_ended]
        if running:
            live[job] = running
        else:
            ended.append(job)
    return live, ended


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs, in one call; not again if the answer is lost."""
    call(["scancel", *ids], is_question=False)
