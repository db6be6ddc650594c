"""The index: opened at once, found by key, and damage is never taken for data."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from stoker.data import index as index_module
from stoker.data.index import INDEX_NAME, Index, IndexWriter, Part, Shard, replacing
from stoker.errors import DataError, FileError, StokerError

KEYS = ["a/0001", "a/00011", "b/0001", "0001", "ü", "bad\udcff", "x" * 300]


def write(folder: Path, keys: list[str] = KEYS, **facts: object) -> Path:
    (folder / "s.tar").write_bytes(bytes(10_000))
    writer = IndexWriter()
    for at, key in enumerate(keys):
        parts = [Part("jpg", 0, 10 * at, 10, at), Part("cls", 0, 10 * at, 1, 7, made=True)]
        writer.add(key, parts[: 1 + at % 2], at if at % 3 else None)
    path = folder / "index.stoker"
    writer.finish(path, [Shard.of(folder / "s.tar")], ["cat", "dog"], **facts)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    index = Index.open(write(tmp_path, container="tar"))
    assert len(index) == len(KEYS)
    assert [index.key(i) for i in range(len(index))] == KEYS
    assert [index.find(key) for key in KEYS] == list(range(len(KEYS)))
    assert index.parts(1) == [Part("jpg", 0, 10, 10, 1), Part("cls", 0, 10, 1, 7, made=True)]
    assert [index.label(0), index.label(1), index.label(-1)] == [None, 1, None]
    assert (index.label_names, index.header["container"]) == (["cat", "dog"], "tar")
    assert list(index.first) == [0, 1, 3, 4, 6, 7, 9, 10]
    index.check_columns()
    index.check_shards()
    with pytest.raises(KeyError):
        index.find("a/000")
    with pytest.raises(IndexError):
        index.key(len(KEYS))
    index.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["index.stoker", "s.tar"]


@settings(max_examples=examples(30))
@given(st.lists(st.text("ab/", max_size=5), unique=True))
def test_every_key_is_found_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str]
) -> None:
    index = Index.open(write(tmp_path_factory.mktemp("keys"), keys))
    assert [index.find(key) for key in keys] == list(range(len(keys)))
    for other in {"a", "ab", "b/", ""} - set(keys):
        with pytest.raises(KeyError):
            index.find(other)


def test_columns_that_do_not_fit_in_memory_go_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BUFFERED_ROWS", 3)
    keys = [f"{each:05d}" for each in range(1000)]
    index = Index.open(write(tmp_path, keys))
    assert [index.key(i) for i in range(1000)] == keys
    index.check_columns()


def test_a_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    path = write(tmp_path, KEYS[:3])
    whole = path.read_bytes()

    def told(index: Index) -> list[object]:
        return [(index.key(i), index.parts(i), index.label(i)) for i in range(len(index))]

    wanted = told(Index.open(path))
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            index = Index.open(path)
            index.check_columns()
        except DataError:
            continue
        assert told(index) == wanted


def test_a_cut_index_is_damaged_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError):
            Index.open(path)


def test_an_archive_that_changed_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    index = Index.open(write(tmp_path))
    archive = tmp_path / "s.tar"
    os.utime(archive, ns=(1, 1))
    index.check_shards()
    archive.write_bytes(b"x" + bytes(9_999))
    with pytest.raises(DataError, match="has changed since it was indexed"):
        index.check_shards()
    archive.write_bytes(bytes(9_999))
    with pytest.raises(DataError) as caught:
        index.check_shards()
    assert caught.value.why == "10,000 bytes then, 9,999 now"
    archive.unlink()
    with pytest.raises(DataError, match="cannot read"):
        index.check_shards()


def test_a_missing_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        Index.open(tmp_path / "index.stoker")
    assert "stoker index" in caught.value.fix


def test_what_is_no_index_is_told(tmp_path: Path) -> None:
    path = tmp_path / "index.stoker"
    for data in (b"", b"hello", b"STOKIDX\x09" + bytes(100)):
        path.write_bytes(data)
        with pytest.raises(StokerError):
            Index.open(path)


def test_only_the_index_of_others_archives_is_to_be_made_anew(tmp_path: Path) -> None:
    """An index that packing made has the labels and the checksums: made anew, it would lose them."""
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    for by_others in (True, False):
        with closing(IndexWriter()) as writer:
            writer.add("a", [Part("bin", 0, 0, 3, 0)])
            writer.finish(tmp_path / INDEX_NAME, [Shard("a.tar", 5, 0, 0)], by_others=by_others)
        with pytest.raises(DataError, match="has changed") as caught:
            Index.open(tmp_path / INDEX_NAME).check_shards()
        assert ("stoker index" in caught.value.fix) is by_others
        assert ("pack the data again" in caught.value.fix) is not by_others


def test_processes_of_two_nodes_write_two_files_until_one_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers, processes of different nodes often have the same number."""
    wanted = tmp_path / "plan.json"
    both = []
    for name in ("node1", "node2"):
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        both.append(replacing(wanted))
        both[-1].__enter__().write(b"whole")
    for each in both:
        each.__exit__(None)
        assert wanted.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [wanted]
