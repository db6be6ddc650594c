"""`stoker doctor`: what a folder of many files is told, whatever is in it, and what is missing here."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Stoker
from stoker.advise.equipment import LIBRARIES, Item, ask_libraries, look
from stoker.data.packing import journal
from stoker.data.pictures.decode import COMPILED
from stoker.data.survey import race as race_module
from stoker.data.survey import survey as survey_module
from stoker.data.survey.quota import Quota, parse_quota, read_quota
from stoker.data.survey.race import Race, race, try_race
from stoker.data.survey.survey import Survey, survey
from stoker.errors import FileError, StokerError
from stoker.report.doctor import (
    next_command,
    render_items,
    render_size,
    render_survey,
    survey_json,
)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of ten small files each."""
    for name in ("cats", "dogs", "owls"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(10):
            (folder / f"{number:04d}.jpg").write_bytes(bytes(1000))
    return tmp_path / "images"


def made(**facts: object) -> Survey:
    """A survey of a million files of 8 KiB."""
    values = {
        "path": Path("/scratch/images"), "file_system": "lustre", "files": 1_200_000,
        "expected_files": 1_200_000, "folders": 1001, "is_whole": True, "sizes": (8192,) * 2000,
        "names": ("0001.jpg",), "hidden": 0, "broken_links": 0, "unreadable": (), "classes": 1000,
        "is_packed": False, "is_unfinished": False, "free_bytes": 1 << 45, "quota": Quota(400_000, 500_000, "lfs quota"),
    }  # fmt: skip
    return Survey(**{**values, **facts})  # type: ignore[arg-type]


RACE = Race(500, 4_096_000, True, (610.0, 720.0), (10_020.0, 19_530.0))


# -- counting ------------------------------------------------------------------------


def test_files_folders_sizes_and_classes_are_counted(images: Path) -> None:
    found = survey(images)
    assert (found.files, found.folders, found.classes) == (30, 4, 3)
    assert found.is_exact
    assert (found.bytes, found.mean_size) == (30_000, 1000)
    assert sorted(found.names) == sorted(str(each) for each in images.glob("*/*"))
    assert not found.is_worth


def test_what_packing_would_make_is_what_it_makes(images: Path, tmp_path: Path) -> None:
    from stoker.data.packing.order import Settings
    from stoker.data.packing.pack import pack

    expected = survey(images).packed_bytes
    packed = pack(images, tmp_path / "out", Settings())
    # Its end, in full records of 10,240 bytes.
    assert 0 <= packed.bytes - expected <= 2 * 10_240


def test_what_is_left_out_or_in_the_way_is_counted(images: Path) -> None:
    (images / ".hidden").write_text("")
    (images / "cats/.git").mkdir()
    (images / "cats/gone.jpg").symlink_to("nowhere")
    (images / "cats/self.jpg").symlink_to("self.jpg")
    os.mkfifo(images / "cats/pipe")
    found = survey(images)
    assert (found.files, found.hidden, found.broken_links) == (30, 3, 2)
    text = render_survey(found, None)
    assert "2 links to nothing: packing stops at the first" in text
    assert "3 entries left out" in text


def test_links_in_a_circle_end(images: Path) -> None:
    (images / "cats/up").symlink_to(images)
    (images / "dogs/cats").symlink_to(images / "cats")
    assert survey(images).files == 30


def test_a_link_to_the_folder_itself_is_followed(images: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(images)
    assert survey(tmp_path / "link").files == 30


def test_names_that_are_not_utf_8_are_counted_read_and_told(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff\xfe"))
    folder.mkdir()
    for number in range(3):
        Path(os.fsdecode(os.fsencode(folder) + b"/\xe9%d.jpg" % number)).write_bytes(b"1234")
    found = survey(folder)
    raced = race(folder, found.names, 1.0)
    assert (raced.files, raced.bytes) == (3, 12)
    for text in (render_survey(found, raced), json.dumps(survey_json(found, raced))):
        text.encode("ascii" if text.startswith("{") else "utf-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_without_permission_are_named(images: Path) -> None:
    (images / "dogs").chmod(0)
    try:
        found = survey(images)
    finally:
        (images / "dogs").chmod(0o755)
    assert (found.files, found.unreadable) == (20, (str(images / "dogs"),))


def test_folders_that_cannot_be_read_are_named(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: str | Path) -> object:
        if str(path).endswith("dogs"):
            raise OSError(116, "Stale file handle")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = survey(images)
    assert (found.files, found.unreadable) == (20, (str(images / "dogs"),))
    assert "1 folder cannot be read" in render_survey(found, None)


@pytest.mark.parametrize(
    ("make", "what", "why"),
    [
        (lambda path: None, "does not exist", "no such folder"),
        (lambda path: path.write_text("x"), "is no folder", "a folder with files"),
        (lambda path: path.mkdir(), "has no files", "it is empty"),
        (lambda path: path.symlink_to("gone"), "is no folder", "a folder with files"),
        (lambda path: (path / "sub/.x").mkdir(parents=True), "has no files", "1 hidden entries"),
    ],
)
def test_what_is_no_folder_of_files_is_refused(
    make: Callable[[Path], object], what: str, why: str, tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(FileError) as error:
        survey(tmp_path / "x")
    assert what in error.value.what
    assert why in error.value.why


def test_the_walk_ends_when_the_time_is_over_and_tells_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(20):
        (tmp_path / f"{folder:02d}").mkdir()
        for number in range(50):
            (tmp_path / f"{folder:02d}/{number}").write_text("x")
    seconds = count()
    monkeypatch.setattr("stoker.data.survey.survey.time.monotonic", lambda: next(seconds) / 10)
    found = survey(tmp_path, limit_s=1.0)
    assert not found.is_whole
    assert 0 < found.files < 1000
    # The folder itself has no files: a little less than 50 in each of 21.
    assert 800 <= found.expected_files <= 1000
    assert "not all were counted" in render_survey(found, None)


def test_of_very_many_files_some_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "ASKED", 40)
    for number in range(200):
        (tmp_path / f"{number}").write_bytes(bytes(100 if number % 2 else 300))
    found = survey(tmp_path)
    assert (found.files, len(found.sizes), len(set(found.names))) == (200, 40, 40)
    assert not found.is_exact
    assert 100 < found.mean_size < 300


# -- what follows from it ------------------------------------------------------------


def test_many_small_files_are_to_be_packed() -> None:
    assert made().is_worth
    assert next_command(made()) == "stoker pack /scratch/images /scratch/images-packed"
    assert not made(is_packed=True).is_worth
    assert next_command(made(is_packed=True)) == "stoker verify /scratch/images"
    few = made(files=20, expected_files=20)
    assert next_command(few).startswith("stoker submit --data /scratch/images")


def test_archives_of_others_get_an_index(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar", "c.tfrecord-00000-of-00001"):
        (tmp_path / name).write_bytes(bytes(10_240))
    found = survey(tmp_path)
    assert next_command(found) == f"stoker index {tmp_path}"
    assert "these are archives" in render_survey(found, None)


def test_a_half_packed_data_set_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / journal.NAME).mkdir()
    (tmp_path / "shard-00000.tar").write_bytes(bytes(10_240))
    found = survey(tmp_path)
    assert not found.is_plain
    assert next_command(found).startswith(f"stoker pack SRC {tmp_path}, as it was begun")
    assert "packing was interrupted" in render_survey(found, None)


def test_more_folders_than_are_remembered_end_the_walk(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "MAX_FOLDERS", 3)
    found = survey(images)
    # Two of the three classes; the third one is counted.
    assert (found.is_whole, found.files, found.folders) == (False, 20, 3)
    assert found.expected_files == round(20 * 4 / 3)


def test_time_that_is_over_before_a_file_was_met_is_not_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in range(100):
        (tmp_path / f"{name}").mkdir()
    seconds = count()
    monkeypatch.setattr("stoker.data.survey.survey.time.monotonic", lambda: next(seconds))
    with pytest.raises(FileError) as error:
        survey(tmp_path, limit_s=3.0)
    assert "the time was over after" in error.value.why
    assert "--limit" in error.value.fix


def test_a_name_that_a_shell_would_take_apart_is_quoted() -> None:
    found = made(path=Path("/data/it's mine"))
    assert (
        next_command(found) == """stoker pack '/data/it'"'"'s mine' '/data/it'"'"'s mine-packed'"""
    )


@pytest.mark.parametrize("path", [".", "/"])
def test_the_packed_folder_has_a_name_of_its_own(path: str) -> None:
    out = next_command(made(path=Path(path))).split()[-1]
    assert out.endswith("-packed")
    assert Path(out).name != "-packed"


@given(files=st.integers(1, 10**9), size=st.integers(0, 1 << 40), classes=st.sampled_from([0, 10]))
def test_archives_are_few_and_hold_everything(files: int, size: int, classes: int) -> None:
    found = made(files=files, expected_files=files, sizes=(size,), classes=classes)
    assert found.packed_bytes >= found.bytes
    assert found.shards * found.shard_bytes >= found.packed_bytes
    assert 1 <= found.shards <= survey_module.MAX_SHARDS
    assert sum(share for _, share in found.histogram()) == pytest.approx(1)
    assert render_survey(found, RACE)


def test_the_text_says_what_was_seen_and_measured() -> None:
    text = render_survey(made(), RACE)
    assert "1,200,000 in 1,001 folders, about 9.2 GiB" in text
    assert "8 KiB on average, of 2,000 drawn by chance" in text
    assert "400,000 files of 500,000 (80 %), says lfs quota" in text
    assert "packed 16 to 27 times as fast (cold): 610 to 720 files/s as they are" in text
    assert "below 16 KiB    100 %" in text
    warm = render_survey(made(), Race(5, 5, False, (1.0,), (2.0,)))
    assert "(warm, from memory)" in warm
    assert "no room for a packed copy" in render_survey(made(free_bytes=10), None)
    assert next_command(made(free_bytes=10)) == "stoker pack /scratch/images OUT"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1, "1 byte"), (1536, "1.5 KiB"), (5 << 40, "5 TiB")]
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert render_size(size) == text


# -- quotas --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("     /scratch 812 0 0 - 40 0 500 -\n", {"/scratch": (40, 500)}),
        ("/scratch/project_2001234\n      812* 8 9 6d 40* 30 0 -\n",
         {"/scratch/project_2001234": (40, 30)}),
        ("/scratch [812] 0 0 - [40] 0 0 -\n", {}),
        ("Disk quotas for user me (uid 1000): none\n", {}),
        ("Disk quotas for user me (uid 1000):\n"
         "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace\n"
         "      /dev/sda1    1234  100000  200000              55    1000    2000\n"
         "   nas:/home/me     900       0       0               7       0     100\n",
         {"/dev/sda1": (55, 2000), "nas:/home/me": (7, 100)}),
    ],
)  # fmt: skip
def test_quotas_are_read_as_lfs_and_quota_print_them(
    text: str, limits: dict[str, tuple[int, int]]
) -> None:
    assert parse_quota(text) == limits


@given(st.text())
def test_no_answer_breaks_the_reading_of_quotas(text: str) -> None:
    parse_quota(text)
    parse_quota("/x " + text)


def test_the_tightest_quota_of_lustre_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lfs = tmp_path / "bin/lfs"
    lfs.parent.mkdir()
    lfs.write_text(
        "#!/bin/bash\n"
        'case "$*" in\n'
        '    project*) echo "77 P $3" ;;\n'
        '    "quota -q -p 77 "*) echo "/s 1 0 0 - 900 0 1000 -" ;;\n'
        '    *) echo "/s 1 0 0 - 10 0 100000 -" ;;\n'
        "esac\n"
    )
    lfs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{lfs.parent}:{os.environ['PATH']}")
    assert read_quota(tmp_path, "lustre") == Quota(900, 1000, "lfs quota -q -p")


def test_without_quotas_the_disk_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_quota(tmp_path, "lustre")
    assert found is None or found.source == "df -i"


# -- reading -------------------------------------------------------------------------


def test_files_and_their_packed_bytes_are_read_in_turns(images: Path) -> None:
    before = sorted(images.parent.iterdir())
    raced = race(images, survey(images).names, 1.0)
    assert (raced.files, raced.bytes) == (30, 30_000)
    assert len(raced.plain) == len(raced.packed) >= 2
    assert min(*raced.plain, *raced.packed) > 0
    assert sorted(images.parent.iterdir()) == before


def test_parts_of_one_sample_and_labels_are_read(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(b"image")
        (tmp_path / f"{number}.cls").write_bytes(b"3")
        (tmp_path / f"{number}.a.json").write_bytes(b"{}")
    raced = race(tmp_path, survey(tmp_path).names, 1.0)
    assert (raced.files, raced.bytes) == (24, 8 * (5 + 1 + 2))


def test_files_that_cannot_be_read_are_told_and_the_others_measured(images: Path) -> None:
    names = [str(images / "gone.jpg"), *survey(images).names]
    raced = race(images, names, 1.0)
    assert raced.files == 30
    assert raced.unreadable == (f"`{names[0]}`: No such file or directory",)


def test_nothing_to_read_is_an_answer(images: Path) -> None:
    found = try_race(images, [str(images / "a\nb"), str(images / "gone")], 1.0)
    assert isinstance(found, FileError)
    assert "No such file" in found.why
    assert "not measured" in render_survey(made(), found)


def test_a_disk_without_room_is_an_answer(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(race_module, "pack", full)
    found = try_race(images, survey(images).names, 1.0)
    assert isinstance(found, StokerError)
    assert found.why == "No space left on device"
    assert not list(images.parent.glob(".stoker-doctor-*"))


def test_only_so_many_bytes_are_read(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_module, "BYTES", 5000)
    (images / "huge.jpg").write_bytes(bytes(100_000))
    raced = race(images, [str(images / "huge.jpg"), *survey(images).names], 1.0)
    assert (raced.files, raced.bytes) == (5, 5000)


# -- the machine ---------------------------------------------------------------------


def items(**environ: str) -> dict[str, Item]:
    return {each.name: each for each in look(environ, ask=dict)}


def test_the_machine_is_told_thing_by_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = items()
    assert found["Python"].is_there
    assert not found["Slurm"].is_there
    assert "cluster" not in found
    assert all(each.fix for each in found.values() if not each.is_there)


def test_the_local_disk_is_that_of_the_site(tmp_path: Path) -> None:
    assert f"$LOCAL_SCRATCH = {tmp_path}" in items(LOCAL_SCRATCH=str(tmp_path))["local disk"].what
    missing = items(TMPDIR=str(tmp_path / "gone"))["local disk"]
    assert not missing.is_there
    assert "No such file" in missing.what


def test_a_library_is_imported_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("__version__ = '9.9'\nprint('hello')\n")
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open')\n")
    (tmp_path / "h5py.py").write_text("import no_such_module\n")
    (tmp_path / "lmdb.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = ask_libraries(sys.executable)
    assert told["numpy"] == {"version": "9.9"}
    assert told["torch"] == {"error": "OSError: libcudart.so: cannot open"}
    assert told["h5py"] == {"error": "ModuleNotFoundError: No module named 'no_such_module'"}
    assert "lmdb" not in told
    found = {each.name: each for each in look({}, ask=lambda: told)}
    assert found["numpy"].is_there
    assert found["torch"].fix.startswith("pip install torch --force-reinstall")
    assert found["lmdb"].what == "importing it ends the process, or never ends"


def test_torch_tells_what_it_sees() -> None:
    told = {"torch": MappingProxyType({"version": "2.9", "cuda": "12.8", "gpus": 4})}
    torch = {each.name: each for each in look({}, ask=lambda: told)}["torch"]
    assert torch.what.startswith("2.9, CUDA 12.8, sees 4 GPUs")


def test_without_the_compiled_part_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.data import plain

    monkeypatch.setattr("stoker.data.gather.engine", plain)
    assert "C compiler" in items()["compiled part"].fix
    monkeypatch.setitem(sys.modules, COMPILED, None)
    assert "libjpeg-turbo" in items()["JPEG in C"].fix


def test_every_line_says_ok_or_missing() -> None:
    text = render_items([Item("a", True, "is here"), Item("bc", False, "not\x1b", "get it")])
    assert text == "ok       a   is here\nmissing  bc  not ; fix: get it"


# -- the verb ------------------------------------------------------------------------


def test_doctor_of_a_folder(stoker: Stoker, images: Path) -> None:
    done = stoker("doctor", str(images))
    assert done.returncode == 0, done.stderr
    assert "30 in 4 folders" in done.stdout
    assert done.stderr.startswith("next: stoker submit --data ")
    told = json.loads(stoker("doctor", "--json", "--no-read", str(images)).stdout)
    assert (told["format"], told["files"], told["is_worth"]) == (1, 30, False)
    assert "reading" not in told


def test_doctor_of_the_machine(stoker: Stoker) -> None:
    done = stoker("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {each["name"] for each in told["items"]} >= {package for _, package, _ in LIBRARIES}
    assert "next: stoker " in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["gone"], 1, "error: `gone` does not exist"),
        (["--limit", "10s"], 2, "error: --limit and --no-read need a folder"),
        (["--limit", "soon", "."], 2, "error: argument --limit"),
        (["a", "b"], 2, "error: unrecognized arguments: b"),
    ],
)
def test_doctor_refuses(stoker: Stoker, words: list[str], code: int, what: str) -> None:
    done = stoker("doctor", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(what)


def test_what_the_kernel_shows_as_files_is_not_data() -> None:
    with pytest.raises(FileError, match="/proc"):
        survey(Path("/proc"))


def test_sockets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        (tmp_path / "a.jpg").write_bytes(b"1")
        assert (survey(tmp_path).files, survey(tmp_path).hidden) == (1, 1)
