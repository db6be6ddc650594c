"""The part of packing that is in C: the same as its twin in Python, and no crash on odd input."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled import compiled
from stoker.data.block import NO_LABEL, Block
from stoker.data.packing import bulk
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.data.sample import File, Sample
from stoker.data.verify import verify
from stoker.errors import StokerError

FULL = 1 << 16


@pytest.fixture(params=["compiled", "plain"])
def _twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    intake = compiled("_intake") if request.param == "compiled" else None
    monkeypatch.setattr(bulk, "intake", intake)


@given(st.binary(max_size=600), st.integers(1, 40), st.integers(0, 63), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(data: bytes, times: int, start: int, before: int) -> None:
    whole = (data * times)[start:]
    crc32 = compiled("_intake").crc32
    assert crc32(whole) == zlib.crc32(whole)
    assert crc32(whole, before) == zlib.crc32(whole, before)


def samples_of(folder: Path, sizes: list[int]) -> list[Sample]:
    found = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        path.write_bytes(bytes([number + 1]) * size)
        found.append(Sample(f"ä{number}", (File("bin", str(path)),), number - 1))
    return found


def run(samples: list[Any], size: int) -> tuple[int, Block, bytes]:
    """Write samples into a buffer of a size; what is behind it must stay as it is."""
    buffer = bytearray(b"\xaa" * (FULL + 64))
    with memoryview(buffer) as view:
        end, columns = compiled("_intake").tar_samples(samples, view[:size])
    assert buffer[size:] == b"\xaa" * (FULL + 64 - size)
    return end, Block.load(columns), bytes(buffer[:end])


def test_a_buffer_of_any_size_is_kept_to(tmp_path: Path) -> None:
    samples = samples_of(tmp_path, [0, 1, 511, 512, 513, 2000])
    end, block, whole = run(samples, FULL)
    assert (len(block.labels), end) == (6, len(whole))
    assert [row[:2] for row in block.rows()] == [(f"ä{each}", each - 1) for each in range(6)]
    for size in range(0, end + 1100, 37):
        stop, part, written = run(samples, size)
        assert whole.startswith(written)
        assert stop <= size
        assert list(part.rows()) == list(block.cut(0, len(part.labels)).rows())


@pytest.mark.parametrize(
    "odd",
    [
        1, "a", (), ("a", ()), ("a", (), None), ("a", ("x",), None), ("a", (("x", "y"),), None),
        (b"a", (File("bin", "PATH"),), None), ("a", (File("bin", "PATH"),), "1"),
        ("a", (File("bin", "PATH"),), 2**31), ("a", (File("bin", "PATH"),), 2**70),
        ("a", (File("bin", "PATH"),), NO_LABEL), ("a\0b", (File("bin", "PATH"),), None),
        ("a", (File("b\0n", "PATH"),), None), ("a", (File("bin", "PATH\0"),), None),
        ("\ud800", (File("bin", "PATH"),), None), ("a", (File("bin", "\ud800"),), None),
        ("", (File("", "PATH"),), None), ("a" * 300, (File("bin", "PATH"),), None),
        ("a", (File("x" * 5000, "PATH"),), None), ("a", (File("cls", "PATH"),), 1),
        ("a", (File("bin", "PATH", 0, 1),), None), ("a", (File("bin", "/nowhere"),), None),
        ("a", (File("bin", "/dev/zero"),), None), ("a", (File("bin", "/"),), None),
        ("a", (File("bin", ""),), None), ("a", (File("bin", "PATH"), File("b", "/nowhere")), 1),
    ],
)  # fmt: skip
def test_what_is_odd_is_left_with_all_that_comes_after(odd: Any, tmp_path: Path) -> None:
    first, last = samples_of(tmp_path, [3, 4])
    path = first.files[0].path
    if isinstance(odd, tuple) and len(odd) == 3:
        files = tuple(
            each._replace(path=each.path.replace("PATH", path)) if isinstance(each, File) else each
            for each in odd[1]
        )
        odd = (odd[0], files, odd[2])
    end, block, _ = run([first, odd, last], FULL)
    # A file and its label: two headers, two blocks.
    assert (len(block.labels), end) == (1, 2048)
    assert list(block.rows()) == list(run([first], FULL)[1].rows())


def test_what_is_no_list_or_no_buffer_is_refused() -> None:
    intake = compiled("_intake")
    wrongs: list[tuple[Any, ...]] = [((), bytearray(9)), ([], b"123"), ([],), ()]
    for wrong in wrongs:
        with pytest.raises((TypeError, BufferError)):
            intake.tar_samples(*wrong)


def test_many_kinds_of_parts_are_told_apart(tmp_path: Path) -> None:
    path = str(samples_of(tmp_path, [1])[0].files[0].path)
    kinds = [f"x{each % 40}" for each in range(60)]
    samples = [Sample(f"{each}", (File(kind, path),), 1) for each, kind in enumerate(kinds)]
    _, block, _ = run(samples[:30], FULL)
    assert [row[2][0][0] for row in block.rows()] == kinds[:30]
    assert [row[2][1][0] for row in block.rows()] == ["cls"] * 30
    assert block.kinds[:3] == [("x0", False), ("cls", True), ("x1", False)]


# -- hostile folders: with C and without --------------------------------------------------


@pytest.mark.usefixtures("_twin")
@pytest.mark.parametrize("target", ["/nowhere", "loop.txt"])
def test_a_link_to_nothing_is_named(target: str, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.txt").write_text("a")
    (source / "loop.txt").symlink_to(target)
    with pytest.raises(StokerError, match=r"cannot read `.*/loop.txt`"):
        pack(source, tmp_path / "out", Settings())
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_twin")
def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.txt").write_text("a")
    os.mkfifo(source / "pipe.txt")
    (source / "linked.txt").symlink_to("pipe.txt")
    (source / "zero.txt").symlink_to("/dev/zero")
    packed = pack(source, tmp_path / "out", Settings())
    assert (packed.samples, packed.skipped) == (1, 3)
    (tmp_path / "files.txt").write_text("src/a.txt\nsrc/pipe.txt\n")
    with pytest.raises(StokerError, match=r"cannot read `.*/pipe.txt`"):
        pack(tmp_path / "files.txt", tmp_path / "again", Settings())


# The kernel says that this file has 4,096 bytes, and there are fewer.
SHORT = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not SHORT.exists(), reason="this kernel has no such file")
@pytest.mark.usefixtures("_twin")
def test_a_file_shorter_than_it_says_is_named(tmp_path: Path) -> None:
    assert stat.S_ISREG(SHORT.stat().st_mode)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.txt").symlink_to(SHORT)
    with pytest.raises(StokerError, match=r"a.txt` changed while it was read"):
        pack(tmp_path / "src", tmp_path / "out", Settings())


@pytest.mark.usefixtures("_twin")
def test_times_before_1970_and_far_ahead_are_packed(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name, seconds in (("a.txt", -1), ("b.txt", 13_000_000_000), ("c.txt", 0)):
        (source / name).write_text(name)
        os.utime(source / name, ns=(0, seconds * 10**9 + 7))
    assert pack(source, tmp_path / "out", Settings()).samples == 3
    assert list(verify(tmp_path / "out")) == []
