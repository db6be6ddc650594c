"""Parts of archives come as they are there, in C and in Python, mapped or not."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compiled import compiled
from made_data import pack, payload
from stoker.data import gather, plain
from stoker.data.gather import Gathered, Pool, Shards
from stoker.data.index import INDEX_NAME, Index
from stoker.data.mounts import mount_of, parse_mounts
from stoker.errors import DataError

COUNT = 30


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gather, "engine", plain if request.param == "plain" else compiled("_gather")
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [(f"{each:04}", {"bin": payload(each)}, None) for each in range(COUNT)]
    return pack(tmp_path_factory.mktemp("packed"), samples)


@pytest.fixture(params=[True, False], ids=["mapped", "pread"])
def shards(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shards]:
    return Shards(Index.open(folder / INDEX_NAME), is_mapped=request.param)  # type: ignore[return-value]


@pytest.mark.parametrize("parts", [[], [0], [7], [29, 3, 3, 0, 15], list(range(COUNT))])
def test_parts_come_in_the_order_asked_for(shards: Shards, parts: list[int]) -> None:
    found = shards.read(array("Q", parts))
    assert [bytes(each) for each in found] == [payload(each) for each in parts]
    assert bytes(found.buffer) == b"".join(payload(each) for each in parts)
    assert [bytes(shards.view(each)) for each in parts] == [payload(each) for each in parts]


def test_threads_may_read_at_the_same_time(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_OPEN_FILES", 2)
    wrong: list[int] = []

    def read(start: int) -> None:
        for turn in range(20):
            parts = [(start * 7 + turn * each) % COUNT for each in range(10)]
            found = shards.read(array("Q", parts))
            if [bytes(each) for each in found] != [payload(each) for each in parts]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=[each]) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_few_files_are_open_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_OPEN_FILES", 2)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    shards = Shards(Index.open(folder / INDEX_NAME), is_mapped=False)
    shards.read(array("Q", range(COUNT)))
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # noqa: PTH208


def test_a_child_reads_what_its_parent_had_open(shards: Shards) -> None:
    shards.read(array("Q", [1]))
    shards._lock.acquire()  # As another thread of the parent may, at this moment.
    child = os.fork()
    if not child:
        found = shards.read(array("Q", range(COUNT)))
        os._exit([bytes(each) for each in found] != [payload(each) for each in range(COUNT)])
    shards._lock.release()
    assert os.waitpid(child, 0)[1] == 0


class Pinned(Pool):
    """Memory of a GPU that another process has begun to use: CUDA refuses it to a child."""

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()

    def take(self, size: int) -> memoryview:
        if os.getpid() != self._pid:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return super().take(size)


def test_a_child_reads_into_memory_of_its_own(shards: Shards) -> None:
    shards._pool = Pinned()
    shards.read(array("Q", [1]))
    child = os.fork()
    if not child:
        status = 1
        try:
            found = shards.read(array("Q", range(COUNT)))
            status = [bytes(each) for each in found] != [payload(each) for each in range(COUNT)]
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("is_mapped", [True, False])
def test_an_archive_that_has_changed_is_refused(tmp_path: Path, is_mapped: bool) -> None:
    pack(tmp_path, [("a", {"bin": b"12345"}, None)])
    index = Index.open(tmp_path / INDEX_NAME)
    path = tmp_path / "shard-00000.tar"
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DataError, match="has changed since it was indexed") as caught:
        Shards(index, is_mapped).read(array("Q", [0]))
    assert caught.value.why == "10,240 bytes then, 600 now"
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        Shards(index, is_mapped).read(array("Q", [0]))


@pytest.mark.parametrize("is_mapped", [True, False])
def test_other_bytes_of_the_same_size_are_refused(tmp_path: Path, is_mapped: bool) -> None:
    pack(tmp_path, [("a", {"bin": b"12345"}, None)])
    path = tmp_path / "shard-00000.tar"
    os.utime(path, (1, 1))  # A copy has another time; its bytes are the same.
    index = Index.open(tmp_path / INDEX_NAME)
    assert bytes(Shards(index, is_mapped).read(array("Q", [0]))[0]) == b"12345"
    path.write_bytes(path.read_bytes().replace(b"12345", b"12346"))
    with pytest.raises(DataError) as caught:
        Shards(index, is_mapped).read(array("Q", [0]))
    assert caught.value.why == "its bytes are others"


def test_a_part_outside_of_its_file_is_refused_not_read() -> None:
    column = memoryview(array("Q", [90]))
    for size, expected in ((10, (plain.READY, 10, True)), (11, (plain.OUTSIDE, 0, True))):
        found = gather.engine.lay_out(
            array("Q", [100]), memoryview(array("I", [0])), column,
            memoryview(array("Q", [size])), array("Q", [0]), array("Q", [0]),
        )  # fmt: skip
        assert found == expected
    huge = memoryview(array("Q", [2**64 - 5]))
    found = gather.engine.lay_out(
        array("Q", [100]), memoryview(array("I", [0])), huge, memoryview(array("Q", [10])),
        array("Q", [0]), array("Q", [0]),
    )  # fmt: skip
    assert found == (plain.OUTSIDE, 0, True)


def test_numbers_that_do_not_exist_are_refused(shards: Shards) -> None:
    with pytest.raises(DataError, match="is damaged"):
        shards.read(array("Q", [1, COUNT]))
    index = shards.index
    with pytest.raises(IndexError):
        gather.engine.select(index.first, index.extension, array("Q", [COUNT]), 0, array("Q", [0]))


def test_memory_is_as_large_as_asked_and_can_be_written() -> None:
    for size in (0, 1, (2 << 20) - 1, 2 << 20, (2 << 20) + 1):
        made = gather.engine.memory(size)
        view = memoryview(made)
        assert len(made) == len(view) == size
        view[-1:] = b"x"[: len(view[-1:])]
    with pytest.raises((ValueError, OverflowError)):
        gather.engine.memory(-1)
    with pytest.raises((ValueError, MemoryError, OverflowError)):
        gather.engine.memory(2**63 - 1)


def test_parts_are_asked_for_ahead_while_reading_waits(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits, asked = gather.engine, [0, 0, 5, 0, 0, 0], []

    class Waiting:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def copy(self, *given: Any) -> int:
            real.copy(*given)
            asked.append(given[-2])
            return waits[len(asked) - 1]

        def read(self, *given: Any) -> tuple[int, int]:
            early, _ = real.read(*given)
            asked.append(given[-1])
            return early, waits[len(asked) - 1]

    monkeypatch.setattr(gather, "ASKED_BATCHES", 2)
    monkeypatch.setattr(gather, "engine", Waiting())
    for _ in waits:
        shards.read(array("Q", range(COUNT)))
    # The first one, as nothing is known; two after one that had to wait.
    assert asked == [True, False, False, True, True, False]


def test_a_buffer_is_used_again_when_nobody_looks_at_it() -> None:
    pool = Pool()
    first = pool.take(1000)
    part = Gathered(first, array("Q", [10, 1000]))[0]
    del first
    second = pool.take(1000)
    assert second.obj is not part.obj
    kept = id(part.obj)
    del part
    third = pool.take(990)
    assert id(third.obj) == kept


def test_slices_of_what_was_gathered() -> None:
    whole = Gathered(memoryview(b"abbccc"), array("Q", [1, 3, 6]))
    assert [bytes(each) for each in whole[1:]] == [b"bb", b"ccc"]
    assert bytes(whole[1:].buffer) == b"bbccc"
    assert bytes(whole[::2].buffer) == b"accc"
    assert bytes(whole[-1]) == b"ccc"
    assert bytes(whole[3:].buffer) == b""
    with pytest.raises(IndexError):
        _ = whole[3]


@pytest.mark.parametrize(
    ("sizes", "is_even"),
    [([], True), ([0, 0], True), ([4, 4], True), ([3, 5], False), ([0, 4], False), ([4, 0], False)],
)
def test_parts_of_one_size_are_told(tmp_path: Path, sizes: list[int], is_even: bool) -> None:
    samples = [(str(at), {"bin": bytes(size)}, None) for at, size in enumerate(sizes)]
    pack(tmp_path, samples)
    found = Shards(Index.open(tmp_path / INDEX_NAME)).read(array("Q", range(len(sizes))))
    assert found.is_even == is_even
    assert found[:1].is_even == is_even


def test_the_nearest_mount_counts() -> None:
    text = "/dev/a / ext4 rw 0 0\nfs:/x /home nfs4 rw 0 0\nt /home/my\\040disk tmpfs rw 0 0\n"
    folders = ("/home/me", "/home/my disk/x", "/homeless")
    mounts = [mount_of(Path(each), parse_mounts(text)) for each in folders]
    assert [each and each.kind for each in mounts] == ["nfs4", "tmpfs", "ext4"]
    assert mount_of(Path("/home"), []) is None
