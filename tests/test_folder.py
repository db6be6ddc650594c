"""Run folders: each run has its own, whatever it is called, and can be found again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.engine.task import Task
from stoker.errors import FileError, UsageError
from stoker.watch.folder import RUNS, RunFolder, find_run, free_name, join_run, new_run
from stoker.watch.record import begin_run

NOW = 1_794_700_000.0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, in a time zone that everybody has."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(folder: RunFolder, start: float) -> RunFolder:
    folder.write(folder.run_json, {"start": start})
    return folder


# -- new runs ----------------------------------------------------------------------------


def test_a_run_is_named_after_its_time_and_script(here: Path) -> None:
    folder = new_run("code/train.py", None, NOW)
    assert folder.path == here / RUNS / folder.name
    assert folder.name.endswith("-train")
    assert len(folder.name) == len("20261115-065520-train")
    assert {each.name for each in folder.path.iterdir()} == {"samples", "steps"}


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"), ("model.v2.py", "model.v2"), ("package.train", "package.train"),
        ("train.sh", "train.sh"), ("/usr/bin/torchrun", "torchrun"), ("two words.py", "two_words"),
        ("it's; $(odd) `here`.py", "it_s____odd___here_"), ("a\nb.py", "a_b"), ("ünï.py", "_n_"),
        ("", "run"), ("..", "run"), (".py", "run"), ("-c", "c"), ("x" * 200, "x" * 80),
    ],
)  # fmt: skip
def test_any_name_of_a_script_makes_a_plain_folder(script: str, name: str) -> None:
    folder = new_run(script, None, NOW)
    assert folder.name[len("20261115-065520-") :] == name
    assert folder.path.is_dir()


def test_runs_of_the_same_second_are_apart() -> None:
    folders = [new_run("train.py", None, NOW) for _ in range(3)]
    assert len({each.path for each in folders}) == 3
    assert [each.name[-7:] for each in folders] == ["0-train", "train-2", "train-3"]


def test_runs_are_no_part_of_the_users_repository(here: Path) -> None:
    made: list[Callable[[], object]] = [
        lambda: new_run("train.py", None),
        lambda: join_run(Task(0, 2, "slurm-7.0"), "train.py", None),
    ]
    for make in made:
        make()
        ignored = here / ".stoker/.gitignore"
        assert ignored.read_text() == "*\n"
        ignored.unlink()


def test_a_folder_may_be_asked_for(odd_path: Path) -> None:
    assert new_run("train.py", odd_path / "mine", NOW).path == odd_path / "mine"
    assert (odd_path / "mine/samples").is_dir()
    # One that is there, and holds something else.
    assert new_run("train.py", odd_path, NOW).path == odd_path
    assert not RUNS.exists()


def test_a_run_is_never_overwritten(odd_path: Path) -> None:
    recorded(new_run("train.py", odd_path, NOW), NOW)
    for proposed in (f"{odd_path}-2", f"{odd_path}-3"):
        with pytest.raises(FileError, match="already holds a run") as caught:
            new_run("train.py", odd_path, NOW)
        # What it proposes can be pasted.
        words = ["bash", "-c", f"printf '%s\\0' {caught.value.fix.partition(',')[0]}"]
        done = subprocess.run(words, check=True, capture_output=True)
        assert done.stdout.decode() == f"-o\0{proposed}\0"
        recorded(new_run("train.py", Path(proposed), NOW), NOW)


def test_a_place_where_nothing_can_be_made_is_an_error_of_the_system(here: Path) -> None:
    (here / "file").touch()
    for wanted in (here / "file", here / "file/below", Path("/proc/nothing")):
        with pytest.raises(OSError, match=r".*"):
            new_run("train.py", wanted, NOW)


def test_all_tasks_of_a_launch_share_a_folder_and_one_reads_each_machine(here: Path) -> None:
    tasks = [Task(rank, 3, "slurm-7.0") for rank in range(3)]
    folders = [join_run(task, "train.py", None) for task in tasks]
    assert {each.path for each in folders} == {here / RUNS / "slurm-7.0-train"}
    assert [each.claim("node1") for each in folders] == [True, False, False]
    assert folders[0].claim("node2")
    assert {join_run(task, "train.py", Path("mine")).path for task in tasks} == {here / "mine"}


def begun(wanted: Path | None, tasks: int = 2, launch: str = "slurm-7.0") -> set[Path]:
    """Run a program in each task of a launch; return where they record, the last task first."""
    folders = []
    for task in (Task(rank, tasks, launch) for rank in reversed(range(tasks))):
        folders.append(join_run(task, "train.py", wanted))
        if task.rank == 0:
            begin_run(folders[-1], ["train.py"], NOW, launch=task.launch_of_all)
    return {each.path for each in folders}


def test_what_the_tasks_of_a_launch_run_next_is_another_run(here: Path) -> None:
    """As in a script that tries several settings, and with an MPI that does not number launches."""
    expected = [{here / RUNS / f"slurm-7.0-train{number}"} for number in ("", "-2", "-3", "-4")]
    assert [begun(None), begun(None), begun(None, tasks=4), begun(None)] == expected


def test_a_folder_that_was_asked_for_holds_one_launch(here: Path) -> None:
    wanted = here / "mine"
    assert begun(wanted) == {wanted}
    recorded(new_run("train.py", here / "alone", NOW), NOW)
    for folder, launch, rank, world in (
        (wanted, "slurm-7.0", 0, 2), (wanted, "slurm-7.0", 1, 2), (wanted, "slurm-7.0", 3, 4),
        (wanted, "slurm-7.1", 2, 3), (here / "alone", "slurm-7.0", 0, 2),
    ):  # fmt: skip
        with pytest.raises(FileError, match="already holds a run"):
            join_run(Task(rank, world, launch), "train.py", folder)


def test_a_launch_that_died_before_its_first_task_is_in_nobodys_way(here: Path) -> None:
    """Its other tasks have been there, and left what they claimed."""
    for wanted in (None, here / "mine"):
        died = [join_run(Task(rank, 3, "slurm-7.0"), "train.py", wanted) for rank in (1, 2)]
        tasks = [Task(rank, 3, "slurm-8.0") for rank in (2, 1, 0)]
        assert len({join_run(task, "train.py", wanted).path for task in tasks}) == 1
        assert len({each.path for each in died}) == 1


def test_a_name_that_anything_has_is_not_free(here: Path) -> None:
    assert free_name("changed") == "changed"
    (here / "changed").touch()
    (here / "changed-2").symlink_to("nowhere")
    (here / "changed-3").mkdir()
    assert free_name("changed") == "changed-4"


# -- finding them --------------------------------------------------------------------------


def test_the_newest_run_is_the_one_that_began_last() -> None:
    recorded(new_run("train.py", None, NOW), NOW)
    recorded(join_run(Task(0, 2, "slurm-1000.0"), "train.py", None), NOW + 2)
    newest = recorded(new_run("train.py", None, NOW + 3), NOW + 3)
    recorded(join_run(Task(0, 2, "slurm-999.0"), "train.py", None), NOW + 1)
    assert find_run(None).path == newest.path


def test_of_the_same_second_the_last_one_is_the_newest() -> None:
    for _ in range(11):
        newest = recorded(new_run("train.py", None, NOW), NOW)
    assert newest.name.endswith("-11")
    assert find_run(None).path == newest.path


def test_a_folder_in_which_nothing_was_recorded_is_not_the_newest() -> None:
    wanted = recorded(new_run("train.py", None, NOW), NOW)
    new_run("train.py", None, NOW + 9)
    (RUNS / "stray").touch()
    assert find_run(None).path == wanted.path


def test_a_run_whose_record_is_damaged_is_found_all_the_same() -> None:
    folder = new_run("train.py", None, NOW)
    for text in ("", "{", "[]", '{"start": "never"}', '{"start": NaN}', "[" * 99_999):
        folder.run_json.write_text(text)
        assert find_run(None).path == folder.path


def test_a_run_is_found_by_its_id_or_its_folder(here: Path, odd_path: Path) -> None:
    folder = recorded(new_run("train.py", None, NOW), NOW)
    elsewhere = recorded(new_run("train.py", odd_path / "run", NOW), NOW)
    assert find_run(folder.name).path == folder.path
    assert find_run(str(RUNS / folder.name)).path == folder.path
    assert find_run(str(elsewhere.path)).path == elsewhere.path


def test_of_a_job_that_was_queued_again_the_latest_attempt_is_the_newest_run() -> None:
    job = recorded(new_run("train.py", None, NOW), NOW)
    between = recorded(new_run("other.py", None, NOW + 1), NOW + 1)
    assert find_run(None).path == between.path
    for attempt in (2, 10, 9):
        again = RunFolder(job.path / f"attempt-{attempt}")
        again.make()
        recorded(again, NOW + attempt)
    for name in (None, job.name, str(job.path)):
        assert find_run(name).path == job.path / "attempt-10"


def test_a_job_whose_first_attempt_recorded_nothing_is_found() -> None:
    job = new_run("train.py", None, NOW)
    again = RunFolder(job.path / "attempt-1")
    again.make()
    recorded(again, NOW)
    assert find_run(None).path == find_run(job.name).path == again.path


def test_without_a_run_it_is_said_how_to_make_one() -> None:
    with pytest.raises(UsageError, match="no run here") as caught:
        find_run(None)
    assert "stoker run" in caught.value.fix


def test_a_name_that_is_nearly_right_is_put_right() -> None:
    folder = recorded(new_run("train.py", None, NOW), NOW)
    with pytest.raises(UsageError) as caught:
        find_run(folder.name[:-1])
    assert caught.value.fix == f"did you mean {folder.name}?"


@pytest.mark.parametrize("text", ["", "nothing", "x" * 5000, "a\0b", "\udc80"])
def test_a_name_of_nothing_is_an_error_of_the_user(text: str) -> None:
    with pytest.raises(UsageError, match="no run"):
        find_run(text)


# -- what is in them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["node1", "node1.site.fi", "../../etc", "a/b", "", "ünï", "x" * 300]
)
def test_files_of_any_host_or_rank_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    for path in (
        folder.samples(name),
        folder.machine(name),
        folder.steps(name),
        folder.facts(name),
    ):
        path.touch()
        assert path.parent.parent == folder.path
    assert len(folder.all_samples()) == len(folder.all_facts()) == 1


def test_ranks_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make()
    for rank in (10, 9, 0, 2):
        folder.write(folder.facts(f"{rank}-node"), {})
    assert [each.stem for each in folder.all_facts()] == ["0-node", "2-node", "9-node", "10-node"]


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    folder.write(folder.run_json, {"exit": 0})

    def refuse(self: Path, text: str) -> int:
        self.write_bytes(text[:5].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="No space left"):
        folder.write(folder.run_json, {"exit": 1})
    assert folder.read(folder.run_json) == {"format": 1, "exit": 0}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b"null", b"[" * 99_999])
def test_what_cannot_be_read_is_empty(content: bytes, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.run_json.write_bytes(content)
    assert folder.read(folder.run_json) == {}
    assert folder.read(tmp_path / "missing") == folder.read(tmp_path) == {}
