"""Folders that are partial, damaged or of another version: every verb says what it can, in words."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import PLAIN, Command
from effort import examples
from stoker.advise.comparison import compare
from stoker.advise.verdict import make_verdict
from stoker.errors import FileError
from stoker.report.comparison import comparison_json, render_comparison
from stoker.report.gpu_csv import render_gpu_csv
from stoker.report.live import Follower, render_top
from stoker.report.run import render_run
from stoker.report.run_json import run_json
from stoker.watch.folder import FORMAT, RunFolder
from stoker.watch.series import Row, SeriesWriter, Stat
from stoker.watch.summary import Summary, read_summary

START = 1_794_700_000.0
NODES, RANKS, SECONDS = 2, 4, 40


def stats(count: int, **means: float) -> dict[str, Stat]:
    return {
        name.replace("__", "."): Stat(count, mean, mean / 20, mean * 1.2)
        for name, mean in means.items()
    }


def write_rows(writer: SeriesWriter, made: Callable[[int], dict[str, Stat]]) -> None:
    for second in range(SECONDS):
        writer.append(Row(second, second + 1, made(second)))
    writer.close()


def make_run(path: Path) -> RunFolder:
    """A sound run of two nodes with two ranks and two GPUs each."""
    folder = RunFolder(path)
    folder.make()
    told = {"id": "run", "command": ["python", "train.py"], "cwd": str(path), "host": "n0"}
    ended = {"start": START, "end": START + SECONDS, "exit": 0, "is_whole": True, "notes": []}
    folder.write(folder.run_json, {**told, **ended})
    readings = {f"gpu__{gpu}__{name}": 50.0 for gpu in (0, 1) for name in ("duty_pct", "mine_gib")}
    for node in range(NODES):
        host = f"n{node}"
        gpus = [{"index": each, "name": "H200", "memory_gib": 139.8} for each in (0, 1)]
        facts = {"host": host, "cores_allowed": 16, "memory_machine_gib": 503.2, "gpus": gpus}
        folder.write(folder.machine(host), facts)
        write_rows(
            SeriesWriter(folder.samples(host), {"kind": "samples", "host": host}),
            lambda second: stats(1, cpu__cores=3.0, mem__rss_gib=5.0, **readings),
        )
    for rank in range(RANKS):
        host = f"n{rank // 2}"
        label = f"{rank}-{host}"
        write_rows(
            SeriesWriter(folder.steps(label), {"kind": "steps", "host": host, "label": label}),
            lambda second: stats(10, steady__step=0.1, steady__data=0.04, steady__forward=0.06),
        )
        lines = [["/x/train.py", "load", 4, 9.0, 9.5, "data"]]
        known = {
            "label": label,
            "rank": rank,
            "world": RANKS,
            "host": host,
            "pid": 7,
            "lines": lines,
        }
        folder.write(folder.facts(label), {**known, "steps": 10 * SECONDS, "epochs": 1})
    return folder


def everything(folder: RunFolder) -> Summary:
    """Ask for all that people can see of a folder."""
    summary = read_summary(folder, now=START + 100)
    assert make_verdict(summary)
    assert render_run(summary, edge=100)
    json.dumps(run_json(summary), allow_nan=False)
    assert render_gpu_csv(summary)
    comparison = compare(summary, summary)
    assert render_comparison(comparison, 100)
    json.dumps(comparison_json(comparison, 0.05), allow_nan=False)
    assert render_top(Follower(folder).read(START + 100), 100, 40)
    return summary


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run(tmp_path / "run")


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


# -- partial --------------------------------------------------------------------------------


def test_a_sound_folder_has_no_damage(folder: RunFolder) -> None:
    summary = everything(folder)
    assert (summary.damaged, len(summary.ranks), len(summary.machines)) == (0, 4, 2)
    assert (summary.world, summary.wall_s) == (RANKS, SECONDS)


def test_without_run_json_the_record_tells_how_long(folder: RunFolder) -> None:
    folder.run_json.unlink()
    assert everything(folder).wall_s == SECONDS


def test_a_missing_node_is_seen_by_the_ranks_that_should_be_there(folder: RunFolder) -> None:
    for path in [*folder.path.rglob("*n1*")]:
        path.unlink()
    summary = everything(folder)
    assert (len(summary.ranks), summary.world) == (2, RANKS)


def test_a_rank_without_facts_is_known_by_its_steps(folder: RunFolder) -> None:
    folder.facts("3-n1").unlink()
    rank = everything(folder).ranks[-1]
    assert (rank.rank, rank.host, rank.steps) == (3, "n1", 10 * SECONDS)
    assert rank.steady is not None


def test_without_a_sampler_the_steps_are_still_there(folder: RunFolder) -> None:
    shutil.rmtree(folder.path / "samples")
    summary = everything(folder)
    assert summary.machines == ()
    assert summary.ranks[0].steady is not None


def test_without_steps_the_machines_are_still_there(folder: RunFolder) -> None:
    shutil.rmtree(folder.path / "steps")
    summary = everything(folder)
    assert summary.ranks == ()
    assert summary.machines[0].stats["cpu.cores"].mean == 3.0


@pytest.mark.parametrize("kept", [0, 1, 50, 300, 5000])
def test_a_job_that_was_killed_is_told_as_far_as_it_was_written(
    kept: int, folder: RunFolder
) -> None:
    for path in folder.path.rglob("*.json*"):
        path.write_bytes(path.read_bytes()[:kept])
    everything(folder)


# -- damage ---------------------------------------------------------------------------------


def test_damaged_lines_are_counted_also_before_a_total(folder: RunFolder) -> None:
    def spoil(lines: list[bytes]) -> list[bytes]:
        return [*lines[:4], b"[1,2,", b"\xff\x00", *lines[4:-2], b"}{", *lines[-2:]]

    edit(folder.steps("1-n0"), spoil)
    edit(folder.samples("n1"), spoil)
    summary = everything(folder)
    assert summary.damaged == 6
    assert summary.ranks[1].steady is not None
    assert summary.ranks[1].steady.steps == 10 * SECONDS
    assert "6 damaged lines were left out" in render_run(summary, edge=200)


def test_a_file_that_is_no_json_is_damage_too(folder: RunFolder) -> None:
    folder.run_json.write_text("{")
    folder.facts("0-n0").write_text("[]")
    folder.machine("n0").write_text("\0")
    assert everything(folder).damaged == 3


def test_what_a_killed_writer_leaves_torn_is_no_damage(folder: RunFolder) -> None:
    for path in folder.path.rglob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:-30])
    assert everything(folder).damaged == 0


def test_ten_million_steps_and_none(folder: RunFolder) -> None:
    for label, count in (("0-n0", 10_000_000), ("1-n0", 0)):
        folder.steps(label).unlink()
        facts = folder.read(folder.facts(label))
        folder.write(folder.facts(label), {**facts, "steps": count})
    writer = SeriesWriter(folder.steps("0-n0"), {})
    write_rows(writer, lambda _: stats(250_000, steady__step=4e-6, steady__forward=4e-6))
    summary = everything(folder)
    assert [rank.steps for rank in summary.ranks[:2]] == [10_000_000, 0]
    assert "10,000,000 steps" in render_run(summary, edge=100)


@pytest.mark.parametrize("end", [START - 50, START + 1e9, -1e9])
def test_a_clock_that_was_set_while_it_ran(end: float, folder: RunFolder) -> None:
    folder.write(folder.run_json, {**folder.read(folder.run_json), "end": end})
    assert everything(folder).wall_s >= 0


def test_rows_from_before_the_run_and_from_far_ahead(folder: RunFolder) -> None:
    writer = SeriesWriter(folder.steps("0-n0"), {})
    for second in (-5.0, 3.0, -1e6, 1e9, 2.0):
        writer.append(Row(second, second + 1, stats(1, steady__step=0.1)))
    writer.close()
    folder.run_json.unlink()
    assert everything(folder).wall_s >= 0


def test_a_reading_that_is_no_number_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = RunFolder(path)
    folder.make()
    writer = SeriesWriter(folder.samples("n"), {"host": "n"})
    for value in (1.0, float("nan"), float("inf"), 3.0):
        writer.append(Row(0, 1, {"cpu.cores": Stat(1, value, 0.0, value)}))
    writer.close()
    (machine,) = everything(folder).machines
    assert machine.stats["cpu.cores"] == Stat.of([1.0, 3.0])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
KEYS = ("id", "command", "cwd", "host", "supervisor", "environment", "start", "end", "exit", "notes",
        "is_whole", "recorder_cpu_s", "python")  # fmt: skip


@settings(max_examples=examples(50))
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, values)))
def test_a_run_json_of_any_types_stops_nobody(run: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = make_run(Path(name) / "run")
        folder.run_json.write_text(json.dumps({**folder.read(folder.run_json), **run}))
        everything(folder)


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_no_damage_to_any_bytes_stops_anybody(seed: int, number: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = make_run(Path(name) / "run")
        paths = sorted(folder.path.rglob("*.json*"))
        for _ in range(number):
            path = draw.choice(paths)
            data = bytearray(path.read_bytes())
            if data:
                at = draw.randrange(len(data))
                data[at : at + draw.choice((0, 1, 1, 9))] = draw.randbytes(
                    draw.choice((0, 1, 1, 5))
                )
            path.write_bytes(data)
        with suppress(FileError):  # the format number grew by a digit
            everything(folder)


# -- the folder itself ------------------------------------------------------------------------


def test_a_newer_format_is_refused_in_words(folder: RunFolder) -> None:
    told = folder.read(folder.run_json)
    folder.run_json.write_text(json.dumps({**told, "format": FORMAT + 1}))
    with pytest.raises(FileError, match="is a run of a newer Stoker") as found:
        read_summary(folder)
    assert f"reads up to {FORMAT}" in found.value.why
    assert "--upgrade" in found.value.fix


@pytest.mark.parametrize("verb", ["report", "compare", "top"])
@pytest.mark.parametrize("kind", ["missing", "empty", "newer", "file"])
def test_every_verb_ends_in_words_and_not_in_a_traceback(
    verb: str, kind: str, folder: RunFolder, command: Command
) -> None:
    here = folder.path.parent
    if kind == "empty":
        (here / kind).mkdir()
    elif kind == "newer":
        shutil.copytree(folder.path, here / kind)
        (here / kind / "run.json").write_text('{"format": 99}')
    elif kind == "file":
        (here / kind).write_text("")
    words = [verb, *(["run"] if verb == "compare" else []), kind]
    done = command.run(*words, cwd=here, env=PLAIN)
    if verb == "top" and kind == "empty":  # nothing yet may become something
        assert done.returncode == 0
    else:
        assert done.returncode in (1, 2)
        assert re.search(r"error: .*\n  why: .*\n  fix: ", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
@pytest.mark.parametrize("locked", ["run", "run/run.json"])
def test_a_folder_that_may_not_be_read_is_told(locked: str, folder: RunFolder) -> None:
    here = folder.path.parent
    for path in (here, *here.parents):
        if not path.stat().st_mode & 0o001 and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(0o755)
    (here / locked).chmod(0o000)
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom stoker.errors import StokerError\n"
        "from stoker.watch.folder import RunFolder\nfrom stoker.watch.summary import read_summary\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    read_summary(RunFolder(Path('run').absolute()))\n"
        "except StokerError as error:\n    print(error)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False)
    assert "cannot be read\n  why: Permission denied" in done.stdout, done.stderr
