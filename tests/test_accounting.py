"""What sacct tells of a job is read as it is, and joined with the run that it belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.accounting import FIELDS, Attempt, last_attempts, read_attempts
from stoker.engine.queue import read_cpu_time
from stoker.engine.slurm import SEPARATOR
from stoker.errors import SlurmError
from stoker.report.accounting import (
    job_of,
    jobs_json,
    join_job,
    render_jobs,
    render_joined,
)
from stoker.watch.submitted import find_run_inside
from stoker.watch.summary import Summary

START = 1_794_750_000
JOB = {
    "JobID": "1234", "JobIDRaw": "1234", "JobName": "train", "Cluster": "grotto", "Partition": "gpu",
    "State": "COMPLETED", "ExitCode": "0:0", "Start": str(START), "End": str(START + 1000),
    "ElapsedRaw": "1000", "TimelimitRaw": "60", "AllocCPUS": "20", "TotalCPU": "02:46:40", "MaxRSS": "",
    "NTasks": "", "NNodes": "2", "NodeList": "g[01-02]", "ReqMem": "64G", "TRESUsageInTot": "",
    "AllocTRES": "billing=20,cpu=20,gres/gpu:v100=8,gres/gpu=8,mem=128G,node=2",
}  # fmt: skip
BATCH = {
    **JOB, "JobID": "1234.batch", "JobIDRaw": "1234.batch", "JobName": "batch", "TimelimitRaw": "",
    "TotalCPU": "00:01.500", "MaxRSS": "1024M", "NTasks": "1", "TRESUsageInTot": "cpu=00:00:01,mem=1G",
}  # fmt: skip
STEP = {
    **BATCH, "JobID": "1234.0", "JobIDRaw": "1234.0", "JobName": "python", "TotalCPU": "02:46:38",
    "MaxRSS": "5242880K", "NTasks": "8", "TRESUsageInTot": "cpu=02:46:38,energy=0,mem=31G,vmem=90G",
}  # fmt: skip


def answer(*rows: Mapping[str, str]) -> str:
    return "".join(SEPARATOR.join(row[name] for name in FIELDS) + "\n" for row in rows)


def read(*rows: Mapping[str, str]) -> list[Attempt]:
    return read_attempts("1234", lambda *_, **__: answer(*rows))


def run_of(tmp_path: Path, start: float | None = START + 20.0, **run: Any) -> Summary:
    told = {"environment": {"SLURM_JOB_ID": "1234"}, "start": start, **run}
    return Summary(tmp_path, told, "ended", 950.0, (), ())


def test_one_call_asks_for_explicit_fields_in_seconds_since_1970() -> None:
    asked: list[tuple[Sequence[str], dict[str, Any]]] = []

    def ask(words: Sequence[str], **options: Any) -> str:
        asked.append((words, options))
        return answer(JOB, BATCH, STEP)

    assert len(read_attempts("1234", ask)) == 1
    [(words, options)] = asked
    assert words[0] == "sacct"
    assert f"--delimiter={SEPARATOR}" in words
    assert not any("json" in word for word in words)
    assert options["env"]["SLURM_TIME_FORMAT"] == "%s"
    assert options["env"].keys() >= os.environ.keys()


def test_a_job_has_its_efficiency_of_what_was_reserved() -> None:
    [job] = read(JOB, BATCH, STEP)
    assert (job.state, job.exit_code, job.nodes, job.gpus) == ("COMPLETED", 0, "g[01-02]", 8)
    assert (job.elapsed_s, job.limit_s, job.cpus) == (1000, 3600, 20)
    assert job.cpu_share == 0.5
    # The batch script and the step beside it, each with all its tasks.
    assert (job.memory_gib, job.reserved_gib, job.memory_share) == (32, 128, 0.25)
    assert [step.memory_gib for step in job.steps] == [1, 5]


def test_steps_without_a_sum_count_their_largest_task_for_each() -> None:
    [job] = read(JOB, {**STEP, "TRESUsageInTot": ""})
    assert job.memory_gib == 40


@pytest.mark.parametrize(
    ("tres", "asked", "expected"),
    [
        ("cpu=1,mem=1000M,node=1", "1000M", 1000 / 1024),
        ("cpu=1,mem=1.50T,node=1", "", 1536),
        # Before 21.08 the memory asked for ends with what it is counted by: nodes or cores.
        ("", "64Gn", 128),
        ("", "4Gc", 80),
        ("", "64G", 64),
        ("", "", None),
        ("", "nonsense", None),
    ],
)
def test_the_memory_reserved_is_that_of_all_nodes(
    tres: str, asked: str, expected: float | None
) -> None:
    [job] = read({**JOB, "AllocTRES": tres, "ReqMem": asked})
    assert job.reserved_gib == expected


def test_a_running_job_has_used_what_nobody_knows_yet() -> None:
    [job] = read({**JOB, "State": "RUNNING", "End": "Unknown", "TotalCPU": "00:00:00"})
    assert (job.end, job.cpu_share, job.memory_share) == (None, None, None)
    assert "not accounted before the job has ended" in render_jobs([job], 110)


def test_a_job_that_never_began_has_used_no_time() -> None:
    row = {**JOB, "State": "CANCELLED by 20001", "Start": "Unknown", "NodeList": "None assigned"}
    [job] = read(row)
    assert (job.state, job.elapsed_s, job.start, job.nodes) == ("CANCELLED", 0, None, None)


def test_attempts_are_told_apart_though_rows_of_jobs_alternate() -> None:
    other = {**JOB, "JobID": "1235", "JobIDRaw": "1235"}
    first = {**JOB, "State": "NODE_FAIL", "ElapsedRaw": "10"}
    found = read(first, BATCH, other, JOB, BATCH, STEP)
    assert [(each.id, each.number, len(each.steps)) for each in found] == [
        ("1234", 1, 1),
        ("1235", 1, 0),
        ("1234", 2, 2),
    ]
    assert [each.state for each in last_attempts(found)] == ["COMPLETED", "COMPLETED"]


def test_a_run_is_joined_with_the_attempt_of_its_time(tmp_path: Path) -> None:
    first = {**JOB, "Start": str(START - 5000), "End": str(START - 4000), "State": "NODE_FAIL"}
    attempts = read(first, JOB, STEP)
    joined = join_job(run_of(tmp_path), lambda _: attempts)
    assert joined is not None
    assert joined.attempt is attempts[1]
    lines = render_joined(joined, 950.0)
    assert lines[0] == (
        "job      1234 (train, attempt 2 of 2): completed, 00:16:40 of 01:00:00 reserved, "
        "50 s of it before and after the run"
    )
    assert lines[1] == (
        "Slurm    CPU efficiency 50 %, 31 of 128 GiB at most: memory efficiency 24 %"
    )


def test_a_job_of_the_same_number_on_another_cluster_is_not_taken(tmp_path: Path) -> None:
    joined = join_job(run_of(tmp_path, start=START - 90_000.0), lambda _: read(JOB))
    assert joined is not None
    assert joined.attempt is None
    assert joined.note == "what Slurm accounted of job 1234 is not here: it has no job of that time"
    assert render_joined(joined, 950.0) == []


def test_an_element_of_an_array_is_found_by_its_own_number(tmp_path: Path) -> None:
    rows = {**JOB, "JobID": "1200_7"}
    joined = join_job(run_of(tmp_path), lambda _: read(rows))
    assert joined is not None
    assert joined.attempt is not None
    assert joined.attempt.id == "1200_7"


def test_away_from_the_cluster_the_report_says_what_is_missing(tmp_path: Path) -> None:
    def refuse(_: str) -> list[Attempt]:
        raise SlurmError(
            "there is no `sacct` here", why="Slurm's commands are not on PATH", fix="x"
        )

    joined = join_job(run_of(tmp_path), refuse)
    assert joined is not None
    assert joined.note == (
        "what Slurm accounted of job 1234 is not here: Slurm's commands are not on PATH"
    )


def test_an_accounting_that_has_no_such_job_says_so(tmp_path: Path) -> None:
    joined = join_job(run_of(tmp_path), lambda _: [])
    assert joined is not None
    assert "it does not know the job" in (joined.note or "")


@pytest.mark.parametrize("environment", [{}, None, {"SLURM_JOB_ID": "1; rm"}, [1]])
def test_a_run_that_was_no_job_asks_nobody(tmp_path: Path, environment: object) -> None:
    summary = run_of(tmp_path, environment=environment)
    assert join_job(summary, lambda _: pytest.fail("asked")) is None


def test_a_submitted_run_knows_its_job_before_it_begins(tmp_path: Path) -> None:
    folder = tmp_path / "run/attempt-2"
    folder.mkdir(parents=True)
    (tmp_path / "run/job.json").write_text(json.dumps({"id": "77"}))
    assert job_of(Summary(folder, {}, "lost", 0.0, (), ())) == "77"


def test_a_run_inside_a_job_is_found_by_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, job in (("first", "1234"), ("second", "1235")):
        folder = tmp_path / ".stoker/runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"environment": {"SLURM_JOB_ID": job}}))
    found = find_run_inside("1234")
    assert found is not None
    assert found.name == "first"
    assert find_run_inside("9") is None


def test_a_step_that_failed_in_a_job_that_did_not_is_shown() -> None:
    lost = {**STEP, "State": "OUT_OF_MEMORY", "ExitCode": "0:125"}
    failed = {**STEP, "JobID": "1234.1", "State": "FAILED", "ExitCode": "7:0"}
    text = render_jobs(read(JOB, BATCH, lost, failed), 110)
    assert "step     0: killed: out of memory, its largest task at 5.0 GiB or more" in text
    assert "step     1: failed (exit code 7)" in text
    assert "batch" not in text


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("FAILED", "3:0", "failed (exit code 3)"),
        ("FAILED", "0:9", "failed (signal 9)"),
        ("TIMEOUT", "0:0", "ended by its time limit"),
        ("CANCELLED by 20001", "0:15", "cancelled (signal 15)"),
        ("NODE_FAIL", "0:0", "lost with its node"),
        ("SOMETHING_NEW", "0:0", "something new"),
    ],
)
def test_how_a_job_ended_is_told_in_words(state: str, code: str, words: str) -> None:
    text = render_jobs(read({**JOB, "State": state, "ExitCode": code}), 110)
    assert text.splitlines()[0] == f"job      1234 (train): {words}"


def test_the_elements_of_an_array_are_a_table() -> None:
    rows = [{**JOB, "JobID": f"1234_{each}"} for each in range(30)]
    text = render_jobs(last_attempts(read(*rows)), 110)
    assert "1234_19" in text
    assert text.endswith("and 10 more, with --json")


def test_json_has_the_job_with_its_steps() -> None:
    value = jobs_json(read(JOB, BATCH, STEP))
    json.dumps(value)
    assert value["jobs"][0]["cpu_share"] == 0.5
    assert value["jobs"][0]["steps"][1]["name"] == "0"


WORDS = st.text(alphabet="0123456789.:-+_KMGTP,=cpumen gres/ UnknowABn", max_size=20)


@given(st.lists(st.lists(WORDS, min_size=len(FIELDS), max_size=len(FIELDS)), max_size=6))
def test_no_answer_breaks_the_reader_or_the_report(rows: list[list[str]]) -> None:
    text = "".join(SEPARATOR.join(row) + "\n" for row in rows)
    attempts = read_attempts("1", lambda *_, **__: text)
    json.dumps(jobs_json(attempts), allow_nan=False)
    for attempt in attempts:
        render_jobs([attempt], 80)


@given(WORDS)
def test_no_text_breaks_the_reader_of_times(text: str) -> None:
    seconds = read_cpu_time(text)
    assert seconds is None or seconds >= 0
