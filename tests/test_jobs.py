"""Jobs, their logs and their reasons, without a Slurm: what is read, said and followed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from stoker.commands import cancel, jobs, logs, why
from stoker.engine.allowed import named_limit
from stoker.engine.end import End
from stoker.engine.logs import CHUNK, MAX_LINE, Lines, Source, Tail, Wanted, follow, task_logs
from stoker.engine.output import array_outputs, job_outputs, output_option
from stoker.engine.queue import (
    ENDED_FIELDS,
    QUEUE_FIELDS,
    Job,
    Listing,
    list_jobs,
    parse_record,
)
from stoker.engine.reasons import ENDINGS, REASONS, meaning_of
from stoker.engine.slurm import SEPARATOR
from stoker.engine.trial import Elsewhere, Trial, earlier, read_request, smaller
from stoker.errors import SlurmError, UsageError
from stoker.report.jobs import next_command, render_jobs, shown_jobs
from stoker.report.log import chosen_logs
from stoker.report.pending import ending_of, render_end, render_running
from stoker.watch.folder import RunFolder
from stoker.watch.submitted import find_submitted, read_submitted

NOW = datetime(2026, 11, 15, 12, 0, 0)
RECORD = """\
JobId=18 ArrayJobId=12 ArrayTaskId=3 JobName=a Reason=b=c
   UserId=someone(1001) GroupId=someone(1001) MCS_label=N/A
   Priority=4294 Nice=0 Account=project_1 QOS=normal
   JobState=PENDING Reason=launch failed requeued held Dependency=(null)
   TimeLimit=1-00:00:00 StartTime=Unknown
   Partition=gpu AllocNode:Sid=login:1
   ReqNodeList=(null) ExcNodeList=(null)
   NumNodes=2-2 NumCPUs=16 NumTasks=4 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   TRES=cpu=16,mem=64G,node=2,gres/gpu=8
   MinCPUsNode=8 MinMemoryNode=32G MinTmpDiskNode=0
   Features=big Licenses=(null)
   Command=/home/it/run.sh Partition=wrong
   WorkDir=/home/it
   StdOut=/home/it/a b=c.log
   TresPerNode=gres:gpu:v100:4
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put stand-ins for Slurm's commands first on the PATH: a name and its shell lines."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def add(name: str, body: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    return add


def job(number: str, state: str, **facts: object) -> Job:
    values: dict[str, object] = {
        "name": "train", "reason": None, "attempt": 1, "elapsed_s": 90, "limit_s": 3600,
        "nodes": "n1", "partition": "gpu", "submitted": None, "started": "2026-11-15T10:00:00",
        "ended": None, "gpus": 1, "uid": 1001,
    }  # fmt: skip
    return Job(id=number, state=state, **{**values, **facts})  # type: ignore[arg-type]


def queue_line(**values: str) -> str:
    return SEPARATOR.join(values.get(name, "N/A").ljust(3) for name in QUEUE_FIELDS) + SEPARATOR


def ended_line(**values: str) -> str:
    return SEPARATOR.join(values.get(name, "") for name in ENDED_FIELDS)


def printing(*lines: str) -> str:
    return "cat <<'END'\n" + "\n".join(lines) + "\nEND"


# What Slurm says.


def test_the_attempts_and_steps_of_a_job_are_one_job(tools: Callable[[str, str], None]) -> None:
    tools("squeue", "true")
    rows = [
        ended_line(JobID="7", JobName="a|b", State="NODE_FAIL", ElapsedRaw="10", End="2026-11-15T10:00:00"),
        ended_line(JobID="7", JobName="a|b", State="CANCELLED by 1001", ExitCode="0:15", ElapsedRaw="100",
                   TimelimitRaw="60", CPUTimeRAW="400", TotalCPU="03:20.500", End="2026-11-15T11:00:00"),
        ended_line(JobID="7.batch", State="CANCELLED", MaxRSS="2097152K"),
        ended_line(JobID="7.0", State="CANCELLED", MaxRSS="3G"),
        ended_line(JobID="8", State="REQUEUED"),
    ]  # fmt: skip
    tools("sacct", printing(*rows))
    (found,) = list_jobs().jobs
    assert (found.id, found.name, found.state, found.attempt) == ("7", "a|b", "CANCELLED", 2)
    assert (found.by, found.signal, found.limit_s) == (1001, 15, 3600)
    assert found.cpu_share == pytest.approx(0.50125)
    assert found.memory_gib == 3.0


def test_what_the_controller_says_is_newer_than_the_accounting(
    tools: Callable[[str, str], None],
) -> None:
    tools("squeue", printing(queue_line(JobArrayID="7", State="PENDING", RestartCnt="2")))
    tools("sacct", printing(ended_line(JobID="7", State="PREEMPTED")))
    (found,) = list_jobs().jobs
    assert (found.state, found.attempt, found.nodes) == ("PENDING", 3, None)


def test_without_accounting_there_is_a_note(tools: Callable[[str, str], None]) -> None:
    tools("squeue", printing(queue_line(JobArrayID="7", State="RUNNING")))
    tools("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    listing = list_jobs()
    assert [each.id for each in listing.jobs] == ["7"]
    assert "Slurm accounting storage is disabled" in listing.notes[0]


def test_an_answer_in_another_form_is_an_error_and_no_empty_queue(
    tools: Callable[[str, str], None],
) -> None:
    tools("squeue", "echo 7 train RUNNING")
    with pytest.raises(SlurmError, match="cannot be read"):
        list_jobs()


def test_a_record_keeps_what_people_wrote_apart_from_what_slurm_says() -> None:
    record = parse_record(RECORD)
    assert record["JobName"] == "a Reason=b=c"
    assert record["Reason"] == "launch failed requeued held"
    assert record["Partition"] == "gpu"
    assert record["StdOut"] == "/home/it/a b=c.log"


# Reasons.


def test_every_reason_and_ending_has_words_and_a_fix() -> None:
    for meaning in (*REASONS.values(), *ENDINGS.values()):
        assert meaning.what
        assert meaning.fix.format(job="7")
        assert not meaning.what.endswith(".")


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("Priority", "jobs of higher priority"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "a node that it needs is down"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "a node that it needs is down"),
        ("ReqNodeNotAvail(Unavailable:n[1-4])", "a node that it needs is down"),
        ("launch_failed_requeued_held", "it could not be launched"),
        ("QOSMaxGRESPerUser", "a limit of its QOS"),
        ("AssocGrpGRES", "a limit of its account"),
        ("SomethingNew", "Slurm says: SomethingNew"),
        (None, "the scheduler has not looked"),
    ],
)  # fmt: skip
def test_reasons_are_read_as_each_release_writes_them(reason: str | None, what: str) -> None:
    assert meaning_of(reason).what.startswith(what)


@pytest.mark.parametrize(
    ("reason", "column", "resource"),
    [
        ("AssocMaxJobsLimit", "MaxJobs", ""),
        ("AssocGrpJobsLimit", "GrpJobs", ""),
        ("AssocGrpCpuLimit", "GrpTRES", "cpu"),
        ("AssocGrpGRES", "GrpTRES", "gres"),
        ("AssocGrpMemLimit", "GrpTRES", "mem"),
        ("AssocGrpNodeLimit", "GrpTRES", "node"),
        ("AssocGrpCPUMinutesLimit", "GrpTRESMins", "cpu"),
        ("AssocGrpCPURunMinutesLimit", "GrpTRESRunMins", "cpu"),
        ("AssocGrpBillingMinutes", "GrpTRESMins", "billing"),
        ("AssocGrpSubmitJobsLimit", "GrpSubmit", ""),
        ("AssocMaxWallDurationPerJobLimit", "MaxWall", ""),
        ("AssocMaxGRESPerJob", "MaxTRES", "gres"),
        ("AssocMaxCpuPerJobLimit", "MaxTRES", "cpu"),
        ("QOSMaxJobsPerUserLimit", "MaxJobsPU", ""),
        ("QOSMaxGRESPerUser", "MaxTRESPU", "gres"),
        ("QOSMaxCpuPerUserLimit", "MaxTRESPU", "cpu"),
        ("QOSMaxNodePerUserLimit", "MaxTRESPU", "node"),
        ("QOSMaxMemoryPerUser", "MaxTRESPU", "mem"),
        ("QOSMaxGRESPerAccount", "MaxTRESPA", "gres"),
        ("QOSMaxGRESPerJob", "MaxTRES", "gres"),
        ("QOSMaxGRESPerNode", "MaxTRESPerNode", "gres"),
        ("QOSMaxWallDurationPerJobLimit", "MaxWall", ""),
        ("QOSGrpCpuLimit", "GrpTRES", "cpu"),
        ("QOSGrpGRES", "GrpTRES", "gres"),
        ("QOSMinGRES", "MinTRES", "gres"),
        ("QOSMinCpuNotSatisfied", "MinTRES", "cpu"),
    ],
)  # fmt: skip
def test_a_reason_names_its_limit_as_sacctmgr_does(reason: str, column: str, resource: str) -> None:
    found = named_limit(reason)
    assert found is not None
    assert (found.column, found.resource) == (column, resource)
    assert found.is_qos == reason.startswith("QOS")


# What would start earlier.


def test_a_request_is_what_the_job_asked_for() -> None:
    request = read_request(parse_record(RECORD))
    assert request.options() == [
        "--account=project_1", "--qos=normal", "--cpus-per-task=4", "--constraint=big",
        "--partition=gpu", "--nodes=2", "--ntasks=4", "--time=1-00:00:00",
        "--gres=gpu:v100:4", "--mem=32768M",
    ]  # fmt: skip


def test_smaller_requests_keep_their_proportions() -> None:
    request = read_request(parse_record(RECORD))
    tries = dict(smaller(request, [Elsewhere("gputest", 900)], room_s=7200.0))
    assert list(tries) == [
        "a time limit that ends before the reservation",
        "half the time limit",
        "an eighth of the time limit",
        "1 node",
        "partition gputest, whose limit is 00:15:00",
    ]
    assert (tries["1 node"].nodes, tries["1 node"].tasks) == (1, 2)
    one = read_request(parse_record(RECORD.replace("NumNodes=2-2", "NumNodes=1")))
    half = dict(smaller(one, []))["2 GPUs"]
    assert (half.gres, half.tasks, half.memory_gib) == ("gpu:v100:2", 2, 16.0)


def test_only_a_start_that_is_clearly_earlier_is_told() -> None:
    def after(minutes: float) -> datetime:
        return NOW + timedelta(minutes=minutes)

    same, there = (Trial("x", "", is_there, after(50)) for is_there in (False, True))
    assert earlier([same, there], after(60), None, NOW) == [same, there]
    assert earlier([same, there], after(50.5), None, NOW) == []
    # Without an estimate, another partition is told only if the job would start there right now.
    assert earlier([same, there], None, after(60), NOW) == [same]
    assert earlier([Trial("x", "", True, NOW)], None, after(60), NOW) != []
    assert earlier([Trial("x", "", False, None)], after(60), None, NOW) == []


# Logs.


def texts(parts: Iterator[bytes]) -> str:
    return b"".join(parts).decode()


def test_a_file_that_comes_late_is_cut_and_is_replaced_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == b""
    path.write_text("one\n")
    assert tail.read() == b"one\n"
    path.write_text("2\n")  # cut: shorter than what was read
    assert tail.read() == b"2\n"
    other = tmp_path / "other"
    other.write_text("another file, and longer\n")
    other.replace(path)
    assert tail.read() == b"another file, and longer\n"
    assert tail.read() == b""


@pytest.mark.parametrize(
    ("count", "expected"), [(0, ""), (1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n")]
)
def test_the_last_lines_are_found_from_the_end(tmp_path: Path, count: int, expected: str) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb\nc\n")
    assert Tail(path, count).read().decode() == expected


def test_the_last_lines_of_a_large_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 3 * CHUNK + b"\n" + b"y" * 2 * CHUNK + b"\nlast")
    tail = Tail(path, 2)
    assert tail.read() == b"y" * CHUNK
    assert path.stat().st_size - tail.position == CHUNK + len("\nlast")


def test_lines_of_torchrun_are_given_to_their_rank() -> None:
    data = b"[default1]:one\n[W] of the launcher\n[default0]:zero\n"
    assert Lines(Source(Path("x"), 2), 4).take(data) == (
        b"rank 9 | one\ntask 2 | [W] of the launcher\nrank 8 | zero\n"
    )
    assert Lines(Source(Path("x"), 2), 4, rank=8).take(data) == b"zero\n"
    assert Lines(Source(Path("x"), 2, 5), 4, rank=8).take(data) == b"5 | zero\n"
    assert Lines(Source(Path("x"), None), 4, rank=8).take(b"script\n") == b""


def test_half_a_line_waits_and_an_endless_one_does_not() -> None:
    lines = Lines(Source(Path("x"), 0), 1)
    assert lines.take(b"ha") == b""
    assert lines.take(b"lf\nre") == b"rank 0 | half\n"
    assert lines.take(b"", is_last=True) == b"rank 0 | re\n"
    assert len(lines.take(b"x" * (MAX_LINE + 1))) > MAX_LINE
    assert lines.take(b"10%\r20%\r30%\n") == b"rank 0 | 30%\n"
    assert lines.take(b"\xff\x00\xfe\n") == b"rank 0 | \xff\x00\xfe\n"


def test_following_takes_up_new_files_and_ends_with_the_job(tmp_path: Path) -> None:
    script = tmp_path / "out.log"
    later: Iterator[Callable[[], int]] = iter(
        [
            lambda: script.write_text("begins\n"),
            lambda: (tmp_path / "0.log").write_text("hello\nhal"),
            lambda: (tmp_path / "1-0.log").write_text("of an element\n"),
        ]
    )
    ended = [False]

    def sleep(_: float) -> None:
        action = next(later, None)
        if action is None:
            ended[0] = True
        else:
            action()

    found = follow(
        lambda: [Source(script), *task_logs(tmp_path)], Wanted(), lambda: ended[0], sleep
    )
    assert texts(found) == (
        "script | begins\nrank 0 | hello\n1 rank 0 | of an element\nrank 0 | hal\n"
    )


def test_one_log_alone_comes_byte_by_byte_as_it_is(tmp_path: Path) -> None:
    data = os.urandom(3 * CHUNK)
    path = tmp_path / "out"
    path.write_bytes(data)
    assert b"".join(follow(lambda: [Source(path)], Wanted(is_plain=True))) == data


def test_slurm_is_asked_politely_whether_the_job_has_ended(
    tools: Callable[[str, str], None], tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    tools("squeue", f"echo >> {calls}; " + printing(queue_line(JobArrayID="7", State="RUNNING")))
    now = [0.0]
    end = End("7", clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        assert not end()
    # After 2 s at first, then after 3, 4.5, 6.75 and at most 10.
    assert len(calls.read_text()) == 5
    tools("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    now[0] = 60.0
    assert end()


def test_the_output_of_a_forgotten_job_is_guessed_from_how_it_was_submitted(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --output=from-script.log\ntrue\n")
    assert output_option("sbatch -o a.log job.sh", tmp_path) == "a.log"
    assert output_option("sbatch --output=b.log job.sh", tmp_path) == "b.log"
    assert output_option("sbatch --time=5 job.sh", tmp_path) == "from-script.log"
    assert output_option("sbatch --wrap gcc -o program", tmp_path) is None
    assert output_option("sbatch --comment it's job.sh", tmp_path) == "from-script.log"


def test_the_logs_of_a_forgotten_array_are_one_an_element(
    tools: Callable[[str, str], None], tmp_path: Path
) -> None:
    tools("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    # Before 21.08 the accounting does not know how a job was submitted.
    lines = [SEPARATOR.join((f"12_{n}", str(20 + n), "a", str(tmp_path))) for n in (10, 3)]
    tools("sacct", f"[[ $* != *SubmitLine* ]] || exit 1\n{printing(*lines)}")
    assert job_outputs("12") == [
        (tmp_path / "slurm-12_3.out", 3),
        (tmp_path / "slurm-12_10.out", 10),
    ]


def test_logs_of_an_array_are_found_by_their_pattern(tmp_path: Path) -> None:
    for name in ("out-3.log", "out-10.log", "out-x.log"):
        (tmp_path / name).touch()
    found = array_outputs(str(tmp_path / "out-%a.log"), "12", "train")
    assert [(path.name, element) for path, element in found] == [
        ("out-3.log", 3),
        ("out-10.log", 10),
    ]


# Runs and jobs.


def make_run(folder: Path, name: str, **facts: object) -> RunFolder:
    run = RunFolder(folder / ".stoker/runs" / name)
    run.make()
    run.write(run.job_json, {"id": "7", "tasks": 1, "processes_per_task": 1, **facts})
    return run


def test_a_job_is_found_by_its_id_its_run_or_as_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no job here"):
        find_submitted(None)
    make_run(tmp_path, "one", id="7")
    newest = make_run(tmp_path, "two", id="8", array="0-9")
    os.utime(newest.job_json, (2e9, 2e9))
    assert find_submitted("7")[1] is not None
    assert find_submitted("9") == ("9", None)
    assert find_submitted("one")[0] == "7"
    assert find_submitted(None)[0] == "8"
    job_id, run = find_submitted("8_3")
    assert job_id == "8_3"
    assert run is not None
    assert run.is_array
    with pytest.raises(UsageError, match="`nonsense` is no job"):
        find_submitted("nonsense")


def test_one_task_writes_to_the_log_of_the_script(tmp_path: Path) -> None:
    run = read_submitted(make_run(tmp_path, "one"))
    assert run is not None
    assert [(each.path.name, each.task) for each in run.logs()] == [("out.log", 0)]


def test_a_rank_that_is_not_there_is_refused(tmp_path: Path) -> None:
    run = read_submitted(make_run(tmp_path, "one", tasks=2, processes_per_task=4))
    assert run is not None
    assert chosen_logs(run, "7", 7, None)[1].rank == 7
    run.folder.task_logs.mkdir()
    (run.folder.task_logs / "3-1.log").touch()
    for job_id, element in (("7", 3), ("7_3", None)):
        sources, _ = chosen_logs(run, job_id, 7, None)
        assert [each.element for each in sources()] == [element]
    with pytest.raises(UsageError, match="there is no rank 8"):
        chosen_logs(run, "7", 8, None)


# What people see.


def test_jobs_are_a_table_with_reasons_nodes_and_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rows = [
        job("12_[3-9]", "PENDING", reason="Priority", started=None, nodes=None, elapsed_s=0),
        job("11", "RUNNING", attempt=2, cpu_share=0.62),
        job("10", "FAILED", exit_code=3, name="evil\x1b[2J\nname"),
    ]
    lines = render_jobs(rows, {}).splitlines()
    assert len(lines) == 4
    assert lines[1].split() == [
        "12_[3-9]",
        "train",
        "PENDING",
        "1",
        "of",
        "01:00:00",
        "1",
        "Priority",
    ]
    assert "00:01:30 of 01:00:00" in lines[2]
    assert "62 %" in lines[2]
    assert lines[3].endswith("exit code 3, n1")
    assert "\x1b" not in "".join(lines)


def test_a_few_ended_jobs_are_shown_unless_all_are_asked_for() -> None:
    listing = Listing(tuple(job(str(n), "COMPLETED") for n in range(9)), ())
    assert len(shown_jobs(listing, is_all=False)[0]) == 5
    assert shown_jobs(listing, is_all=False)[1] == 4
    assert len(shown_jobs(listing, is_all=True)[0]) == 9


def test_the_next_command_suits_the_jobs() -> None:
    assert next_command([job("12_[3-9]", "PENDING")]) == "stoker why 12"
    assert next_command([job("7", "RUNNING")]) == "stoker logs -f 7"
    assert next_command([job("7", "FAILED")]) == "stoker why 7"


@pytest.mark.parametrize("state", sorted(ENDINGS))
def test_every_ending_is_told_with_a_fix(state: str) -> None:
    text = render_end(job("7", state, exit_code=137, signal=9, cpu_share=0.5, memory_gib=1.5))
    assert f"has ended: {state}" in text
    assert ENDINGS[state].what in text
    assert "137" in text
    assert "  fix " in text


def test_a_cancelled_job_says_who_and_whether_it_ran() -> None:
    assert "by you" in ending_of(job("7", "CANCELLED", by=1001)).what
    never = job("7", "CANCELLED", by=0, started=None, elapsed_s=0)
    assert ending_of(never).what == "it was cancelled by root, before it began"


def test_a_running_job_says_what_is_left() -> None:
    assert "00:58:30 left" in render_running(job("7", "RUNNING"))


# The verbs, as far as they go without a Slurm.


@pytest.mark.parametrize("words", [["nonsense"], ["7", "8; rm -rf"], []])
def test_cancel_refuses_what_is_no_job(words: list[str]) -> None:
    with pytest.raises(UsageError):
        cancel.run(words)


def test_several_jobs_are_not_cancelled_without_a_yes(
    tools: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = queue_line(JobArrayID="7", State="RUNNING", UserID=str(os.getuid()))
    tools("squeue", printing(line))
    tools("scancel", f'echo "$@" > {tmp_path}/cancelled')
    monkeypatch.setattr("sys.stdin", io.StringIO("yes"))
    with pytest.raises(UsageError, match="2 jobs would be cancelled"):
        cancel.run(["7", "8"])
    assert not (tmp_path / "cancelled").exists()
    assert cancel.run(["7", "8", "--yes"]) == 0
    assert (tmp_path / "cancelled").read_text() == "7 8\n"


def test_a_job_of_somebody_else_is_not_cancelled(
    tools: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tools("squeue", printing(queue_line(JobArrayID="7", State="RUNNING", UserID="99999")))
    tools("scancel", f"touch {tmp_path}/cancelled")
    with pytest.raises(Exception, match="job 7 is not yours"):
        cancel.run(["7"])
    assert not (tmp_path / "cancelled").exists()


def test_jobs_as_json_is_data_and_talk_is_on_stderr(
    tools: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tools("squeue", printing(queue_line(JobArrayID="7", Name="a", State="RUNNING", UserID="1")))
    tools("sacct", "exit 1")
    assert jobs.run(["--json"]) == 0
    out, err = capfd.readouterr()
    (only,) = json.loads(out)["jobs"]
    assert (only["id"], only["state"], only["gpu_load_pct"]) == ("7", "RUNNING", None)
    assert err.endswith("next: stoker logs -f 7\n")


def test_without_slurm_every_verb_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    for verb, words in ((jobs, []), (why, ["7"]), (logs, ["7"]), (cancel, ["7"])):
        with pytest.raises(Exception, match="there is no `s"):
            verb.run(words)
