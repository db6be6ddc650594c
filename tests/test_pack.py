"""Packing and back: nothing is lost, nothing is half-written, everything bad is named."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import json
import os
import random
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled import compiled
from conftest import Stoker
from effort import KEEPS_FIXTURES, examples
from stoker.data import spill
from stoker.data.archive import index_archive
from stoker.data.formats import FORMATS, SUFFIX_OF
from stoker.data.index import Index, index_of
from stoker.data.loading.dataset import open as open_packed
from stoker.data.packing import bulk, reading
from stoker.data.packing import pack as pack_module
from stoker.data.packing.journal import NAME as JOURNAL
from stoker.data.packing.journal import Share
from stoker.data.packing.order import Order, Settings
from stoker.data.packing.pack import join, pack, pack_order, pack_share, plan_shares
from stoker.data.sources.source import Hints, find_packed
from stoker.data.unpack import unpack
from stoker.data.verify import verify
from stoker.errors import DataError, FileError, StokerError, UsageError

SMALL = Settings(shard_bytes=40)


def make(folder: Path, count: int = 6) -> Path:
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for each in range(count):
            (folder / name / f"{each:04d}.jpg").write_bytes(name.encode() * (each + 1))
            (folder / name / f"{each:04d}.json").write_text(json.dumps({"n": each}))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "src")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def keys(folder: Path) -> list[str]:
    index = Index.open(folder / "index.stoker")
    return [index.key(i) for i in range(len(index))]


# -- there and back ----------------------------------------------------------------------


@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_packed_comes_back(
    container: str, workers: int, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    packed = pack(source, out, Settings(container, 40), workers)
    assert packed.samples == 12
    assert packed.shards > 3
    names = {each.name for each in out.iterdir()}
    assert names == {f"shard-{each:05d}{SUFFIX_OF[container]}" for each in range(packed.shards)} | {
        "index.stoker"
    }
    assert list(verify(out)) == []
    unpack(out, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    index = Index.open(out / "index.stoker")
    assert [index.label(i) for i in range(12)] == [0] * 6 + [1] * 6
    assert index.label_names == ["cats", "dogs"]
    assert keys(out) == sorted(keys(out))


SIZES = st.lists(
    st.one_of(st.integers(0, 1600), st.sampled_from([511, 512, 513, 5000])), min_size=1, max_size=12
)
# One header is enough; it is with two pieces of the name; it is not; it never is.
NAMES = [
    "\udcff-{}",
    "n" * 87 + "{}",
    "folder/" * 8 + "n" * 80 + "{}",
    "deep/" * 40 + "n" * 90 + "{}",
]


@given(SIZES, st.integers(600, 9000), st.booleans(), st.integers(3000, 1 << 16))
@settings(max_examples=examples(40), suppress_health_check=KEEPS_FIXTURES)
def test_the_compiled_part_writes_the_same(
    tmp_path: Path, sizes: list[int], shard: int, has_labels: bool, task: int
) -> None:
    place = tmp_path / os.urandom(4).hex()
    for number, size in enumerate(sizes):
        folder = place / "src" / (f"class {number % 2}" if has_labels else "")
        for extension in ("jpg", "json", "cls")[: 1 + number % 4]:
            path = folder / f"{NAMES[number % len(NAMES)].format(number)}.{extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"7" if extension == "cls" else bytes([number]) * size)
            os.utime(path, ns=(number, number * 10**9 + len(extension)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bulk, "TASK_BYTES", task)
        patched.setattr(bulk, "intake", compiled("_intake"))
        pack(place / "src", place / "compiled", Settings("tar", shard), 2)
        patched.setattr(bulk, "intake", None)
        pack(place / "src", place / "plain", Settings("tar", shard), 2)
    assert list(verify(place / "compiled")) == []
    assert shards_of(place / "compiled") == shards_of(place / "plain")
    assert rows_of(place / "compiled") == rows_of(place / "plain")


def shards_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(folder).items() if name.startswith("shard")}


def rows_of(folder: Path) -> list[Any]:
    index = Index.open(folder / "index.stoker")
    return [(index.key(at), index.label(at), index.parts(at)) for at in range(len(index))]


def test_a_part_too_large_for_memory_is_streamed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TASK_BYTES", 10)
    monkeypatch.setattr(reading, "CHUNK", 7)
    for container in FORMATS:
        pack(source, tmp_path / container, Settings(container))
        assert list(verify(tmp_path / container)) == []
        unpack(tmp_path / container, tmp_path / f"back-{container}")
        assert tree(tmp_path / f"back-{container}") == tree(source)


def test_a_folder_larger_than_memory_is_sorted_all_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(source, tmp_path / "one", SMALL)
    monkeypatch.setattr(spill, "RUN", 3)
    pack(source, tmp_path / "two", SMALL)
    assert keys(tmp_path / "one") == keys(tmp_path / "two")


def test_webdataset_finds_the_label(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out", Settings())
    with tarfile.open(tmp_path / "out/shard-00000.tar") as file:
        names = file.getnames()
        assert names[:3] == ["cats/0000.jpg", "cats/0000.json", "cats/0000.cls"]
        assert (file.extractfile("dogs/0001.cls") or io.BytesIO()).read() == b"1"


def test_a_seed_shuffles_and_the_same_seed_shuffles_the_same(source: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pack(source, tmp_path / name, Settings(shard_bytes=100, shuffle=seed))
    assert keys(tmp_path / "a") == keys(tmp_path / "b") != keys(tmp_path / "c")
    assert sorted(keys(tmp_path / "a")) == sorted(keys(tmp_path / "c"))
    assert (tmp_path / "a/shard-00001.tar").read_bytes() == (
        tmp_path / "b/shard-00001.tar"
    ).read_bytes()


def test_odd_files_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in (b"empty", b"bad\xff.txt", b"a" * 251 + b".txt", b"dot.", b"two.dots.txt"):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(
            b"" if name == b"empty" else name
        )
    (source / ".hidden").write_text("x")
    os.mkfifo(source / "pipe")
    (source / "loop").symlink_to(source)
    for container in FORMATS:
        packed = pack(source, tmp_path / container, Settings(container))
        assert (packed.samples, packed.skipped) == (5, 2)
        unpack(tmp_path / container, tmp_path / f"back-{container}")
        back = tree(tmp_path / f"back-{container}")
        assert back == {name: data for name, data in tree(source).items() if name != ".hidden"}
        assert list(verify(tmp_path / container)) == []


def test_lists_and_tables_keep_their_order_and_labels(source: Path, tmp_path: Path) -> None:
    (tmp_path / "files.txt").write_text(
        "src/dogs/0001.jpg\nsrc/dogs/0001.json\nsrc/cats/0000.jpg\n"
    )
    pack(tmp_path / "files.txt", tmp_path / "a", Settings())
    assert keys(tmp_path / "a") == ["src/dogs/0001", "src/cats/0000"]
    (tmp_path / "t.csv").write_text(
        "id,Path,label\n1,src/dogs/0001.jpg,dog\n2,src/cats/0000.jpg,cat\n"
    )
    pack(tmp_path / "t.csv", tmp_path / "b", Settings())
    index = Index.open(tmp_path / "b/index.stoker")
    assert [(index.key(i), index.label(i)) for i in range(2)] == [
        ("src/dogs/0001", 1),
        ("src/cats/0000", 0),
    ]
    (tmp_path / "n.csv").write_text("file,target\nsrc/dogs/0001.jpg,7\n")
    pack(tmp_path / "n.csv", tmp_path / "c", Settings())
    assert Index.open(tmp_path / "c/index.stoker").label(0) == 7
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no column with paths"):
        pack(tmp_path / "bad.csv", tmp_path / "d", Settings())


@pytest.mark.parametrize(
    ("name", "text", "hints"),
    [
        ("a.csv", '"Image","Class"\n"src/dogs/0001.jpg","big, dog"\nsrc/cats/0000.jpg,cat\n', {}),
        ("b.csv", "src/dogs/0001.jpg,big, dog\n", {"path_column": "1", "label_column": "2"}),
        ("c.csv", "src/dogs/0001.jpg;dog\r\nsrc/cats/0000.jpg;cat\r\n", {}),
        ("d.tsv", "\ufeffwhere\tx\twhat\nsrc/dogs/0001.jpg\t1\tdog\n",
         {"path_column": "where", "label_column": "what"}),
        ("e.csv", "n,where,label\n1,src/dogs/0001.jpg,dog\n", {}),
    ],
)  # fmt: skip
def test_tables_of_all_kinds(
    name: str, text: str, hints: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text, newline="")
    pack_order(Order(tmp_path / name, tmp_path / "out", SMALL, Hints(**hints)))
    index = Index.open(tmp_path / "out/index.stoker")
    assert index.key(0) == "src/dogs/0001"
    label = index.label(0)
    assert label is not None
    assert "dog" in index.label_names[label] or name == "b.csv"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_tables_of_windows(encoding: str, source: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\nsrc/dogs/0001.jpg,doguillo pequeño\n", encoding)
    pack(table, tmp_path / "out", SMALL)
    assert Index.open(tmp_path / "out/index.stoker").label_names == ["doguillo pequeño"]


def test_what_is_wrong_with_a_table_is_named_with_its_lines(source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\nsrc/cats/0000.jpg,1\nnone.jpg,2\n\nno.jpg,2\n")
    with pytest.raises(DataError) as caught:
        pack(tmp_path / "t.csv", tmp_path / "out", SMALL)
    assert caught.value.what.startswith("2 of the 3 files")
    assert caught.value.why == f"line 3: {tmp_path}/none.jpg; line 5: {tmp_path}/no.jpg"
    with pytest.raises(UsageError, match="has no column `lable`") as wrong:
        pack_order(Order(tmp_path / "t.csv", tmp_path / "out", SMALL, Hints(label_column="lable")))
    assert wrong.value.fix == "`label`"
    (tmp_path / "t.csv").write_text("path,label\n")
    with pytest.raises(DataError) as empty:
        pack(tmp_path / "t.csv", tmp_path / "out", SMALL)
    assert empty.value.why == "no row of it names a file after the first"
    assert not (tmp_path / "out").exists()


def test_labels_of_pandas_stay_numbers(source: Path, tmp_path: Path) -> None:
    """Where one is missing, it writes all of them with a point: sorted as names, 10.0 is before 2.0."""
    table = tmp_path / "t.csv"
    table.write_text(
        "path,label\nsrc/dogs/0001.jpg,10.0\nsrc/dogs/0002.jpg,\nsrc/cats/0000.jpg,2.0\n"
    )
    pack(table, tmp_path / "out", SMALL)
    index = Index.open(tmp_path / "out/index.stoker")
    assert [index.label(at) for at in range(3)] == [10, None, 2]
    assert index.label_names == []


def test_one_sample_of_a_table_has_one_label(tmp_path: Path) -> None:
    for name in ("1.2.840.dcm", "1.2.841.dcm", "a.jpg", "a.json"):
        (tmp_path / name).write_text(name)
    table = tmp_path / "t.csv"
    table.write_text("path,label\na.jpg,ill\na.json,\n1.2.840.dcm,ill\n1.2.841.dcm,well\n")
    with pytest.raises(DataError) as caught:
        pack(table, tmp_path / "out", SMALL)
    assert caught.value.what == "`1.2.840.dcm` and `1.2.841.dcm` have different labels"
    assert (
        caught.value.why == "they are parts of one sample, `1`: a key is a name up to its first dot"
    )
    assert not (tmp_path / "out").exists()
    table.write_text("path,label\na.jpg,ill\na.json,\n1.2.840.dcm,well\n1.2.841.dcm,well\n")
    assert pack(table, tmp_path / "out", SMALL).samples == 2


@given(st.text(max_size=200))
@settings(max_examples=examples(60), suppress_health_check=KEEPS_FIXTURES)
def test_no_table_and_no_list_ends_in_a_traceback(tmp_path: Path, text: str) -> None:
    for name in ("t.csv", "t.txt"):
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(StokerError):
            pack(tmp_path / name, tmp_path / "out", SMALL)


def test_a_list_that_windows_wrote_loses_no_line(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    names = tmp_path / "names.lst"
    names.write_bytes(b"\xef\xbb\xbfa.txt\r\nb.txt\r\n")
    assert pack(names, tmp_path / "out", Settings()).samples == 2


def test_backslashes_are_what_is_wrong_with_a_list(tmp_path: Path) -> None:
    (tmp_path / "dogs").mkdir()
    (tmp_path / "dogs/a.txt").write_text("a")
    names = tmp_path / "names.lst"
    names.write_text("dogs\\a.txt\n")
    with pytest.raises(DataError) as caught:
        pack(names, tmp_path / "out", Settings())
    assert "backslashes" in caught.value.fix


def test_a_list_may_come_through_a_pipe(source: Path, stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("pack", "-", "out", stdin="src/dogs/0001.jpg\nsrc/dogs/0001.json\n")
    assert done.stdout.startswith("packed 1 sample into 1 shard"), done.stderr
    assert keys(tmp_path / "out") == ["src/dogs/0001"]
    done = stoker("pack", "-", "no", stdin="src/none.jpg\n")
    assert "1 of the 1 files that `-` names" in done.stderr


def test_no_shard_is_larger_than_asked_for_unless_a_sample_is(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for each in range(40):
        (source / f"{each:02d}.txt").write_bytes(b"x" * (20_000 if each == 7 else 8 * each))
    for container in FORMATS:
        pack(source, tmp_path / container, Settings(container, 4096))
        index = Index.open(tmp_path / container / "index.stoker")
        alone = index.shard[7]
        assert [index.shard[row] for row in range(40)].count(alone) == 1
        if container in ("tar", "zip", "tfrecord"):
            sizes = [each.size for each in index.shards]
            assert all(size <= 3 * 4096 for at, size in enumerate(sizes) if at != alone)
        if container == "tar":
            assert len(index.shards) > 5


def test_archives_and_packed_data_are_sources_too(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(tree(source).items()):
            file.writestr(name, data)
    pack(tmp_path / "a.zip", tmp_path / "one", SMALL)
    pack(tmp_path / "one", tmp_path / "two", Settings("zip"))
    unpack(tmp_path / "two", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


@pytest.mark.parametrize("way", ["tar", "tar.gz"])
def test_what_macos_puts_into_an_archive_is_left_out(tmp_path: Path, way: str) -> None:
    path = tar_with(
        tmp_path / "a.tar", "._a", ".DS_Store", "cat/._1.jpg", "cat/1.jpg", "dog/.DS_Store",
        "dog/1.jpg", "__MACOSX/cat/._1.jpg",
    )  # fmt: skip
    if way == "tar.gz":
        data, path = path.read_bytes(), tmp_path / "a.tar.gz"
        path.write_bytes(gzip.compress(data))
    packed = pack(path, tmp_path / "out", Settings())
    index = Index.open(index_of(tmp_path / "out"))
    assert (packed.samples, packed.skipped) == (2, 5)
    assert keys(tmp_path / "out") == ["cat/1", "dog/1"]
    assert [index.label(at) for at in range(2)] == [0, 1]
    unpack(path, tmp_path / "all")
    assert len(tree(tmp_path / "all")) == 7


CLASSES = {"cat/1.jpg": 0, "cat/2.jpg": 0, "dog/1.jpg": 1}


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (CLASSES, [0, 0, 1]),
        ({f"./all/{name}": label for name, label in CLASSES.items()}, [0, 0, 1]),
        ({"cat/1.jpg", "cat/2.jpg"}, [None, None]),
        ({"train/1.jpg", "test/1.jpg"}, [None, None]),
        ({"cat/1.jpg", "dog/more/1.jpg"}, [None, None]),
        ({"cat/1.jpg", "dog/1.jpg", "README"}, [None, None, None]),
    ],
)
@pytest.mark.parametrize("way", ["tar", "tar.gz", "index"])
def test_folders_in_an_archive_are_classes(
    tmp_path: Path, names: Collection[str], labels: list[int | None], way: str
) -> None:
    path = tar_with(tmp_path / "a.tar", *sorted(names))
    if way == "tar.gz":
        data, path = path.read_bytes(), tmp_path / "a.tar.gz"
        path.write_bytes(gzip.compress(data))
    if way == "index":
        index_archive(path)
        found = path
    else:
        found = tmp_path / "out"
        pack(path, found, Settings())
    index = Index.open(index_of(found))
    assert [index.label(at) for at in range(len(index))] == labels
    assert index.label_names == (["cat", "dog"] if 1 in labels else [])


def test_a_label_of_its_own_counts_more_than_its_folder(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tar", "cat/1.jpg", "dog/1.cls", "dog/1.jpg")
    pack(path, tmp_path / "out", Settings())
    assert Index.open(index_of(tmp_path / "out")).label_names == []


def test_folders_of_samples_with_their_own_labels_are_no_classes(tmp_path: Path) -> None:
    """As shards of a WebDataset that were unpacked, each into a folder."""
    for name, label in (("00000/a", 7), ("00000/b", 3), ("00001/c", 5)):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"src/{name}.jpg").write_bytes(b"jpg")
        (tmp_path / f"src/{name}.cls").write_text(str(label))
    pack(tmp_path / "src", tmp_path / "out", Settings())
    index = Index.open(index_of(tmp_path / "out"))
    assert [index.label(at) for at in range(3)] == [7, 3, 5]
    assert index.label_names == []


@pytest.mark.parametrize("container", [*FORMATS, "index"])
def test_a_label_may_be_negative(tmp_path: Path, container: str) -> None:
    """As that of samples without a class often is."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        for name, data in (("0.txt", b"a"), ("0.cls", b"3"), ("1.txt", b"b"), ("1.cls", b"-1\n")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    found = path
    if container == "index":
        index_archive(path)
    else:
        found = tmp_path / "out"
        pack(path, found, Settings(container))
    index = Index.open(index_of(found))
    assert [index.label(at) for at in range(2)] == [3, -1]
    assert list(verify(found)) == []
    assert list(open_packed(found, parts=("txt", "cls"))) == [("a", 3), ("b", -1)]


# -- interrupted -------------------------------------------------------------------------


def pack_and_die(source: Path, out: Path, after: int) -> int:
    """Pack in a process that kills itself after so many calls; return how many there were."""
    reader, teller = os.pipe()
    child = os.fork()
    if child == 0:
        left = after

        def count(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        pack(source, out, SMALL)
        sys.setprofile(None)
        os.write(teller, str(after - left).encode())
        os._exit(0)
    os.close(teller)
    told = os.read(reader, 20)
    os.close(reader)
    os.waitpid(child, 0)
    return int(told or 0)


def test_killed_anywhere_it_goes_on_and_nothing_is_lost(source: Path, tmp_path: Path) -> None:
    calls = pack_and_die(source, tmp_path / "whole", sys.maxsize)
    wanted = {name: data for name, data in tree(tmp_path / "whole").items() if "shard" in name}
    assert len(wanted) > 3
    numbers = random.Random(1)
    kept = 0
    for _ in range(10):
        out = tmp_path / "out"
        pack_and_die(source, out, numbers.randrange(calls))
        for name, data in tree(out).items() if out.exists() else ():
            if not name.startswith(".") and name.startswith("shard"):
                assert data == wanted[name]
        if (out / "index.stoker").exists():
            assert list(verify(out)) == []
        else:
            kept += pack(source, out, SMALL).kept_shards
        assert {name: data for name, data in tree(out).items() if "shard" in name} == wanted
        assert list(verify(out)) == []
        shutil.rmtree(out)
    assert kept > 2


@pytest.mark.slow
def test_killed_at_a_hundred_points_nothing_is_lost(source: Path, tmp_path: Path) -> None:
    calls = pack_and_die(source, tmp_path / "whole", sys.maxsize)
    wanted = {name: data for name, data in tree(tmp_path / "whole").items() if "shard" in name}
    numbers = random.Random(2)
    for _ in range(100):
        out = tmp_path / "out"
        for _ in range(numbers.randrange(1, 4)):
            if not (out / "index.stoker").exists():
                pack_and_die(source, out, numbers.randrange(calls))
        if not (out / "index.stoker").exists():
            pack(source, out, SMALL)
        assert {name: data for name, data in tree(out).items() if "shard" in name} == wanted
        assert list(verify(out)) == []
        shutil.rmtree(out)


def test_an_exceeded_quota_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.fsync, 6

    def refusing(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refusing)
        with pytest.raises(FileError) as caught:
            pack(source, tmp_path / "out", SMALL)
    assert caught.value.why == os.strerror(errno.EDQUOT)
    assert "ask for more quota" in caught.value.fix
    assert not (tmp_path / "out/index.stoker").exists()
    assert pack(source, tmp_path / "out", SMALL).samples == 12


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_is_really_full(source: Path, tmp_path: Path) -> None:
    (source / "dogs/0005.jpg").write_bytes(bytes(300_000))
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=128k", "stoker-test", str(disk)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(FileError) as caught:
            pack(source, disk / "out", SMALL)
        assert caught.value.why == os.strerror(errno.ENOSPC)
        assert not (disk / "out/index.stoker").exists()
        (source / "dogs/0005.jpg").write_bytes(b"small")
        assert pack(source, disk / "out", SMALL).kept_shards > 2
        assert list(verify(disk / "out")) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("container", ["tar", "zip", "hdf5"])
def test_a_sample_over_four_gib(container: str, tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 10 << 30:
        pytest.skip("not enough room")
    source = tmp_path / "src"
    source.mkdir()
    size = (4 << 30) + 5
    with (source / "b.bin").open("wb") as file:
        file.truncate(size)
        file.seek(size - 3)
        file.write(b"end")
    (source / "a.bin").write_bytes(b"a")
    (source / "c.bin").write_bytes(b"c")
    pack(source, tmp_path / "out", Settings(container, 8 << 30))
    data = Index.open(tmp_path / "out/index.stoker")
    assert [data.size[row] for row in range(3)] == [1, size, 1]
    with (tmp_path / "out" / data.shards[data.shard[1]].name).open("rb") as file:
        file.seek(data.offset[1] + size - 3)
        assert file.read(3) == b"end"
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_a_million_names_take_little_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).parent.parent / "benchmarks/pack.py", "--memory-only",
         "--names", "1000000"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Of ten million, which take too long for a test, benchmarks/pack.md tells.
    assert json.loads(done.stdout)["peak_mb"] < 120


# -- shares ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_shares_make_the_same_data_set(
    count: int, seed: int | None, source: Path, tmp_path: Path
) -> None:
    wanted = Settings("tar", 3000, seed)
    pack(source, tmp_path / "whole", wanted)
    order = Order(source, tmp_path / "out", wanted)
    plan_shares(order, count)
    for number in random.Random(1).sample(range(1, count + 1), count):
        with pytest.raises(FileError, match="not packed yet"):
            join(tmp_path / "out")
        pack_share(order, Share(number, count))
    assert join(tmp_path / "out").samples == 12
    assert keys(tmp_path / "out") == keys(tmp_path / "whole")
    assert list(verify(tmp_path / "out")) == []
    assert not (tmp_path / "out" / JOURNAL).exists()
    with pytest.raises(FileError, match="no shares to join"):
        join(tmp_path / "out")


def test_a_share_can_be_packed_again_and_only_as_it_was_planned(
    source: Path, tmp_path: Path
) -> None:
    order = Order(source, tmp_path / "out", SMALL)
    first = pack_share(order, Share(1, 2))
    assert first.shards > 2
    again = pack_share(order, Share(1, 2))
    assert (again.kept_shards, again.samples) == (first.shards, first.samples)
    with pytest.raises(FileError, match="shares: 2 then, 3 now"):
        pack_share(order, Share(1, 3))
    with pytest.raises(FileError, match="other settings"):
        pack_order(order)
    pack_share(order, Share(2, 2))
    assert join(tmp_path / "out").samples == 12


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("change", ["one more", "one less", "a class"])
def test_shares_of_a_source_that_changed_lose_and_double_nothing(
    change: str, seed: int | None, source: Path, tmp_path: Path
) -> None:
    order = Order(source, tmp_path / "out", Settings("tar", 3000, seed))
    plan_shares(order, 3)
    pack_share(order, Share(1, 3))
    pack_share(order, Share(3, 3))
    if change == "one less":
        (source / "cats/0001.jpg").unlink()
        (source / "cats/0001.json").unlink()
    else:
        more = source / ("cats/0000a.jpg" if change == "one more" else "apes/0000.jpg")
        more.parent.mkdir(exist_ok=True)
        more.write_bytes(b"more")
    pack_share(order, Share(2, 3))
    with pytest.raises(DataError, match="changed while its shares were packed") as caught:
        join(tmp_path / "out")
    assert caught.value.fix.startswith(f"stoker pack {source} {tmp_path / 'out'} --share K/3")
    for number in (3, 2, 1):
        pack_share(order, Share(number, 3))
    join(tmp_path / "out")
    pack(source, tmp_path / "whole", order.settings)
    assert keys(tmp_path / "out") == keys(tmp_path / "whole")
    unpack(tmp_path / "out", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


def test_what_changed_since_is_packed_anew(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise DataError("no", why="no", fix="no")

    with monkeypatch.context() as patched:
        patched.setattr(pack_module, "write_index", fail)
        with pytest.raises(DataError):
            pack(source, tmp_path / "out", SMALL)
    (source / "dogs/0003.jpg").write_bytes(b"new")
    (source / "dogs/0005.jpg").unlink()
    (source / "dogs/0005.json").unlink()
    with pytest.raises(FileError, match="other settings"):
        pack(source, tmp_path / "out", Settings(shard_bytes=999))
    packed = pack(source, tmp_path / "out", SMALL)
    assert 0 < packed.kept_shards < packed.shards
    unpack(tmp_path / "out", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert list(verify(tmp_path / "out")) == []


def test_a_part_of_a_data_set_is_not_taken_for_a_whole_one(source: Path, tmp_path: Path) -> None:
    pack_share(Order(source, tmp_path / "out", SMALL), Share(1, 2))
    with pytest.raises(FileError, match="is packed in part only") as caught:
        find_packed(tmp_path / "out")
    assert caught.value.fix.startswith(f"stoker pack {source} {tmp_path / 'out'}")


def test_a_shard_has_a_size(stoker: Stoker) -> None:
    done = stoker("pack", "src", "out", "--shard-size", "0G")
    assert (done.returncode, "`0G` is no size of a shard" in done.stderr) == (2, True)


def test_two_at_once_are_refused(source: Path, tmp_path: Path) -> None:
    journal = tmp_path / "out" / JOURNAL
    journal.mkdir(parents=True)
    with (journal / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FileError, match="by another process"):
            pack(source, tmp_path / "out", SMALL)
    assert pack(source, tmp_path / "out", SMALL).samples == 12


def test_a_full_disk_says_so_and_the_rest_is_packed_later(source: Path, tmp_path: Path) -> None:
    (source / "dogs/0005.jpg").write_bytes(bytes(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(FileError) as caught:
            pack(source, tmp_path / "out", SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "goes on where it was" in caught.value.fix
    assert not list((tmp_path / "out").glob(".*.part"))
    assert pack(source, tmp_path / "out", SMALL).kept_shards > 2
    assert list(verify(tmp_path / "out")) == []


def test_a_file_that_changes_while_it_is_read_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread

    def growing(descriptor: int, size: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "0004.jpg":
            with (source / "cats/0004.jpg").open("ab") as file:
                file.write(b"more")
        return real(descriptor, size, at)

    monkeypatch.setattr(bulk, "intake", None)
    monkeypatch.setattr(os, "pread", growing)
    with pytest.raises(DataError, match=r"cats/0004.jpg` changed while it was read"):
        pack(source, tmp_path / "out", SMALL)


# -- refused -----------------------------------------------------------------------------


def test_what_cannot_be_packed_is_refused_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "twice.txt").write_text(
        "src/cats/0000.jpg\nsrc/cats/0001.jpg\nsrc/cats/0000.json\n"
    )
    (tmp_path / "same.txt").write_text("src/cats/0000.jpg\nsrc/cats/0000.jpg\n")
    (tmp_path / "missing.txt").write_text("src/cats/none.jpg\n")
    for name, what in (
        ("none", "does not exist"),
        ("empty", "has no samples"),
        ("twice.txt", "`src/cats/0000` is there twice"),
        ("same.txt", "`src/cats/0000` is there twice"),
        ("missing.txt", "1 of the 1 files"),
    ):
        with pytest.raises(StokerError, match=what):
            pack(tmp_path / name, tmp_path / "out", SMALL)
        assert not (tmp_path / "out").exists()


def test_a_target_that_is_not_ours_is_not_touched(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not empty"):
        pack(source, source, SMALL)
    pack(source, tmp_path / "out", SMALL)
    with pytest.raises(FileError, match="is packed already"):
        pack(source, tmp_path / "out", SMALL)
    with pytest.raises(FileError, match="is inside of"):
        pack(source, source / "out", SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file"):
        pack(source, tmp_path / "file", SMALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_target_is_told(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o555)
    with pytest.raises(FileError, match="cannot write"):
        pack(source, tmp_path / "out", SMALL)


def test_a_place_where_nobody_may_write_is_told(source: Path) -> None:
    with pytest.raises(FileError, match="cannot write to `/proc/packed`"):
        pack(source, Path("/proc/packed"), SMALL)


def test_a_folder_that_cannot_be_read_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refusing(path: Path) -> Any:
        if Path(path).name == "dogs" and (tmp_path / "out").exists():
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(FileError, match=r"cannot read `.*/dogs`"):
        pack(source, tmp_path / "out", SMALL)


def tar_with(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as file:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            file.addfile(info, io.BytesIO(b"evil"))
    return path


@pytest.mark.parametrize(
    "name", ["../out.txt", "/etc/out.txt", "a/../../out.txt", "a//b.txt", "x" * 300]
)
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tar", name)
    with pytest.raises(DataError, match="is not written"):
        unpack(path, tmp_path / "back")
    assert not list(tmp_path.rglob("out.txt"))


def test_a_link_in_the_target_is_not_followed(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tar", "a/b.txt")
    (tmp_path / "other").mkdir()
    (tmp_path / "back").mkdir()
    (tmp_path / "back/a").symlink_to(tmp_path / "other")
    with pytest.raises(DataError, match="is not written"):
        unpack(path, tmp_path / "back")
    assert not list((tmp_path / "other").iterdir())


def test_unpack_of_some_keys_and_of_what_is_there(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out", SMALL)
    unpack(tmp_path / "out", tmp_path / "back", ["dogs/0001"])
    assert set(tree(tmp_path / "back")) == {"dogs/0001.jpg", "dogs/0001.json"}
    with pytest.raises(FileError, match="exists already"):
        unpack(tmp_path / "out", tmp_path / "back", ["dogs/0001"])
    unpack(tmp_path / "out", tmp_path / "back", ["dogs/0001"], force=True)
    with pytest.raises(UsageError, match="no sample `dogs/1`"):
        unpack(tmp_path / "out", tmp_path / "back", ["dogs/1"])


# -- damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["tar", "zip", "tfrecord"])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_byte_is_found_or_harmless(container: str, step: int, tmp_path: Path) -> None:
    source = make(tmp_path / "src", 1)
    out = tmp_path / "out"
    pack(source, out, Settings(container))
    shard = out / f"shard-00000{SUFFIX_OF[container]}"
    whole, index = shard.read_bytes(), Index.open(out / "index.stoker")
    covered = {
        at
        for row in range(len(index.offset))
        for at in range(index.offset[row], index.offset[row] + index.size[row])
    }
    for at in range(0, len(whole), step):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        problems = list(verify(out))
        if at in covered:
            assert any(each.key and "bytes have changed" in each.why for each in problems)
        elif not problems:
            data = shard.read_bytes()
            assert all(data[each] == whole[each] for each in covered)


def test_a_damaged_source_is_not_packed_as_if_it_were_whole(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "out", Settings("zip"))
    shard = tmp_path / "out/shard-00000.zip"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"dogsdogs", b"dogsdigs", 1))
    (tmp_path / "out/index.stoker").unlink()
    with pytest.raises(DataError, match="is damaged"):
        pack(shard, tmp_path / "again", SMALL)
    with pytest.raises(DataError, match="is damaged"):
        unpack(shard, tmp_path / "back")
    assert [each.key for each in verify(shard)] == ["dogs/0001.jpg"]


# -- archives of others ------------------------------------------------------------------


def test_parts_far_apart_are_brought_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar_with(tmp_path / "a.tar", "b.json", "a.json", "b.jpg", "a.jpg", "c.jpg")
    before = path.read_bytes()
    for run in (200_000, 2):
        monkeypatch.setattr(spill, "RUN", run)
        assert index_archive(path, force=True, checksums=run == 2) == 3
        index = Index.open(tmp_path / "a.tar.stoker")
        assert [index.key(i) for i in range(3)] == ["b", "a", "c"]
        assert [each.extension for each in index.parts(0)] == ["json", "jpg"]
        assert index.has_checksums == (run == 2)
        assert list(verify(path)) == []
    assert path.read_bytes() == before
    unpack(path, tmp_path / "back")
    assert len(tree(tmp_path / "back")) == 5
    path.write_bytes(before.replace(b"evil", b"good", 1))
    assert [each.key for each in verify(path)] == ["b"]


def test_a_file_that_is_there_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="`a` has two parts `txt`"):
        index_archive(tar_with(tmp_path / "a.tar", "a.txt", "b.txt", "a.txt"))
    assert not (tmp_path / "a.tar.stoker").exists()


def test_a_folder_of_archives_gets_one_index(tmp_path: Path) -> None:
    tar_with(tmp_path / "a.tar", "a.txt")
    tar_with(tmp_path / "b.tar", "b.txt")
    assert index_archive(tmp_path) == 2
    assert keys(tmp_path) == ["a", "b"]
    with pytest.raises(FileError, match="exists already"):
        index_archive(tmp_path)


def test_what_is_no_data_set_says_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 300)
    for name, what in (
        ("junk", "is no packed data set"),
        ("none", "does not exist"),
        ("", "is no packed data set"),
    ):
        with pytest.raises(FileError, match=what):
            unpack(tmp_path / name, tmp_path / "back")


# -- the commands ------------------------------------------------------------------------


def test_the_next_command_can_be_pasted(source: Path, stoker: Stoker) -> None:
    done = stoker("pack", str(source), "my out", "--shard-size", "1M")
    words = ["stoker", "verify", "my out"]
    for following in ("ls", "verify", None):
        assert shlex.split(done.stderr.rpartition("next: ")[2]) == words
        if following:
            done = stoker(*words[1:])
            words = ["stoker", following, "my out"]


def test_the_verbs_work_together(source: Path, stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("pack", str(source), "out", "--shard-size", "1M")
    assert (done.returncode, done.stdout.split(" (")[0]) == (0, "packed 12 samples into 1 shard")
    assert done.stderr == "next: stoker verify out\n"
    assert stoker("ls", "out").stdout.startswith("cats/0000  jpg 4  json 8  label 0 (cats)\n")
    told = json.loads(stoker("ls", "--json", "out").stdout)
    assert (told["format"], len(told["samples"]), told["samples"][-1]["label_name"]) == (
        1,
        12,
        "dogs",
    )
    assert stoker("verify", "out").stdout == "whole: out, 12 samples\n"
    assert (
        stoker("unpack", "out", "back", "cats/0001").stdout
        == "wrote 2 files of 1 sample (16 bytes)\n"
    )
    shard = tmp_path / "out/shard-00000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"catscats", b"catsCats", 1))
    done = stoker("verify", "out")
    assert done.returncode == 1
    assert done.stdout == "bad  shard-00000.tar: cats/0001: jpg: its bytes have changed\n"
