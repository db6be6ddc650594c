"""Slurm's reasons for a waiting job, and its words for an ended one, as sentences with a fix."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """What a word of Slurm's means, and what to do about it."""

    what: str
    fix: str
    # It will start by itself once there is room: what would start earlier is worth a try.
    is_queue: bool = False
    # It will never start as it is.
    is_never: bool = False


WAIT = "nothing: it starts by itself"
ASK = "ask the site's support, with the job's id"
CHANGE = "stoker cancel {job}, and submit it with a request that fits"
RELEASE = "scontrol release {job}"

# Names as `squeue` prints them, in the order of how often people meet them.
REASONS: dict[str, Meaning] = {
    "None": Meaning("the scheduler has not looked at it yet", "ask again in a minute"),
    "Resources": Meaning(
        "it is the first in line, and what it asks for is not free yet", WAIT, is_queue=True
    ),
    "Priority": Meaning(
        "jobs of higher priority are before it in its partition", WAIT, is_queue=True
    ),
    "Dependency": Meaning("it waits for another job to end", WAIT),
    "DependencyNeverSatisfied": Meaning(
        "the job that it depends on ended otherwise than asked for: it will never start",
        "stoker cancel {job}, and submit it again; or scontrol update JobId={job} Dependency=",
        is_never=True,
    ),
    "JobHeldUser": Meaning("you held it", RELEASE, is_never=True),
    "JobHeldAdmin": Meaning("an administrator held it", ASK, is_never=True),
    "BeginTime": Meaning("it is not to begin before a time that was set", WAIT),
    "JobArrayTaskLimit": Meaning(
        "as many elements of its array run as are allowed at once",
        "scontrol update JobId={job} ArrayTaskThrottle=N, for N at once",
    ),
    "PartitionTimeLimit": Meaning(
        "its time limit is above what its partition allows",
        "scontrol update JobId={job} TimeLimit=T, or another partition",
        is_never=True,
    ),
    "PartitionNodeLimit": Meaning(
        "it asks for more nodes than its partition allows, or has up", CHANGE, is_never=True
    ),
    "PartitionConfig": Meaning(
        "its partition does not allow such a job", CHANGE, is_never=True
    ),
    "PartitionDown": Meaning(
        "its partition takes jobs, but starts none for now", "stoker cluster show; " + ASK
    ),
    "PartitionInactive": Meaning("its partition starts no jobs", ASK),
    "AccountNotAllowed": Meaning("its account may not use this partition", CHANGE, is_never=True),
    "QOSNotAllowed": Meaning(
        "its QOS may not be used with this account or partition", CHANGE, is_never=True
    ),
    "InvalidAccount": Meaning(
        "its account is not known, or is closed to you",
        "sacctmgr show assoc user=$USER, then submit it with one of those",
        is_never=True,
    ),
    "InvalidQOS": Meaning(
        "its QOS is not known, or is closed to you",
        "sacctmgr show assoc user=$USER format=Account,QOS, then submit it with one of those",
        is_never=True,
    ),
    "AccountingPolicy": Meaning("a limit of its account holds it back", "sacctmgr show assoc"),
    "ReqNodeNotAvail": Meaning(
        "a node that it needs is down, drained, or kept for a reservation",
        "submit it without --nodelist, or with a time limit that ends before the reservation",
        is_queue=True,
    ),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": Meaning(
        "nodes that it needs are down, drained, or kept for another partition", WAIT, is_queue=True
    ),
    "NodeDown": Meaning("a node that it needs is down", WAIT, is_queue=True),
    "Reservation": Meaning("its reservation has not begun yet, or is full", WAIT),
    "ReservationDeleted": Meaning("its reservation is gone", CHANGE, is_never=True),
    "ReservationInvalid": Meaning("its reservation cannot be used by it", CHANGE, is_never=True),
    "Reservation, Invalid": Meaning("its reservation cannot be used", CHANGE, is_never=True),
    "BadConstraints": Meaning(
        "no node of its partition has what it asks for", CHANGE, is_never=True
    ),
    "Constraints": Meaning("no node with the features that it asks for is free", WAIT, is_queue=True),
    "FedJobLock": Meaning("the clusters of the federation decide who runs it", WAIT),
    "FrontEndDown": Meaning("the front end that it needs is down", ASK),
    "Licenses": Meaning("the licences that it asks for are taken", WAIT),
    "MaxMemPerLimit": Meaning(
        "it asks for more memory per node or CPU than its partition allows", CHANGE, is_never=True
    ),
    "MaxRequeue": Meaning(
        "it was requeued as often as the site allows", "stoker logs {job}, then " + RELEASE,
        is_never=True,
    ),
    "launch failed requeued held": Meaning(
        "it could not be launched on a node: Slurm requeued and held it",
        RELEASE + "; where it comes back: " + ASK,
        is_never=True,
    ),
    "job requeued in held state": Meaning(
        "it was requeued, and is held until somebody releases it", RELEASE, is_never=True
    ),
    "JobLaunchFailure": Meaning("it could not be launched", "stoker logs {job}; " + ASK),
    "NonZeroExitCode": Meaning("it ended with an exit code other than 0", "stoker logs {job}"),
    "RaisedSignal:53(Real-time_signal_19)": Meaning(
        "its output file could not be opened",
        "check that the folder of --output is there and can be written to",
    ),
    "Prolog": Meaning("the node is still being prepared for it", "ask again in a minute"),
    "Cleaning": Meaning("its last attempt is still being cleaned up", "ask again in a minute"),
    "SystemFailure": Meaning("Slurm, a file system or the network failed", ASK),
    "InactiveLimit": Meaning("it was inactive for too long", ASK),
    "TimeLimit": Meaning("it used up its time limit", "submit it with a longer time limit"),
    "BurstBufferOperation": Meaning("its burst buffer is being prepared", WAIT),
    "BurstBufferResources": Meaning("there is no burst buffer free for it", WAIT),
    "DeadLine": Meaning("it can no longer end before its deadline", CHANGE, is_never=True),
    "JobHoldMaxRequeue": Meaning(
        "it was requeued as often as the site allows", "stoker logs {job}, then " + RELEASE,
        is_never=True,
    ),
    "SchedDefer": Meaning("it asked to start at once, which the site does not do", CHANGE),
}  # fmt: skip

ENDINGS: dict[str, Meaning] = {
    "COMPLETED": Meaning("it ended well", "stoker logs {job}"),
    "FAILED": Meaning(
        "its script ended with an exit code other than 0", "stoker logs {job}, for its last lines"
    ),
    "TIMEOUT": Meaning(
        "it was killed at its time limit",
        "a longer --time; or save checkpoints, and submit with --requeue to go on from the last",
    ),
    "OUT_OF_MEMORY": Meaning(
        "it was killed because it used more memory than it asked for",
        "a larger --mem, fewer loader workers, or a smaller batch on the host",
    ),
    "NODE_FAIL": Meaning(
        "a node of it went down", "submit it again; with --requeue that happens by itself"
    ),
    "CANCELLED": Meaning("it was cancelled", "submit it again"),
    "PREEMPTED": Meaning(
        "a job of higher priority took its place", "submit it with --requeue to go on by itself"
    ),
    "BOOT_FAIL": Meaning("its nodes could not be started", "submit it again"),
    "DEADLINE": Meaning(
        "it could not end before its deadline", "submit it with a later --deadline"
    ),
    "REVOKED": Meaning("another cluster of the federation took it", "stoker jobs, on that cluster"),
}


def meaning_of(reason: str | None) -> Meaning:
    """Return what a reason means; one that is not known is shown as Slurm says it."""
    if reason is None:
        return REASONS["None"]
    # Some reasons have their nodes after a comma, and newer Slurm writes spaces otherwise.
    text = reason.strip("()").replace("_", " ")
    for name in (text, re.split(r"[,(]", text)[0]):
        for key, meaning in REASONS.items():
            if key.replace("_", " ") == name:
                return meaning
    if text.startswith(("Assoc", "QOS")):
        whose = "its QOS" if text.startswith("QOS") else "its account"
        is_never = "PerJob" in text or "Min" in text.replace("Minutes", "").replace("Mins", "")
        fix = CHANGE if is_never else "nothing: it starts when jobs under the same limit have ended"
        return Meaning(f"a limit of {whose} holds it back", fix, is_never=is_never)
    return Meaning(f"Slurm says: {reason}", ASK)
