"""What we pack other tools read, and what other tools write we index and read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.data.archive import index_archive
from stoker.data.index import Index
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.data.verify import verify

ROOT = Path(__file__).parent.parent
TENSORFLOW = ROOT / ".venv-tf/bin/python"
UTF8 = {**os.environ, "LC_ALL": "C.UTF-8"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes; small and large files, pairs, odd and long names."""
    for number in range(6):
        folder = tmp_path / "src" / ("cats" if number % 2 else "dögs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}.jpg").write_bytes(b"%d" % number * (number * 1500 + 1))
        (folder / f"{number:04d}.json").write_text(json.dumps({"n": number}))
    (folder / ("long-" * 40 + "x.jpg")).write_bytes(b"long")
    (folder / ("long-" * 40 + "x.json")).write_bytes(b"")
    return tmp_path / "src"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def without_labels(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".cls")}


def packed(source: Path, container: str) -> list[Path]:
    out = source.parent / container
    pack(source, out, Settings(container, 20_000))
    return sorted(each for each in out.iterdir() if each.name.startswith("shard-"))


def read(path: Path) -> dict[str, bytes]:
    """Return all files of a data set as `stoker.open` has them."""
    data = stoker.open(path, decode=False)
    labels = Index.open(data.index.path)
    found = {}
    for i in range(len(data)):
        sample = {
            part.extension: bytes(data.shards.view(row))
            for row, part in zip(
                range(labels.first[i], labels.first[i + 1]), labels.parts(i), strict=True
            )
        }
        for name, value in sample.items():
            found[f"{data.key(i)}.{name}" if name else data.key(i)] = value
    return found


def run(*words: object, **options: Any) -> None:
    done = subprocess.run(
        [str(each) for each in words],
        capture_output=True, text=True, check=False, env=UTF8, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- tar ---------------------------------------------------------------------------------


def test_gnu_tar_reads_ours(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for shard in packed(source, "tar"):
        run("tar", "xf", shard, "-C", out)
        run("tar", "tf", shard)
    assert without_labels(files_of(out)) == files_of(source)


@pytest.mark.parametrize("style", ["gnu", "posix", "ustar", "v7", "oldgnu"])
def test_we_read_what_gnu_tar_writes(style: str, source: Path, tmp_path: Path) -> None:
    if style in ("ustar", "v7"):  # These have no names as long.
        for each in source.rglob("long-*"):
            each.unlink()
    path = tmp_path / "a.tar"
    run("tar", "cf", path, f"--format={style}", "-C", source, ".")
    index_archive(path, checksums=True)
    assert read(path) == files_of(source)
    assert list(verify(path)) == []


def test_a_tar_in_a_tar_is_a_file(source: Path, tmp_path: Path) -> None:
    run("tar", "cf", tmp_path / "inner.tar", "-C", source, ".")
    run("tar", "cf", tmp_path / "outer.tar", "-C", tmp_path, "inner.tar")
    index_archive(tmp_path / "outer.tar")
    assert read(tmp_path / "outer.tar") == {"inner.tar": (tmp_path / "inner.tar").read_bytes()}


# -- WebDataset --------------------------------------------------------------------------


# It leaves the closing of its files to the interpreter.
careless = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@careless
def test_webdataset_reads_ours(source: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = [str(each) for each in packed(source, "tar")]
    found = {}
    for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False):
        for name in ("jpg", "json"):
            found[f"{sample['__key__']}.{name}"] = sample[name]
        assert sample["cls"] == (b"0" if "cats" in sample["__key__"] else b"1")
    assert found == files_of(source)


@careless
def test_we_read_what_webdataset_writes(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "w").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "w/%03d.tar"), maxcount=4, verbose=0) as out:
        for each in range(10):
            out.write({"__key__": f"n/{each:03d}", "jpg": b"%d" % each * 9, "cls": each,
                       "json": {"n": each}})  # fmt: skip
    assert index_archive(tmp_path / "w") == 10
    data = stoker.open(tmp_path / "w", decode={"jpg": bytes})
    assert [data.label(i) for i in range(10)] == list(range(10))
    assert data[7] == {"jpg": b"7" * 9, "cls": 7, "json": {"n": 7}}


# -- ZIP ---------------------------------------------------------------------------------


def test_unzip_and_python_read_our_zip(source: Path, tmp_path: Path) -> None:
    for shard in packed(source, "zip"):
        if shutil.which("unzip"):
            run("unzip", "-tq", shard)
        with zipfile.ZipFile(shard) as file:
            assert file.testzip() is None
            file.extractall(tmp_path / "out")
    assert without_labels(files_of(tmp_path / "out")) == files_of(source)


def by_python(path: Path, source: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in files_of(source).items():
            file.writestr(name, data)


def by_zip(path: Path, source: Path) -> None:
    if not shutil.which("zip"):
        pytest.skip("zip is not there")
    run("zip", "-0qr", path, ".", cwd=source)


class _NoSeek:
    """A file that is written like a pipe: sizes and checksums follow the bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def by_pipe(path: Path, source: Path) -> None:
    out = _NoSeek(path)
    with zipfile.ZipFile(out, "w") as file:
        for name, data in files_of(source).items():
            file.writestr(name, data)
    out.close()


@pytest.mark.parametrize("make", [by_python, by_zip, by_pipe])
def test_we_read_what_others_zip(
    make: Callable[[Path, Path], None], source: Path, tmp_path: Path
) -> None:
    make(tmp_path / "a.zip", source)
    index_archive(tmp_path / "a.zip")
    assert read(tmp_path / "a.zip") == files_of(source)
    assert list(verify(tmp_path / "a.zip")) == []


# -- HDF5 and LMDB: more in tests of their own --------------------------------------------


def test_h5py_reads_ours(source: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    found, labels = {}, {}
    for shard in packed(source, "hdf5"):
        with h5py.File(shard, "r") as file:
            for i, key in enumerate(each.decode() for each in file["keys"]):
                labels[key] = int(file["labels"][i])
                for name, table in file["parts"].items():
                    start, end = table[i].tolist()
                    if start <= end:
                        found[f"{key}.{name}"] = file["bytes"][start:end].tobytes()
    assert found == files_of(source)
    assert all(label == ("cats" not in key) for key, label in labels.items())


def test_lmdb_reads_ours(source: Path) -> None:
    lmdb: Any = pytest.importorskip("lmdb")
    found = {}
    for shard in packed(source, "lmdb"):
        with (
            lmdb.open(str(shard), subdir=False, readonly=True, lock=False) as env,
            env.begin() as txn,
        ):
            found.update({key.decode(): bytes(value) for key, value in txn.cursor()})
        assert not shard.with_name(shard.name + "-lock").exists()
    assert without_labels(found) == files_of(source)


# -- TensorFlow --------------------------------------------------------------------------

READ = """
import sys, json, tensorflow as tf
spec = {"__key__": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64),
        "jpg": tf.io.FixedLenFeature([], tf.string), "json": tf.io.FixedLenFeature([], tf.string)}
for record in tf.data.TFRecordDataset(sys.argv[1:]):
    each = tf.io.parse_single_example(record, spec)
    print(json.dumps([each["__key__"].numpy().decode(), int(each["label"]),
                      each["jpg"].numpy().hex(), each["json"].numpy().hex()]))
"""
WRITE = """
import sys, tensorflow as tf
f = tf.train
with tf.io.TFRecordWriter(sys.argv[1]) as out:
    for n in range(5):
        feature = {"image": f.Feature(bytes_list=f.BytesList(value=[b"%d" % n * 700])),
                   "label": f.Feature(int64_list=f.Int64List(value=[n - 2]))}
        out.write(f.Example(features=f.Features(feature=feature)).SerializeToString())
    out.write(b"no example")
"""


def tensorflow(program: str, *words: object) -> str:
    if not (ROOT / ".venv-tf/tf-ready").exists():
        pytest.skip("TensorFlow is not installed: scripts/setup-frameworks")
    done = subprocess.run(
        [TENSORFLOW, "-c", program, *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_tensorflow_reads_ours(source: Path) -> None:
    found = {}
    for line in tensorflow(READ, *packed(source, "tfrecord")).splitlines():
        key, label, image, text = json.loads(line)
        found[f"{key}.jpg"], found[f"{key}.json"] = bytes.fromhex(image), bytes.fromhex(text)
        assert label == ("cats" not in key)
    assert found == files_of(source)


@pytest.mark.slow
def test_we_read_what_tensorflow_writes(tmp_path: Path) -> None:
    path = tmp_path / "train.tfrecord"
    tensorflow(WRITE, path)
    assert index_archive(path) == 6
    data = stoker.open(path, decode=False)
    assert [data.label(i) for i in range(6)] == [-2, -1, 0, 1, 2, None]
    assert bytes(data[4]["image"]) == b"4" * 700
    assert bytes(data[5]["example"]) == b"no example"
    assert list(verify(path)) == []


def test_pax_names_of_python_are_read(tmp_path: Path) -> None:
    name = "ü" * 90 + "/" + "y" * 250 + ".txt"
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo(name)
        info.mtime = 1.5
        file.addfile(info)
    index_archive(tmp_path / "a.tar")
    assert read(tmp_path / "a.tar") == {name: b""}
