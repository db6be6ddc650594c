"""LMDB: the lmdb package reads and goes on with what we write, and we find what it writes."""

from __future__ import annotations

import random
import struct
import tempfile
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
from stoker.data.formats.lmdb import MAX_VALUE, PAGE, LMDBWriter, _branch
from stoker.data.index import Index
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.data.sample import Content, encode, split_name
from stoker.data.verify import verify
from stoker.errors import DataError

lmdb: Any = pytest.importorskip("lmdb")


def write(path: Path, files: dict[str, bytes]) -> Path:
    """Write files; check that each lies where the writer says."""
    with path.open("wb") as file:
        out = LMDBWriter(file)
        places = []
        for name, data in files.items():
            key, extension = split_name(name)
            places += out.add(key, [Content(extension, len(data), data)], None)
        late = out.finish()
        offsets = [each.offset for each in places] if late is None else list(late)
        out.close()
    whole = path.read_bytes()
    assert [whole[at : at + each.size] for at, each in zip(offsets, places, strict=True)] == list(
        files.values()
    )
    assert {each.offset for each in places} <= {*offsets, -1}
    return path


def told(path: Path) -> dict[str, bytes]:
    """Return what the lmdb package reads, by walking and by asking for each."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        walked = {key.decode("utf-8", "surrogateescape"): value for key, value in txn.cursor()}
        assert walked == {each: txn.get(encode(each)) for each in walked}
        assert env.stat()["entries"] == len(walked)
    return walked


# Around 2,000 bytes a value no longer fits into a leaf; around 4,080 not into one page.
SIZES = st.one_of(
    st.integers(0, 50), st.integers(1950, 2100), st.integers(4060, 4100), st.just(20_000)
)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=100
).filter(lambda name: 0 < len(encode(name)) < 500)


@settings(max_examples=examples(80))
@given(st.dictionaries(NAMES, SIZES, max_size=60))
def test_any_names_and_sizes_are_read_the_same_by_lmdb(sizes: dict[str, int]) -> None:
    files = {name: bytes([at % 256]) * size for at, (name, size) in enumerate(sizes.items())}
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.lmdb", files)
        assert told(path) == members_of(path) == files
        assert [each.name for each in path.parent.iterdir()] == ["a.lmdb"]


@pytest.mark.parametrize("size", [10, 300, 3000])
def test_a_tree_of_several_levels(size: int, tmp_path: Path) -> None:
    chance = random.Random(size)
    files = {
        "x" * chance.randrange(60) + f"/{each}": chance.randbytes(chance.randrange(size))
        for each in range(4000)
    }
    path = write(tmp_path / "a.lmdb", files)
    assert told(path) == members_of(path) == files
    # Other writers go on with it, and what they leave is found: pages freed, split and joined.
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as env:
        for _ in range(3):
            with env.begin(write=True) as txn:
                for each in range(500):
                    txn.put(b"new/%d/%d" % (chance.randrange(9), each), bytes(each * 9))
                for name in chance.sample(sorted(files), 1000):
                    txn.delete(encode(name))
    assert members_of(path) == told(path)


def test_an_empty_environment(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", {})
    assert told(path) == members_of(path) == {}


def test_a_large_value_streams_through(tmp_path: Path) -> None:
    with (tmp_path / "a.lmdb").open("wb") as file:
        out = LMDBWriter(file)
        content = Content("bin", 5 << 20, None, lambda: iter([bytes(1 << 20)] * 5))
        assert out.add("a", [content], None)[0].offset == 2 * PAGE + 16
        assert out.finish() is None
        out.close()
    assert told(tmp_path / "a.lmdb") == {"a.bin": bytes(5 << 20)}


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [("n" * 512, 1, "has 512 bytes"), ("", 1, "has 0 bytes"), ("a", MAX_VALUE + 1, "more than")],
)
def test_what_lmdb_cannot_hold_is_refused(name: str, size: int, why: str, tmp_path: Path) -> None:
    with (tmp_path / "a.lmdb").open("wb") as file:
        out = LMDBWriter(file)
        with pytest.raises(DataError, match="does not fit into LMDB") as caught:
            out.add(name, [Content("", size, b"")], None)
        out.close()
    assert why in caught.value.why
    assert caught.value.fix == "--format tar"


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.lmdb").open("wb") as file:
        out = LMDBWriter(file)
        for _ in range(2):
            out.add("a", [Content("txt", 1, b"1")], None)
        with pytest.raises(DataError, match=r"`a.txt` is there twice"):
            out.finish()
        out.close()


def test_pages_beyond_32_bits_are_numbered_right() -> None:
    number = 5 << 33 | 7
    low, middle, high = struct.unpack_from("<HHH", _branch(number, b"x"))
    assert low | middle << 16 | high << 32 == number


# -- environments of others --------------------------------------------------------------


def test_an_environment_in_a_folder_is_indexed_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "train_lmdb"
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for each in range(300):
            txn.put(b"%06d.jpg" % each, b"%d" % each * (each * 20))
            txn.put(b"%06d.cls" % each, b"%d" % (each % 10))
    assert index_archive(folder) == 300
    data = stoker.open(folder, decode=False)
    assert len(data) == 300
    assert bytes(data[250]["jpg"]) == b"250" * 5000
    assert data.label(23) == 3
    assert list(verify(folder)) == []


def test_named_databases_are_folders(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    with lmdb.open(str(path), subdir=False, max_dbs=4, map_size=1 << 24) as env:
        for name in (b"images", b"labels"):
            inner = env.open_db(name)
            with env.begin(write=True, db=inner) as txn:
                txn.put(b"0001", name * 600)
    assert members_of(path) == {"images/0001": b"images" * 600, "labels/0001": b"labels" * 600}


def test_several_values_for_a_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    with lmdb.open(str(path), subdir=False, max_dbs=4, map_size=1 << 24) as env:
        inner = env.open_db(b"d", dupsort=True)
        with env.begin(write=True, db=inner) as txn:
            txn.put(b"a", b"1")
            txn.put(b"a", b"2")
    with pytest.raises(DataError, match="cannot be indexed") as caught:
        list(scan(path))
    assert "several values" in caught.value.why


# -- damage ------------------------------------------------------------------------------


def packed(tmp_path: Path) -> tuple[Path, Path, dict[str, bytes]]:
    source, out = tmp_path / "src", tmp_path / "out"
    files = {"a.txt": b"a" * 50, "b.bin": b"b" * 3000, "c.txt": b""}
    source.mkdir()
    for name, data in files.items():
        (source / name).write_bytes(data)
    pack(source, out, Settings("lmdb"))
    return out, out / "shard-00000.lmdb", files


def flip_and_verify(tmp_path: Path, places: list[int] | None) -> None:
    out, shard, files = packed(tmp_path)
    whole, index = shard.read_bytes(), Index.open(out / "index.stoker")
    covered = {
        at
        for row in range(len(index.offset))
        for at in range(index.offset[row], index.offset[row] + index.size[row])
    }
    for at in range(len(whole)) if places is None else places:
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        problems = list(verify(out))
        if at in covered:
            assert any(each.key and "bytes have changed" in each.why for each in problems)
        elif not problems:
            assert members_of(shard) == files, at
    shard.write_bytes(whole)
    assert list(verify(out)) == []


def test_flipped_bytes_are_found_or_harmless(tmp_path: Path) -> None:
    # All that is no filling, and some of that.
    heads = [at for page in range(4) for at in range(page * PAGE, page * PAGE + 160)]
    flip_and_verify(
        tmp_path, sorted({*heads, *range(0, 4 * PAGE, 61), *range(4 * PAGE - 140, 4 * PAGE)})
    )


@pytest.mark.slow
def test_every_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    flip_and_verify(tmp_path, None)


def test_a_cut_environment_is_damaged(tmp_path: Path) -> None:
    _, shard, _ = packed(tmp_path)
    whole = shard.read_bytes()
    for size in range(0, len(whole), 37):
        shard.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is damaged"):
            list(scan(shard))
