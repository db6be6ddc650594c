"""HDF5: h5py reads what we write, we find what it writes, and h5py is not needed to read packed data."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from effort import examples
from made_data import members_of
from stoker.data.archive import index_archive
from stoker.data.formats import scan
from stoker.data.formats.hdf5 import MAX_KINDS, HDF5Writer
from stoker.data.index import Index
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.data.sample import Content, join_name, split_name
from stoker.data.verify import verify
from stoker.errors import DataError, StokerError

h5py: Any = pytest.importorskip("h5py")
numpy: Any = pytest.importorskip("numpy")

Parts = dict[str, bytes]


def write(path: Path, samples: list[tuple[str, Parts, int | None]]) -> Path:
    with path.open("wb") as file:
        out = HDF5Writer(file)
        for key, parts, label in samples:
            out.add(key, [Content(name, len(data), data) for name, data in parts.items()], label)
        out.finish()
        out.close()
    return path


def test_h5py_reads_ours(tmp_path: Path) -> None:
    samples: list[tuple[str, Parts, int | None]] = [
        ("a/1", {"jpg": b"xyz", "json": b"{}"}, 3),
        ("a/2", {"jpg": b""}, None),
        ("b", {"": b"q", ".": b"dot", "%": b"percent"}, -1),
    ]
    with h5py.File(write(tmp_path / "a.h5", samples), "r") as file:
        assert sorted(file) == ["bytes", "keys", "labels", "parts"]
        assert [each.decode() for each in file["keys"]] == ["a/1", "a/2", "b"]
        assert file["labels"][:].tolist() == [3, -(2**31), -1]
        assert sorted(file["parts"]) == ["%", "%%", "%.", "jpg", "json"]
        start, end = file["parts/jpg"][0]
        assert file["bytes"][start:end].tobytes() == b"xyz"
        start, end = file["parts/json"][1]
        assert file["bytes"][start:end].tobytes() == b""
    told = {join_name(key, name): data for key, parts, _ in samples for name, data in parts.items()}
    assert members_of(tmp_path / "a.h5") == told
    assert [each.label for each in scan(tmp_path / "a.h5")] == [3, 3, None, -1, -1, -1]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20)


@settings(max_examples=examples(60))
@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=12))
def test_any_names_and_bytes_are_told_the_same_by_h5py(files: dict[str, bytes]) -> None:
    grouped: dict[str, Parts] = {}
    for name, data in files.items():
        key, extension = split_name(name)
        grouped.setdefault(key, {})[extension] = data
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.h5", [(key, each, None) for key, each in grouped.items()])
        assert members_of(path) == files
        with h5py.File(path, "r") as file:
            assert file["bytes"][:].tobytes() == b"".join(
                data for each in grouped.values() for data in each.values()
            )
            assert file["keys"].shape == (len(grouped),)


def test_more_samples_than_are_read_at_once(tmp_path: Path) -> None:
    samples: list[tuple[str, Parts, int | None]] = [
        (f"{each:05d}", {"txt" if each % 3 else "cap": b"%d" % each}, each) for each in range(9000)
    ]
    path = write(tmp_path / "a.h5", samples)
    assert [(each.key, each.label) for each in scan(path)] == [(key, at) for key, _, at in samples]
    assert members_of(path)["08997.cap"] == b"8997"


def test_too_many_kinds_of_parts_are_refused(tmp_path: Path) -> None:
    samples: list[tuple[str, Parts, int | None]] = [
        ("a", {f"{each}": b"" for each in range(MAX_KINDS + 1)}, None)
    ]
    with (tmp_path / "a.h5").open("wb") as file:
        out = HDF5Writer(file)
        with pytest.raises(DataError, match="more than 256 kinds"):
            out.add("a", [Content(name, 0, b"") for name in samples[0][1]], None)
        out.close()


TYPES = ["|u1", "|i1", "<i2", ">i2", "<u4", "<i8", "<f2", "<f4", "<f8", ">f8", "|b1", "|S5"]


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_have_their_type_and_shape(dtype: str, tmp_path: Path) -> None:
    rows = numpy.arange(24).reshape(4, 3, 2).astype(dtype)
    path = tmp_path / "a.h5"
    with path.open("wb") as file:
        out = HDF5Writer(file)
        place = out.add_array("x", dtype, (3, 2), 4, [rows[:1].tobytes(), rows[1:].tobytes()])
        out.add_array("labels", "<i8", (), 4, [numpy.arange(4).astype("<i8").tobytes()])
        out.finish()
        out.close()
    with h5py.File(path, "r") as file:
        assert file["x"].dtype.str == dtype
        assert (file["x"][:] == rows).all()
        assert file["x"].id.get_offset() == place
        assert file["x"].chunks is None
    assert [(each.extension, each.offset, each.label) for each in scan(path)] == [
        ("x", place + each * rows[0].nbytes, each) for each in range(4)
    ]


def test_a_type_that_hdf5_lacks_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.h5").open("wb") as file:
        out = HDF5Writer(file)
        with pytest.raises(DataError, match="no numbers of the type `<c8`"):
            out.add_array("x", "<c8", (), 1, [bytes(8)])
        out.close()


# -- files of others ---------------------------------------------------------------------


def test_arrays_of_others_are_indexed_and_read(tmp_path: Path) -> None:
    images = numpy.random.default_rng(0).integers(0, 255, (50, 8, 6), dtype="u1")
    for libver in ("earliest", "latest"):
        path = tmp_path / f"{libver}.h5"
        with h5py.File(path, "w", libver=libver, userblock_size=512) as file:
            file["images"] = images
            file["labels"] = numpy.arange(50) % 10
            file["meta/mean"] = 0.5
        assert index_archive(path) == 50
        data = stoker.open(path)
        assert data.key(7) == f"{libver}/00000007"
        assert data.label(7) == 7
        assert (numpy.asarray(data[7]["images"]) == images[7]).all()
        assert Index.open(f"{path}.stoker").header["arrays"] == {
            "images": {"dtype": "|u1", "shape": [8, 6]}
        }
        assert list(verify(path)) == []


def test_arrays_of_several_files_are_one_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            file["x"] = numpy.full((3, 4), ord(name), "<f4")
            file["same"] = numpy.zeros((3, 2 if name == "a" else 5))
    assert index_archive(folder) == 6
    assert set(Index.open(folder / "index.stoker").header["arrays"]) == {"x"}
    assert numpy.asarray(stoker.open(folder, parts="x")[4]).tolist() == [ord("b")] * 4


def chunked(file: Any) -> None:
    file.create_dataset("bad", data=numpy.zeros((9, 9)), chunks=(3, 3))


def compressed(file: Any) -> None:
    file.create_dataset("bad", data=numpy.zeros((9, 9)), compression="gzip")


def variable(file: Any) -> None:
    file.create_dataset("bad", data=["a", "bc"], dtype=h5py.string_dtype())


def records(file: Any) -> None:
    file["bad"] = numpy.zeros(3, dtype=[("a", "i4"), ("b", "f8")])


def unequal(file: Any) -> None:
    file["bad"], file["x_test"] = numpy.zeros((9, 2)), numpy.zeros((5, 2))


def unwritten(file: Any) -> None:
    file.create_dataset("bad", (4, 5), "f4")


@pytest.mark.parametrize(
    ("make", "why"),
    [(chunked, "in pieces"), (compressed, "gzip"), (variable, "no fixed size"),
     (records, "records"), (unequal, "bad 9, x_test 5"), (unwritten, "never written")],
)  # fmt: skip
def test_what_has_no_place_in_the_file_is_refused_by_name(
    make: Callable[[Any], None], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file)
    with pytest.raises(DataError, match="cannot be indexed") as caught:
        index_archive(path)
    assert why in caught.value.why
    assert "bad" in caught.value.why
    assert caught.value.fix


def test_an_empty_file_has_no_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    with pytest.raises(StokerError, match="has no samples"):
        index_archive(tmp_path / "a.h5")


# -- without h5py ------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["h5py"] = None
from pathlib import Path
from stoker.commands import main
src, out = sys.argv[1:3]
assert main(["pack", src, out, "--format", "hdf5"]) == 0
assert main(["verify", out]) == 0
assert main(["unpack", out, out + "-back"]) == 0
import os, stoker
data = stoker.open(out, decode=False)
first = bytes(data[0]["bin"])
if (child := os.fork()) == 0:
    os._exit(bytes(data[0]["bin"]) != first)
assert os.waitpid(child, 0)[1] == 0
Path(out + ".npy").write_bytes(b"\\x93NUMPY\\1\\0v\\0" + repr({"descr": "|u1", "fortran_order": False, "shape": (4, 6)}).encode().ljust(117) + b"\\n" + bytes(24))
assert main(["pack", out + ".npy", out + "-rows", "--format", "hdf5"]) == 0
assert main(["verify", out + "-rows"]) == 0
print(main(["index", sys.argv[3]]))
"""


def test_packed_data_needs_no_h5py_and_others_say_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.bin").write_bytes(b"a" * 1000)
    with h5py.File(tmp_path / "others.h5", "w") as file:
        file["x"] = numpy.zeros((2, 2))
    words = [str(tmp_path / each) for each in ("src", "out", "others.h5")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["1"], done.stderr
    assert "pip install h5py" in done.stderr
    assert (tmp_path / "out-back/a.bin").read_bytes() == b"a" * 1000


# -- damage ------------------------------------------------------------------------------


def test_flipped_bytes_are_found_or_harmless(tmp_path: Path) -> None:
    flip_and_verify(tmp_path, 9)


@pytest.mark.slow
def test_every_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    flip_and_verify(tmp_path, 1)


def flip_and_verify(tmp_path: Path, step: int) -> None:
    """Flip all bytes that are not zero, and each so many of the others."""
    source, out = tmp_path / "src", tmp_path / "out"
    for name in ("a/1.txt", "b/2.txt"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_bytes(name.encode() * 5)
    pack(source, out, Settings("hdf5"))
    shard, index = out / "shard-00000.h5", Index.open(out / "index.stoker")
    whole = shard.read_bytes()
    covered = {
        at
        for row in range(len(index.offset))
        for at in range(index.offset[row], index.offset[row] + index.size[row])
    }
    used = {at for at, byte in enumerate(whole) if byte}
    for at in sorted(used | set(range(0, len(whole), step))):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        problems = list(verify(out))
        if at in covered:
            assert any(each.key and "bytes have changed" in each.why for each in problems)
        elif not problems:  # Between what is used: h5py reads the same.
            assert whole[at] == 0
            assert members_of(shard) == {"a/1.txt": b"a/1.txt" * 5, "b/2.txt": b"b/2.txt" * 5}
    shard.write_bytes(whole)
    assert list(verify(out)) == []


def test_a_cut_file_is_damaged(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.h5", [("a", {"txt": b"1" * 100}, 1)]).read_bytes()
    for size in range(0, len(whole), 17):
        (tmp_path / "a.h5").write_bytes(whole[:size])
        with pytest.raises(DataError, match="is damaged"):
            list(scan(tmp_path / "a.h5"))
