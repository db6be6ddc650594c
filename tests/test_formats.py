"""The containers: what we write others read, what others write we find, damage is named."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from made_data import members_of
from stoker.data.formats import FORMATS, scan, writer
from stoker.data.formats.crc32c import _extend_slowly, extend, masked
from stoker.data.formats.tar import MAX_SIZE, _heads, members
from stoker.data.formats.tfrecord import check_record, records
from stoker.data.sample import Content, is_hidden, join_name
from stoker.errors import DataError

SAMPLES: list[tuple[str, dict[str, bytes]]] = [
    ("a/0001", {"jpg": b"x" * 700, "json": b"{}"}),
    ("empty", {"bin": b""}),
    ("no-extension", {"": b"1"}),
    ("ünï", {"seg.png": b"y" * 512}),
    ("long/" + "n" * 200, {"txt": b"1"}),
    ("deep/" * 50 + "x", {"txt": b"2"}),
    ("n" * 99, {"t": b"3"}),
]


def write(path: Path, samples: list[tuple[str, dict[str, bytes]]] = SAMPLES) -> Path:
    with path.open("wb") as file:
        out = writer(path.suffix[1:], file)
        for key, parts in samples:
            contents = [Content(name, len(data), data) for name, data in parts.items()]
            places = out.add(key, contents, 3)
            assert [each.size for each in places] == [len(data) for data in parts.values()]
        out.finish()
        out.close()
    return path


def wanted(samples: list[tuple[str, dict[str, bytes]]] = SAMPLES) -> dict[str, bytes]:
    return {join_name(key, name): data for key, parts in samples for name, data in parts.items()}


@pytest.mark.parametrize("container", FORMATS)
def test_what_is_written_is_found(container: str, tmp_path: Path) -> None:
    assert members_of(write(tmp_path / f"a.{container}")) == wanted()


@pytest.mark.parametrize("container", FORMATS)
def test_names_that_are_not_utf8_are_kept(container: str, tmp_path: Path) -> None:
    samples = [("bad\udcff", {"txt": b"1"}), ("bad\udcfe" * 120, {"txt": b"2"})]
    assert members_of(write(tmp_path / f"a.{container}", samples)) == wanted(samples)


def test_pythons_tarfile_reads_our_tar(tmp_path: Path) -> None:
    with tarfile.open(write(tmp_path / "a.tar")) as file:
        told = {each.name: (file.extractfile(each) or io.BytesIO()).read() for each in file}
    assert told == wanted()


def test_gnu_tar_reads_our_tar(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar")
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        ["tar", "xf", path], cwd=out, capture_output=True, text=True, check=False,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    files = {
        str(each.relative_to(out)): each.read_bytes() for each in out.rglob("*") if each.is_file()
    }
    assert files == wanted()


def test_pax_is_there_only_where_it_is_needed(tmp_path: Path) -> None:
    assert b"PaxHeaders" not in write(tmp_path / "a.tar", SAMPLES[:4]).read_bytes()
    assert write(tmp_path / "b.tar", SAMPLES[4:5]).read_bytes().count(b"PaxHeaders") == 1


def test_a_size_over_8_gib_is_told_by_pax() -> None:
    head = _heads(b"huge", MAX_SIZE + 1, 0)
    with tarfile.open(fileobj=io.BytesIO(head + bytes(1024)), ignore_zeros=True) as file:
        first = file.next()
    assert first is not None
    assert first.size == MAX_SIZE + 1
    assert len(_heads(b"large", MAX_SIZE, 0)) == 512


def test_pythons_zipfile_reads_our_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(write(tmp_path / "a.zip")) as file:
        assert file.testzip() is None
        assert {each: file.read(each) for each in file.namelist()} == wanted()


@pytest.mark.slow
def test_more_files_than_a_plain_zip_can_count(tmp_path: Path) -> None:
    samples = [(f"{each}", {"": b""}) for each in range(66_000)]
    path = write(tmp_path / "a.zip", samples)
    with zipfile.ZipFile(path) as file:
        assert len(file.namelist()) == 66_000
    assert sum(1 for _ in scan(path)) == 66_000


def test_records_have_the_checksums_of_tensorflow(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord")
    with path.open("rb") as file:
        places = list(records(path, file, path.stat().st_size))
        assert all(check_record(file, *each) for each in places)
    assert len(places) == len(SAMPLES)
    assert [each.label for each in scan(path)] == [3] * 8


def test_crc32c_is_that_of_its_standard() -> None:
    # RFC 3720, appendix B.4.
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert extend(0, data) == crc == _extend_slowly(_extend_slowly(0, data[:5]), data[5:])


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_whoever_computes_crc32c_gives_the_same(data: bytes, before: int) -> None:
    assert extend(before, data) == _extend_slowly(before, data)
    assert extend(before, data) == extend(extend(before, data[:7]), data[7:])


# -- archives of others ------------------------------------------------------------------


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tars_of_python_are_found(style: int, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    names = {
        name: data
        for name, data in wanted().items()
        if style != tarfile.USTAR_FORMAT or len(name) < 90
    }
    with tarfile.open(path, "w", format=style) as file:
        for name, data in names.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5 if style == tarfile.PAX_FORMAT else 1
            file.addfile(info, io.BytesIO(data))
    assert members_of(path) == names


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
@pytest.mark.parametrize("style", ["gnu", "posix", "ustar"])
@pytest.mark.parametrize("before", ["", "./"])
def test_a_file_with_two_names_is_found_under_both(style: str, before: str, tmp_path: Path) -> None:
    long = "long-" + "n" * (60 if style == "ustar" else 120)
    names = [f"{before}{name}" for name in ("b.txt", f"{long}.txt", "a.txt", "c.txt")]
    (tmp_path / "b.txt").write_bytes(b"two names")
    (tmp_path / "a.txt").hardlink_to(tmp_path / "b.txt")
    (tmp_path / f"{long}.txt").write_bytes(b"long")
    (tmp_path / "c.txt").hardlink_to(tmp_path / f"{long}.txt")
    subprocess.run(["tar", "cf", "a.tar", f"--format={style}", *names], cwd=tmp_path, check=True)
    assert members_of(tmp_path / "a.tar") == {
        "a.txt": b"two names", "b.txt": b"two names", "c.txt": b"long", f"{long}.txt": b"long",
    }  # fmt: skip


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
def test_a_second_name_of_a_symbolic_link_has_no_bytes_either(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/x.txt").write_bytes(b"ok")
    (tmp_path / "a/l.txt").symlink_to("x.txt")
    os.link(tmp_path / "a/l.txt", tmp_path / "b/l.txt", follow_symlinks=False)
    (tmp_path / "a/.hidden").write_bytes(b"secret")
    (tmp_path / "b/.hidden").hardlink_to(tmp_path / "a/.hidden")
    path = tmp_path / "t.tar"
    subprocess.run(["tar", "cf", path, "a", "b"], cwd=tmp_path, check=True)
    assert members_of(path)["a/x.txt"] == b"ok"
    assert not [name for name in members_of(path) if name.endswith("l.txt")]
    with path.open("rb") as stream:
        found = list(members(path, stream, 1e9, is_hidden))
    assert "a/x" in [each.key for each in found]


def test_links_whose_bytes_are_not_to_be_had_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        info = tarfile.TarInfo("x.txt")
        info.type, info.linkname = tarfile.LNKTYPE, "/etc/passwd"
        file.addfile(info)
    with pytest.raises(DataError, match="is damaged") as caught:
        list(scan(path))
    assert caught.value.why == "`x.txt` is a link to `/etc/passwd`, which it does not have"
    with path.open("rb") as stream, pytest.raises(DataError) as refused:
        list(members(path, stream, 1e9))
    assert refused.value.fix == "make the archive anew, with --hard-dereference, or unpack it"


def test_folders_links_and_devices_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("x.txt")
            info.type, info.linkname = kind, "/etc/passwd" + "x" * 120
            file.addfile(info)
        info = tarfile.TarInfo("./real.txt")
        info.size = 2
        file.addfile(info, io.BytesIO(b"ok"))
    assert members_of(path) == {"real.txt": b"ok"}


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole.bin").open("wb") as file:
        file.truncate(1 << 20)
    for style in ("gnu", "posix"):
        subprocess.run(
            ["tar", "cSf", "a.tar", f"--format={style}", "hole.bin"], cwd=tmp_path, check=True
        )
        with pytest.raises(DataError) as caught:
            list(scan(tmp_path / "a.tar"))
        assert "sparse" in caught.value.why


def test_a_compressed_zip_is_told_from_a_stored_one_and_an_encrypted_one_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.txt", b"a" * 1000)
    member = next(iter(scan(path)))
    assert member.packed is not None
    assert member.packed < 1000
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="cannot be read"):
        list(scan(path))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            length,
            struct.pack("<I", masked(extend(0, length))),
            data,
            struct.pack("<I", masked(extend(0, data))),
        )
    )


def test_records_of_others_are_whole_where_they_are_more_than_bytes(tmp_path: Path) -> None:
    path = tmp_path / "train.tfrecord-00000-of-00002"
    # {"x": float_list [1.0], "img": bytes_list [b"abc"]}
    floats = bytes.fromhex("0a0d0a017812081206 0a040000803f")
    image = bytes.fromhex("0a0e0a03696d6712070a050a03616263")
    example = b"\x0a" + bytes([len(floats + image)]) + floats + image
    path.write_bytes(record(example) + record(b"no example"))
    data = path.read_bytes()
    told = [
        (each.key, each.extension, data[each.offset : each.offset + each.size])
        for each in scan(path)
    ]
    assert told == [
        (f"{path.name}/00000000", "img", b"abc"),
        (f"{path.name}/00000000", "example", example),
        (f"{path.name}/00000001", "example", b"no example"),
    ]


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.sampled_from(FORMATS))
def test_noise_is_no_archive(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, container: str
) -> None:
    path = tmp_path_factory.mktemp("noise") / f"a.{container}"
    path.write_bytes(record(data) if container == "tfrecord" else data)
    try:
        list(scan(path))
    except DataError:
        return
    assert container == "tfrecord"


def test_a_header_with_a_negative_size_is_damaged(tmp_path: Path) -> None:
    head = bytearray(_heads(b"a.txt", 0, 0))
    head[124:136] = b"-0000000777\0"
    head[148:156] = b"%06o\0 " % (sum(head) - sum(head[148:156]) + 256)
    (tmp_path / "a.tar").write_bytes(bytes(head) + bytes(1024))
    with pytest.raises(DataError):
        list(scan(tmp_path / "a.tar"))


# -- damage ------------------------------------------------------------------------------


# HDF5 and LMDB have tests of their own for this.
PLAIN = ("tar", "zip", "tfrecord")


@pytest.mark.parametrize("container", PLAIN)
def test_a_cut_archive_is_damaged_wherever_it_is_cut(container: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{container}", SAMPLES[:3])
    whole = path.read_bytes()
    boundaries = set()
    if container == "tfrecord":  # Has no end mark: between two records nobody can tell.
        with path.open("rb") as file:
            boundaries = {0, *(start + size + 4 for start, size in records(path, file, len(whole)))}
    # A tar may lack its second block of zeros; Python's reader accepts that too.
    last = len(whole) - (512 if container == "tar" else 0)
    step = 3 if container == "tar" else 1
    for size in sorted({*range(0, last, step), *range(0, last, 512)} - boundaries, reverse=True):
        os.truncate(path, size)
        with pytest.raises(DataError):
            list(scan(path))


@pytest.mark.parametrize("container", PLAIN)
def test_a_flipped_byte_never_ends_in_a_traceback(container: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{container}", SAMPLES[:3])
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(len(whole)):
            os.pwrite(file.fileno(), bytes([whole[at] ^ 0xFF]), at)
            with suppress(DataError):
                for member in scan(path):
                    assert 0 <= member.offset <= member.offset + member.size <= len(whole)
            os.pwrite(file.fileno(), whole[at : at + 1], at)
