"""Arrays as sources: every sample is one row, in the archive, in the index and when it is read."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from conftest import Stoker
from effort import KEEPS_FIXTURES, examples
from stoker.data.formats import FORMATS
from stoker.data.index import Index
from stoker.data.npy import npy_head, read_npy_head
from stoker.data.packing import journal
from stoker.data.packing import pack as pack_module
from stoker.data.packing.order import Order, Settings
from stoker.data.packing.pack import join, pack, pack_order, pack_share
from stoker.data.sources.source import Hints
from stoker.data.verify import verify
from stoker.errors import DataError, StokerError, UsageError

numpy = pytest.importorskip("numpy")


def images(count: int = 10, dtype: str = "uint8") -> Any:
    return numpy.arange(count * 12).reshape(count, 3, 4).astype(dtype)


def order(source: Path, out: Path, *facts: Any, **hints: Any) -> Order:
    return Order(source, out, Settings(*facts), Hints(**hints))


def rows(folder: Path) -> Any:
    data = stoker.open(folder, parts="npy")
    return numpy.stack([data[at] for at in range(len(data))])


def write_idx(path: Path, array: Any) -> Path:
    head = b"\0\0" + bytes([{"uint8": 8, "int32": 12}[array.dtype.name], array.ndim])
    data = (
        head
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# -- there and back ----------------------------------------------------------------------


@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("dtype", ["uint8", "<f4", ">i2"])
def test_every_row_is_read_back(container: str, dtype: str, tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", images(10, dtype))
    numpy.save(tmp_path / "y.npy", numpy.arange(10) % 3)
    out = tmp_path / "out"
    size = images(10, dtype)[:4].nbytes
    packed = pack_order(order(tmp_path / "x.npy", out, container, size, labels=tmp_path / "y.npy"))
    assert (packed.samples, packed.shards) == (10, 3)
    assert numpy.array_equal(rows(out), images(10, dtype))
    index = Index.open(out / "index.stoker")
    assert [index.label(at) for at in range(10)] == [at % 3 for at in range(10)]
    assert index.header["arrays"] == {"npy": {"dtype": images(1, dtype).dtype.str, "shape": [3, 4]}}
    assert list(verify(out)) == []


def test_numpy_itself_loads_what_is_in_a_tar_and_in_a_zip(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "a.npz", images=images(), labels=numpy.arange(10))
    for container in ("tar", "zip"):
        pack_order(order(tmp_path / "a.npz", tmp_path / container, container))
    with tarfile.open(tmp_path / "tar/shard-00000.tar") as archive:
        found = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    with zipfile.ZipFile(tmp_path / "zip/shard-00000.zip") as archive:
        assert found == {name: archive.read(name) for name in archive.namelist()}
    assert numpy.array_equal(numpy.load(io.BytesIO(found["00000.npy"])), images())
    assert list(numpy.load(io.BytesIO(found["00000.labels.npy"]))) == list(range(10))


def test_h5py_itself_reads_the_array(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    numpy.save(tmp_path / "x.npy", images())
    pack(tmp_path / "x.npy", tmp_path / "out", Settings("hdf5"))
    with h5py.File(tmp_path / "out/shard-00000.h5") as file:
        assert numpy.array_equal(file["npy"][:], images())


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("names", [("images-idx3", "labels-idx1"), ("images.idx3", "labels.idx1")])
def test_mnist_finds_its_labels(suffix: str, names: tuple[str, str], tmp_path: Path) -> None:
    source = write_idx(tmp_path / f"train-{names[0]}-ubyte{suffix}", images())
    write_idx(tmp_path / f"train-{names[1]}-ubyte{suffix}", numpy.arange(10, dtype="uint8"))
    pack(source, tmp_path / "out", Settings())
    assert numpy.array_equal(rows(tmp_path / "out"), images())
    assert [stoker.open(tmp_path / "out").label(at) for at in range(10)] == list(range(10))


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_npz_with_several_arrays(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save(
        path,
        x_train=images(),
        y_train=numpy.arange(10),
        x_test=images(4),
        y_test=numpy.ones(4, "int64"),
    )
    with pytest.raises(UsageError, match="several arrays") as caught:
        pack(path, tmp_path / "out", Settings())
    assert caught.value.fix == "--array x_train"
    pack_order(order(path, tmp_path / "out", array="x_test"))
    assert numpy.array_equal(rows(tmp_path / "out"), images(4))
    assert stoker.open(tmp_path / "out").label(3) == 1
    with pytest.raises(UsageError, match="no array `x_tset`"):
        pack_order(order(path, tmp_path / "no", array="x_tset"))
    save(path, image=images(), boxes=numpy.ones((10, 4), "float32"))
    pack(path, tmp_path / "two", Settings())
    data = stoker.open(tmp_path / "two", parts=("npy", "boxes.npy"))
    assert data[3][1].tolist() == [1, 1, 1, 1]


def test_a_seed_shuffles_rows_and_packed_rows_can_be_packed_again(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", images())
    for name in ("a", "b"):
        pack(tmp_path / "x.npy", tmp_path / name, Settings("tar", 30, 7))
    data = stoker.open(tmp_path / "a", parts="npy")
    numbers = [int(data.key(at)) for at in range(10)]
    assert sorted(numbers) == list(range(10)) != numbers
    assert numpy.array_equal(rows(tmp_path / "a"), images()[numbers])
    assert (tmp_path / "a/shard-00001.tar").read_bytes() == (
        tmp_path / "b/shard-00001.tar"
    ).read_bytes()
    pack(tmp_path / "a", tmp_path / "again", Settings("zip"))
    assert numpy.array_equal(rows(tmp_path / "again"), images()[numbers])
    assert stoker.open(tmp_path / "again").key(0) == data.key(0)


def test_an_interrupted_packing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy.save(tmp_path / "x.npy", images())

    def fail(*_: Any) -> int:
        raise DataError("no", why="no", fix="no")

    for change in (False, True):
        out = tmp_path / f"out-{change}"
        with monkeypatch.context() as patched:
            patched.setattr(pack_module, "write_index", fail)
            with pytest.raises(DataError):
                pack(tmp_path / "x.npy", out, Settings("tar", 30))
        if change:
            numpy.save(tmp_path / "x.npy", images() + 1)
        assert pack(tmp_path / "x.npy", out, Settings("tar", 30)).kept_shards == (
            0 if change else 5
        )
        assert numpy.array_equal(rows(out), images() + change)


def test_shares_are_joined(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", images())
    asked = order(tmp_path / "x.npy", tmp_path / "out", "tar", 30)
    for number in (3, 1, 2):
        with pytest.raises(StokerError):
            join(tmp_path / "out")
        pack_share(asked, journal.Share(number, 3))
    assert join(tmp_path / "out").samples == 10
    assert numpy.array_equal(rows(tmp_path / "out"), images())


# -- refused -----------------------------------------------------------------------------


def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path) -> None:
    for name, value, what in (
        ("object", numpy.array([{}, {}]), "no array of numbers"),
        ("fields", numpy.zeros(3, [("a", "i4"), ("b", "f4")]), "no array of numbers"),
        ("fortran", numpy.asfortranarray(images()), "column by column"),
        ("scalar", numpy.array(3), "is one number"),
    ):
        numpy.save(tmp_path / f"{name}.npy", value, allow_pickle=True)
        with pytest.raises(DataError, match=what):
            pack(tmp_path / f"{name}.npy", tmp_path / "out", Settings())
        assert not (tmp_path / "out").exists()
    numpy.save(tmp_path / "empty.npy", images(0))
    with pytest.raises(StokerError, match="has no samples"):
        pack(tmp_path / "empty.npy", tmp_path / "out", Settings())


def test_labels_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", images())
    for name, value, what in (
        ("short", numpy.arange(9), "do not belong together"),
        ("float", numpy.ones(10), "has no labels"),
        ("wide", numpy.ones((10, 3), "int64"), "has no labels"),
        ("large", numpy.full(10, 1 << 40), "too large"),
    ):
        numpy.save(tmp_path / f"{name}.npy", value)
        with pytest.raises(DataError, match=what):
            pack_order(order(tmp_path / "x.npy", tmp_path / "out", labels=tmp_path / f"{name}.npy"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="--labels does not belong"):
        pack_order(order(tmp_path / "folder", tmp_path / "out", labels=tmp_path / "x.npy"))


def test_an_array_that_changes_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy.save(tmp_path / "x.npy", images())
    real = os.pread

    def growing(descriptor: int, size: int, at: int) -> bytes:
        numpy.save(tmp_path / "x.npy", images(11))
        return real(descriptor, size, at)

    monkeypatch.setattr(os, "pread", growing)
    with pytest.raises(DataError, match="changed while it was read"):
        pack(tmp_path / "x.npy", tmp_path / "out", Settings())


@given(st.data())
@settings(max_examples=examples(60), suppress_health_check=KEEPS_FIXTURES)
def test_a_damaged_head_never_ends_in_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    whole = npy_head("<f4", (2, 3)) + bytes(24)
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = whole[:at] + data.draw(st.binary(max_size=6)) + whole[at + data.draw(st.integers(0, 4)) :]
    path = tmp_path / "x.npy"
    path.write_bytes(bad[: data.draw(st.integers(0, len(bad)))])
    out = tmp_path / f"out-{os.urandom(4).hex()}"
    try:
        pack(path, out, Settings())
    except StokerError:
        assert not out.exists()


@given(st.sampled_from(["|u1", "<f8", ">i4", "<U3"]), st.lists(st.integers(0, 1 << 40), max_size=5))
def test_heads_are_what_numpy_reads(dtype: str, shape: list[int]) -> None:
    head = npy_head(dtype, shape)
    assert len(head) % 64 == 0
    assert read_npy_head(io.BytesIO(head), "x") == (dtype, tuple(shape), len(head))
    file = io.BytesIO(head)
    version = numpy.lib.format.read_magic(file)
    assert version == (1, 0)
    assert numpy.lib.format.read_array_header_1_0(file) == (tuple(shape), False, numpy.dtype(dtype))


def test_the_command_packs_arrays(stoker: Stoker, tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", images())
    numpy.save(tmp_path / "y.npy", numpy.arange(10))
    done = stoker("pack", "x.npy", "out", "--labels", "y.npy")
    assert (done.returncode, done.stdout.split(" (")[0]) == (0, "packed 10 samples into 1 shard")
    assert stoker("ls", "out").stdout.startswith("00000000  npy 12  label 0\n")
