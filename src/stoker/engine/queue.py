"""Jobs as Slurm knows them: those in the queue, those that ended, and one of them in full."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine.slurm import SEPARATOR, call, rows
from stoker.errors import SlurmError, UsageError
from stoker.units import DAY_S, parse_gib, parse_slurm_time

# Somebody waits for the answer, and Slurm's commands try for some seconds themselves.
PAUSES_S = (1.0,)
# Slurm's names of a state in which a job will not run again by itself.
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "REVOKED", "TIMEOUT")
)  # fmt: skip
JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,:%-]+\]))?(\+\d+)?")

# Each field of squeue with the room for it: a longer value would be cut.
QUEUE_FIELDS = {
    "JobArrayID": 200, "Name": 200, "UserID": 20, "State": 30, "Reason": 80, "RestartCnt": 12,
    "TimeUsed": 30, "TimeLimit": 30, "NodeList": 1000, "Partition": 100, "SubmitTime": 30,
    "StartTime": 30, "EndTime": 30, "tres-alloc": 300,
}  # fmt: skip
ENDED_FIELDS = (
    "JobID", "JobName", "UID", "State", "ExitCode", "ElapsedRaw", "TimelimitRaw", "NodeList",
    "Partition", "Submit", "Start", "End", "AllocTRES", "TotalCPU", "CPUTimeRAW", "MaxRSS",
)  # fmt: skip
ENDED_CODES = "BF,CA,CD,DL,F,NF,OOM,PR,RQ,TO"

# These of `scontrol show job` hold what people wrote, which may look like fields.
WRITTEN = ("Command=", "WorkDir=", "Comment=", "AdminComment=", "SystemComment=", "SubmitLine=")
UNKNOWN = ("", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "None assigned", "UNLIMITED")


@dataclass(frozen=True)
class Job:
    """One job, or the elements of an array that still wait together; None where unknown."""

    id: str
    name: str
    state: str
    reason: str | None
    attempt: int
    elapsed_s: int | None
    limit_s: int | None
    nodes: str | None
    partition: str | None
    submitted: str | None
    started: str | None
    ended: str | None
    gpus: int
    uid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    # Who cancelled it: a number of a user.
    by: int | None = None
    # CPU time of all that was reserved, 0 to 1; and the largest memory of one task.
    cpu_share: float | None = None
    memory_gib: float | None = None

    @property
    def is_ended(self) -> bool:
        """Return whether it will not run again by itself."""
        return self.state in ENDED

    @property
    def base(self) -> str:
        """Return the id that sbatch printed: without the element of an array."""
        return base_id(self.id)


@dataclass(frozen=True)
class Listing:
    """The jobs of one user: waiting, running, then ended ones, the newest first."""

    jobs: tuple[Job, ...]
    notes: tuple[str, ...]


def base_id(job: str) -> str:
    """Return a job's id without the element.

    >>> base_id("12_[3-9%2]"), base_id("12+1"), base_id("7")
    ('12', '12', '7')
    """
    return re.split(r"[_+]", job)[0]


def check_id(text: str) -> str:
    """Return a job's id; raises `UsageError` for what is none."""
    if not JOB_ID.fullmatch(text):
        raise UsageError(
            f"`{text}` is no job", why="a job's id is like 1234 or 1234_7", fix="stoker jobs"
        )
    return text


def list_jobs(now: float | None = None) -> Listing:
    """Return the user's jobs in the queue and those of the last day: two calls."""
    queued = read_queue(["-u", str(os.getuid())])
    notes = []
    try:
        ended = read_ended(["-u", str(os.getuid())], (now or time.time()) - DAY_S)
    except SlurmError as error:
        ended = []
        notes.append(f"ended jobs are unknown: there is no accounting here ({error.why})")
    # The data base may be behind, or ahead: what the controller says is newer.
    live = {job.id for job in queued if not job.is_ended}
    ended = [job for job in ended if job.id not in live]
    waiting = [job for job in queued if job.state == "PENDING"]
    others = [job for job in queued if job.state != "PENDING"]
    return Listing((*waiting, *others, *ended), tuple(notes))


def read_queue(which: Sequence[str]) -> list[Job]:
    """Return jobs that the controller knows; `which` are squeue's own options."""
    form = ",".join(f"{name}:{size}{SEPARATOR}" for name, size in QUEUE_FIELDS.items())
    output = call(["squeue", "--noheader", *which, "--Format", form], pauses_s=PAUSES_S)
    found = rows(output, list(QUEUE_FIELDS))
    if output.strip() and not found:
        # A field that this release does not have is left out: better no answer than a wrong one.
        raise SlurmError(
            "the answer of squeue cannot be read",
            why="this release of Slurm prints other fields than were asked for",
            fix="squeue --version, and please report it with that; until then: squeue --me",
        )
    return [_queued(row) for row in found]


def find_queued(ids: Iterable[str]) -> list[Job]:
    """Return the jobs of these ids that the controller still knows, ended ones too."""
    try:
        return read_queue(["--states", "all", "--jobs", ",".join(ids)])
    except SlurmError as error:
        if is_no_job(error):
            return []
        raise


def is_no_job(error: SlurmError) -> bool:
    """Return whether Slurm says that there is no such job."""
    return "invalid job id" in error.why.lower()


def read_ended(which: Sequence[str], since: float | None = None) -> list[Job]:
    """Return ended jobs from the accounting, the newest first; `which` are sacct's own options."""
    words = ["--duplicates", *which]
    if since is not None:
        begin = datetime.fromtimestamp(since).strftime("%Y-%m-%dT%H:%M:%S")
        words += ["--starttime", begin, "--endtime", "now", "--state", ENDED_CODES]
    return _ended(ask_accounting(words, ENDED_FIELDS))


def ask_accounting(
    which: Sequence[str],
    fields: Sequence[str],
    env: Mapping[str, str] | None = None,
    ask: Callable[..., str] = call,
) -> list[dict[str, str]]:
    """Return rows of sacct; who waits for a report is not kept waiting by a second try."""
    words = ["sacct", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}", *which]
    return rows(ask([*words, "--format", ",".join(fields)], env=env, pauses_s=()), fields)


def read_cpu_time(text: str) -> float | None:
    """Read CPU time, which has parts of a second where it is short.

    >>> read_cpu_time("00:01.500"), read_cpu_time("1-02:00:00"), read_cpu_time("")
    (1.5, 93600.0, None)
    """
    clock, _, part = text.partition(".")
    seconds = parse_slurm_time(clock) if ":" in clock else None
    return None if seconds is None else seconds + float(f"0.{part}" if part.isdigit() else 0)


def read_job(job: str) -> list[Job]:
    """Return a job, or each element of an array, from the controller or else the accounting."""
    found = find_queued([job])
    if found:
        return found
    try:
        found = read_ended(["--jobs", job])
    except SlurmError as error:
        raise SlurmError(
            f"job {job} is not in the queue",
            why=f"it may have ended, and there is no accounting to ask ({error.why})",
            fix="stoker jobs, for those in the queue",
        ) from None
    if not found:
        raise no_job(job)
    return found


def read_end(job: str) -> list[Job]:
    """Return a job, or each element, with all that is known of how it ended.

    The controller knows the state first, and the accounting the rest, some seconds later.
    """
    queued = find_queued([job])
    try:
        accounted = read_ended(["--jobs", job])
    except SlurmError:
        accounted = []
    if not queued:
        return accounted or read_job(job)
    ends = {each.id: each for each in accounted if each.is_ended}
    codes = {record_id(each): each.get("ExitCode", "") for each in show_job(job)}
    return [
        _with_end(each, ends.get(each.id), codes.get(each.id, "")) if each.is_ended else each
        for each in queued
    ]


def no_job(job: str) -> SlurmError:
    """Return the error for an id that nobody knows."""
    return SlurmError(
        f"there is no job {job}",
        why="neither the queue nor the accounting of this cluster has it",
        fix="stoker jobs --all, for those of the last day",
    )


def show_job(job: str) -> list[dict[str, str]]:
    """Return all that the controller knows of a job, or of each element; none if it forgot."""
    try:
        output = call(["scontrol", "show", "job", job], pauses_s=PAUSES_S)
    except SlurmError as error:
        if is_no_job(error):
            return []
        raise
    return [parse_record(each) for each in re.split(r"\n(?=JobId=)", output) if "JobId=" in each]


def parse_record(text: str) -> dict[str, str]:
    """Return one job of `scontrol show job` as fields.

    >>> parse_record("JobId=7 JobName=a b=c\\n   JobState=PENDING Reason=held by me Dependency=(null)")
    {'JobId': '7', 'JobName': 'a b=c', 'JobState': 'PENDING', 'Reason': 'held by me', 'Dependency': '(null)'}
    """
    first, *others = text.strip().split("\n")
    head, _, name = first.partition(" JobName=")
    record = {**_fields(head), "JobName": name}
    for line in others:
        if line.strip().startswith(("Std", *WRITTEN)):
            key, _, value = line.strip().partition("=")
            record[key] = value
        else:
            record.update(_fields(line))
    return record


def record_id(record: Mapping[str, str]) -> str:
    """Return the id that people type: with the element, if it is one of an array.

    >>> record_id({"JobId": "9", "ArrayJobId": "7", "ArrayTaskId": "2"}), record_id({"JobId": "9"})
    ('7_2', '9')
    """
    if "ArrayJobId" not in record:
        return record.get("JobId", "")
    element = record.get("ArrayTaskId", "")
    return f"{record['ArrayJobId']}_{element}" if element.isdigit() else record["ArrayJobId"]


def known(value: str | None) -> str | None:
    """Return a value, or None where Slurm has a word for nothing.

    >>> known("(null)"), known("gpu")
    (None, 'gpu')
    """
    return None if value is None or value.strip() in UNKNOWN else value.strip()


def gpus_of(tres: str) -> int:
    """Return the GPUs among what was asked for or given.

    >>> gpus_of("cpu=4,gres/gpu=2,gres/gpu:v100=2"), gpus_of("cpu=1,gres/gpu:a100=1"), gpus_of("")
    (2, 1, 0)
    """
    total = re.search(r"gres/gpu=(\d+)", tres)
    return int(total[1]) if total else sum(map(int, re.findall(r"gres/gpu:[^=,]+=(\d+)", tres)))


def _fields(line: str) -> dict[str, str]:
    # A value goes on until the next name: reasons have spaces in them.
    return {key: value.strip() for key, value in re.findall(r"(\S+?)=(.*?)(?=\s+\S+?=|\s*$)", line)}


def _queued(row: Mapping[str, str]) -> Job:
    return Job(
        id=row["JobArrayID"],
        name=row["Name"],
        state=row["State"],
        reason=known(row["Reason"]),
        attempt=_number(row["RestartCnt"]) + 1,
        elapsed_s=parse_slurm_time(row["TimeUsed"]),
        limit_s=parse_slurm_time(row["TimeLimit"]),
        nodes=known(row["NodeList"]),
        partition=known(row["Partition"]),
        submitted=known(row["SubmitTime"]),
        started=known(row["StartTime"]),
        ended=known(row["EndTime"]),
        gpus=gpus_of(row["tres-alloc"]),
        uid=_number(row["UserID"]),
    )


def _ended(found: Sequence[Mapping[str, str]]) -> list[Job]:
    """Return one job for all its attempts and steps; the last attempt is the one that counts."""
    attempts: dict[str, int] = {}
    jobs: dict[str, Job] = {}
    memory: dict[str, float] = {}
    for row in found:
        job, _, step = row["JobID"].partition(".")
        if step:
            memory[job] = max(memory.get(job, 0.0), _gib(row["MaxRSS"]))
            continue
        attempts[job] = attempts.get(job, 0) + 1
        jobs[job] = _accounted(row, attempts[job])
        memory.pop(job, None)
    whole = [
        replace(job, memory_gib=memory.get(job.id) or None)
        for job in jobs.values()
        if job.state != "REQUEUED"
    ]
    return sorted(whole, key=lambda job: (job.ended or "", _number(job.id)), reverse=True)


def _accounted(row: Mapping[str, str], attempt: int) -> Job:
    state, _, who = row["State"].partition(" by ")
    code, _, signal = row["ExitCode"].partition(":")
    reserved, used = _number(row["CPUTimeRAW"]), read_cpu_time(row["TotalCPU"])
    limit = _number(row["TimelimitRaw"])
    return Job(
        id=row["JobID"],
        name=row["JobName"],
        state=state.split()[0] if state else "UNKNOWN",
        reason=None,
        attempt=attempt,
        elapsed_s=_number(row["ElapsedRaw"]),
        limit_s=limit * 60 if limit else None,
        nodes=known(row["NodeList"]),
        partition=known(row["Partition"]),
        submitted=known(row["Submit"]),
        started=known(row["Start"]),
        ended=known(row["End"]),
        gpus=gpus_of(row["AllocTRES"]),
        uid=_number(row["UID"]),
        exit_code=_number(code),
        signal=_number(signal) or None,
        by=_number(who) if who else None,
        cpu_share=used / reserved if used is not None and reserved else None,
    )


def _with_end(job: Job, end: Job | None, code: str) -> Job:
    """Return what the controller knows of an ended job, with what the accounting adds."""
    exit_code, _, signal = code.partition(":")
    if end is None:
        end = replace(job, exit_code=_number(exit_code), signal=_number(signal) or None)
    return replace(
        job,
        exit_code=end.exit_code,
        signal=end.signal,
        by=end.by,
        cpu_share=end.cpu_share,
        memory_gib=end.memory_gib,
    )


def _number(text: str) -> int:
    digits = re.match(r"\d+", text.strip())
    return int(digits[0]) if digits else 0


def _gib(text: str) -> float:
    try:
        return parse_gib(text)
    except UsageError:
        return 0.0
