"""Packed samples as a data set: whole, in order, in any process, decoded or as they are."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from array import array
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stoker
from compiled import compiled
from made_data import pack, payload
from stoker.data import gather, plain
from stoker.data.archive import index_archive
from stoker.data.formats import FORMATS
from stoker.data.index import Index, IndexWriter, Shard
from stoker.data.loading.dataset import Dataset
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack as pack_source
from stoker.data.pictures.decode import decoder, first_of
from stoker.errors import DataError, FileError, StokerError

real = gather._opened
COUNT = 10


def sample(number: int) -> dict[str, Any]:
    return {"bin": payload(number), "json": {"number": number}, "cls": number % 3}


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gather, "engine", plain if request.param == "plain" else compiled("_gather")
    )


@pytest.fixture(params=[True, False], ids=["mapped", "pread"])
def data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gather, "is_networked", lambda _: not request.param)
    samples = [
        (
            f"{each % 3}/{each:04}",
            {"bin": payload(each), "json": b'{"number": %d}' % each},
            each % 3,
        )
        for each in range(COUNT)
    ]
    return pack(tmp_path / "packed", samples, labels=3)


def test_samples_are_dicts_of_decoded_parts_with_their_label(data: Path) -> None:
    found = stoker.open(data)
    assert len(found) == COUNT
    assert list(found) == [sample(each) for each in range(COUNT)]
    assert found[-1] == sample(COUNT - 1)
    assert found.__getitems__([3, 1, 3]) == [sample(3), sample(1), sample(3)]
    assert found.__getitems__([]) == []
    assert (found.key(4), found.label(4), found.find("1/0004")) == ("1/0004", 1, 4)
    assert found.label_names == ["class 0", "class 1", "class 2"]
    assert found.metadata["samples"] == COUNT
    with pytest.raises(IndexError):
        _ = found[COUNT]


def test_parts_asked_for_come_alone_or_as_a_tuple(data: Path) -> None:
    assert stoker.open(data, parts="json")[2] == {"number": 2}
    assert stoker.open(data, parts=("cls", "bin"))[5] == (2, payload(5))
    with pytest.raises(DataError) as caught:
        stoker.open(data, parts="jsn")
    assert caught.value.why == "the parts are bin, json, cls"
    assert caught.value.fix == "parts='json'"


def test_without_decoding_parts_are_views_of_bytes(data: Path) -> None:
    found = stoker.open(data, decode=False)[3]
    assert found == {"bin": payload(3), "json": b'{"number": 3}', "cls": 0}
    assert isinstance(found["bin"], memoryview)


def test_a_view_outlives_its_data_set(data: Path) -> None:
    views = [stoker.open(data, parts="bin", decode=False)[each] for each in range(COUNT)]
    assert [bytes(each) for each in views] == [payload(each) for each in range(COUNT)]


def test_own_decoders_and_transforms(data: Path) -> None:
    found = stoker.open(data, parts="bin", decode={"bin": len}, transform=lambda size: -size)
    assert found[5] == -len(payload(5))


def test_slices_are_data_sets(data: Path) -> None:
    part = stoker.open(data, parts="bin")[2:9:2]
    assert isinstance(part, Dataset)
    assert list(part) == [payload(each) for each in (2, 4, 6, 8)]
    assert list(part[1:3]) == [payload(4), payload(6)]
    assert part.__getitems__([3, 0]) == [payload(8), payload(2)]
    assert part.key(1) == "1/0004"
    assert len(part[5:]) == 0


def test_batches_are_columns(data: Path) -> None:
    found = stoker.open(data, parts=("bin", "cls"), decode=False)
    assert found.is_plain
    first, second = found.batches([array("Q", [4, 0]), array("Q", [6])])
    assert [bytes(each) for each in first[0]] == [payload(4), payload(0)]
    assert first[1].tolist() == [1, 0]
    assert [bytes(each) for each in second[0]] == [payload(6)]
    assert not stoker.open(data).is_plain


def test_a_part_that_a_sample_lacks_is_left_out_or_refused(tmp_path: Path) -> None:
    pack(tmp_path, [("a", {"txt": b"1", "id": b"7"}, None), ("b", {"txt": b"2"}, None)])
    assert list(stoker.open(tmp_path)) == [{"txt": "1", "id": 7}, {"txt": "2"}]
    with pytest.raises(DataError, match="the sample `b` has no part `id`"):
        stoker.open(tmp_path, parts=("txt", "id"))[1]
    with pytest.raises(DataError, match="the sample `b` has no part `id`"):
        stoker.open(tmp_path, decode=False).batches([[0, 1]])


@pytest.mark.parametrize("container", FORMATS)
def test_labels_are_there_also_if_the_first_sample_has_none(tmp_path: Path, container: str) -> None:
    for each in range(3):
        (tmp_path / f"{each}.txt").write_text(str(each))
    (tmp_path / "t.csv").write_text("path,label\n0.txt,\n1.txt,5\n2.txt,7\n")
    pack_source(tmp_path / "t.csv", tmp_path / "out", Settings(container))
    data = stoker.open(tmp_path / "out", decode={"txt": bytes})
    assert list(data) == [{"txt": b"0"}, {"txt": b"1", "cls": 5}, {"txt": b"2", "cls": 7}]
    assert stoker.open(tmp_path / "out", parts=("txt", "cls"))[2] == ("2", 7)
    with pytest.raises(DataError, match="`0` has no part `cls`"):
        stoker.open(tmp_path / "out", parts="cls").batches([[1, 0]])


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    pack(tmp_path, [("a/b", {"json": b"{"}, None)])
    with pytest.raises(DataError, match=r"cannot decode `a/b\.json`") as caught:
        stoker.open(tmp_path)[0]
    assert caught.value.why.startswith("JSONDecodeError: ")


def test_damage_is_found_where_asked_for(tmp_path: Path) -> None:
    pack(tmp_path, [("a", {"bin": b"x" * 9000}, None), ("b", {"bin": b"y" * 9000}, None)])
    path = tmp_path / "shard-00000.tar"
    before = path.stat()
    stoker.open(tmp_path, verify=True)[1]
    raw = bytearray(path.read_bytes())
    raw[7000] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for samples in ([0], [1, 0]):
        stoker.open(tmp_path).__getitems__(samples)
        with pytest.raises(DataError, match=r"a sample in .* is damaged"):
            stoker.open(tmp_path, verify=True).__getitems__(samples)


def test_any_damage_of_the_index_is_found_or_harmless(tmp_path: Path) -> None:
    pack(tmp_path, [(each, {"txt": each.encode()}, 0) for each in ("a", "b")], labels=1)
    path = tmp_path / "index.stoker"
    good, expected = path.read_bytes(), list(stoker.open(tmp_path))
    start = good.index(b"}") + 1
    for at in range(start, len(good)):
        raw = bytearray(good)
        raw[at] ^= 0x81
        path.write_bytes(raw)
        # As a rule: read without a crash, whatever comes.
        with suppress(StokerError):
            list(stoker.open(tmp_path))
            stoker.open(tmp_path, decode=False).batches([[0, 1]])
        # Where asked for: nothing else than what was packed.
        with suppress(StokerError):
            assert list(stoker.open(tmp_path, verify=True)) == expected


def test_one_archive_is_opened_by_its_name(data: Path) -> None:
    assert len(stoker.open(data / "index.stoker")) == COUNT
    one = data / "shard-00000.tar"
    index_archive(one)
    assert [each["json"]["number"] for each in stoker.open(one)] == [0, 1, 2, 3]


def test_what_is_no_data_set_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("some.tar", "train.csv", "some.tar.gz"):
        (tmp_path / name).write_bytes(b"")
    expected = {
        "nothing": "check the name",
        "images": f"stoker pack {tmp_path}/images OUT",
        "some.tar": f"stoker index {tmp_path}/some.tar",
        "some.tar.gz": f"stoker pack {tmp_path}/some.tar.gz OUT",
        "train.csv": f"stoker pack {tmp_path}/train.csv OUT",
    }
    for name, fix in expected.items():
        with pytest.raises(FileError) as caught:
            stoker.open(tmp_path / name)
        assert caught.value.fix == fix


def test_what_was_packed_in_part_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / ".stoker-pack").mkdir()
    with pytest.raises(FileError, match="is packed in part only") as caught:
        stoker.open(tmp_path)
    assert caught.value.fix.startswith(f"stoker pack SRC {tmp_path}, as it was given")


def test_what_is_not_there_is_named(data: Path) -> None:
    found = stoker.open(data)
    with pytest.raises(IndexError, match="sample 1,234 of 10"):
        _ = found[1234]
    with pytest.raises(TypeError, match=r"data\[data\.find\('1/0004'\)\]"):
        _ = found["1/0004"]  # type: ignore[index]
    for key in ("1/0004", "none"):
        with pytest.raises(KeyError, match=key):
            found[:3].find(key)


def test_whether_to_map_can_be_said(data: Path) -> None:
    for is_mapped in (True, False):
        found = stoker.open(data, mapped=is_mapped)
        assert found.shards.is_mapped == is_mapped
        assert list(found) == [sample(each) for each in range(COUNT)]
        assert pickle.loads(pickle.dumps(found)).shards.is_mapped == is_mapped


# -- archives that change, and many of them -------------------------------------------------


def large(folder: Path) -> tuple[Path, list[bytes]]:
    contents = [bytes([each]) * 20_000 for each in range(4)]
    pack(folder, [(str(each), {"bin": data}, None) for each, data in enumerate(contents)])
    return folder / "shard-00000.tar", contents


@pytest.mark.parametrize("is_mapped", [True, False])
def test_an_open_archive_that_is_replaced_stays_what_it_was(
    tmp_path: Path, is_mapped: bool
) -> None:
    path, contents = large(tmp_path)
    found = stoker.open(tmp_path, parts="bin", mapped=is_mapped)
    assert found[0] == contents[0]
    other = tmp_path / "other"
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)
    assert found.__getitems__([0, 1, 2, 3]) == contents
    with pytest.raises(DataError, match="has changed since it was indexed"):
        stoker.open(tmp_path, mapped=is_mapped)[0]


def test_an_archive_that_is_made_shorter_is_noticed_where_it_is_read(tmp_path: Path) -> None:
    path, contents = large(tmp_path)
    found = stoker.open(tmp_path, parts="bin", mapped=False)
    assert found[0] == contents[0]
    os.truncate(path, 30_000)
    assert found[0] == contents[0]
    with pytest.raises(DataError, match="ends before a sample does"):
        found.__getitems__([0, 3])


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [(f"{each:04}", {"bin": b"%d" % each}, None) for each in range(1000)]
    return pack(tmp_path_factory.mktemp("thousand"), samples, per_shard=1)


@pytest.mark.parametrize(("is_mapped", "limit"), [(True, 64), (False, 600)])
def test_a_thousand_archives_need_few_open_files(
    thousand: Path, is_mapped: bool, limit: int
) -> None:
    if gather.engine is plain and is_mapped:
        pytest.skip("Python keeps a file open for each mapping")
    code = (
        "import resource, sys, stoker\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        f"data = stoker.open({str(thousand)!r}, parts='bin', decode=False, mapped={is_mapped})\n"
        "loader = stoker.Loader(data, 200, True, num_workers=2)\n"
        "print(sorted(int(bytes(each)) for batch in loader for each in batch)"
        " == list(range(1000)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_only_the_archives_of_a_batch_are_opened_for_it(
    thousand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def note(path: str) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(gather, "_opened", note)
    found = stoker.open(thousand, decode=False)
    assert opened == []
    found.batches([array("Q", range(50, 60))])
    assert len(opened) == 10


def test_no_samples_are_a_data_set_too(tmp_path: Path) -> None:
    found = stoker.open(pack(tmp_path, []))
    assert len(found) == 0
    assert list(found) == []


def test_it_can_be_pickled_also_a_slice(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pickle.loads(pickle.dumps(stoker.open(data, parts="bin")[4:]))
    monkeypatch.chdir("/")
    assert list(found) == [payload(each) for each in range(4, COUNT)]


def read_all(found: Dataset, answers: Any) -> None:
    answers.put([each["json"]["number"] for each in found])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_it(data: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    found = stoker.open(data)
    assert found[0] == sample(0)
    answers = context.Queue()
    child = context.Process(target=read_all, args=(found, answers))
    child.start()
    assert answers.get(timeout=300) == list(range(COUNT))
    child.join()
    assert child.exitcode == 0


# -- decoders ---------------------------------------------------------------------------


def test_decoders_go_by_the_last_extension() -> None:
    assert decoder("meta.json")(memoryview(b"[1]")) == [1]
    assert decoder("TXT")(memoryview("ä".encode())) == "ä"
    assert decoder("cls")(memoryview(b"12\n")) == 12
    assert decoder("xyz")(memoryview(b"raw")) == b"raw"
    assert decoder("left.xyz", {"xyz": len})(memoryview(b"raw")) == 3
    assert decoder("xyz", {".xyz": len})(memoryview(b"raw")) == 3


def test_the_first_library_that_is_there_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "missing_one", None)
    monkeypatch.setitem(sys.modules, "present_one", SimpleNamespace(name="present"))
    choices = {
        each: lambda module: lambda data: module.name for each in ("missing_one", "present_one")
    }
    assert first_of(choices, "a JPEG")(memoryview(b"")) == "present"


def test_no_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path, [("a", {"npy": json.dumps([]).encode()}, None)])
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(DataError) as caught:
        stoker.open(tmp_path)[0]
    assert str(caught.value) == (
        "error: cannot decode a .npy part\n"
        "  why: `numpy` is not installed in this Python\n"
        "  fix: pip install numpy, or stoker.open(…, decode=False) for the bytes"
    )


def test_arrays_of_fixed_shape_need_no_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    samples = [(str(each), {"raw": array("H", [each] * 6).tobytes()}, None) for each in range(5)]
    pack(tmp_path, samples, arrays={"raw": {"dtype": "<u2", "shape": [2, 3]}})
    found = stoker.open(tmp_path, parts="raw")
    assert found.is_plain
    assert found.batches([[4, 1]])[0].tolist() == [[[each] * 3] * 2 for each in (4, 1)]


def test_an_array_of_another_size_than_promised_is_refused(tmp_path: Path) -> None:
    samples = [(str(size), {"raw": b"x" * size}, None) for size in (4, 3, 5, 3)]
    pack(tmp_path, samples, arrays={"raw": {"dtype": "uint8", "shape": [2, 2]}})
    found = stoker.open(tmp_path, parts="raw")
    # The second pair has as many bytes as it should, and the third is even.
    for pair in ([0, 1], [1, 2], [1, 3]):
        with pytest.raises(DataError, match="is damaged"):
            found.batches([pair])


def test_a_part_that_packing_added_to_some_samples_is_found_in_all(tmp_path: Path) -> None:
    """Two kinds of parts with one extension: the user's own, and ours."""
    first, second = (pack(tmp_path / each, [(each, {"id": b"7"}, None)]) for each in "ab")
    writer, shards = IndexWriter(), []
    for number, folder in enumerate((first, second)):
        index = Index.open(folder / "index.stoker")
        made = [each._replace(shard=number, made=bool(number)) for each in index.parts(0)]
        writer.add(folder.name, made)
        path = (folder / "shard-00000.tar").rename(tmp_path / f"{number}.tar")
        shards.append(Shard.of(path))
    writer.finish(tmp_path / "index.stoker", shards)
    assert list(stoker.open(tmp_path)) == [{"id": 7}, {"id": 7}]
    assert len(stoker.open(tmp_path, decode=False).batches([[1, 0]])[0]["id"]) == 2
