"""Unpacking: nothing outside of the folder, whatever an archive says; compressed ones as well."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import Stoker
from effort import examples
from stoker.data.archive import index_archive
from stoker.data.formats import COMPRESSED
from stoker.data.packing.order import Settings
from stoker.data.packing.pack import pack
from stoker.data.sources import compressed
from stoker.data.sources.compressed import CompressedSource
from stoker.data.sources.source import find_packed
from stoker.data.unpack import unpack
from stoker.data.verify import verify
from stoker.errors import DataError, FileError, StokerError

FILES = {"a/1.txt": b"one" * 500, "a/1.json": b"{}", "b.bin": bytes(range(256)) * 40, "c": b""}
KINDS = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
         tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE]  # fmt: skip
# Steps that lead up, nowhere, to the root, or through a link of this name.
STEPS = st.sampled_from(["..", ".", "", "a", "link", "x.txt", "canary", "...", "..a", "a\\..", "~"])
EVIL = st.lists(STEPS, min_size=1, max_size=5).map("/".join).filter(bool)


def make_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "../outside"
            data = b"evil" if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else b""
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(each): each.read_bytes() if each.is_file() else b""
        for each in sorted(folder.rglob("*"))
    }


def refuse_outside(archive: Path, box: Path) -> None:
    """Unpack an archive in a box; nothing in the box may change but the folder it goes to."""
    target = box / "deep" / "target"
    (box / "outside").mkdir(parents=True)
    (box / "canary").write_bytes(b"alive")
    (box / "deep").mkdir()
    before = snapshot(box)
    with suppress(StokerError):
        unpack(archive, target)
    after = {
        name: data for name, data in snapshot(box).items() if not Path(name).is_relative_to(target)
    }
    assert after == before
    for each in target.rglob("*"):
        assert not each.is_symlink()
        assert each.is_dir() or each.read_bytes() == b"evil"


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(EVIL, st.sampled_from(KINDS)), max_size=8), st.booleans())
def test_no_tar_writes_outside(members: list[tuple[str, bytes]], is_packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = "a.tar.gz" if is_packed else "a.tar"
        archive = make_tar(Path(folder) / name, members, "w:gz" if is_packed else "w")
        refuse_outside(archive, Path(folder) / "box")


@settings(max_examples=examples(100))
@given(st.lists(EVIL, max_size=6, unique=True), st.booleans())
def test_no_zip_writes_outside(names: list[str], is_link: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "a.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for name in names:
                info = zipfile.ZipInfo("a")
                info.filename = name
                info.external_attr = (0o120777 if is_link else 0o100644) << 16
                file.writestr(info, b"evil")
        refuse_outside(archive, Path(folder) / "box")


def test_a_link_that_is_there_already_is_not_followed(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", [("link/x.txt", tarfile.REGTYPE)])
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target/link").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="is not written") as caught:
        unpack(archive, tmp_path / "target", force=True)
    assert "a link on the way" in caught.value.why
    assert not any((tmp_path / "outside").iterdir())


def test_a_device_is_never_made(tmp_path: Path) -> None:
    members = [("null.txt", each) for each in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)]
    archive = make_tar(tmp_path / "a.tar", [*members, ("x.txt", tarfile.REGTYPE)])
    assert unpack(archive, tmp_path / "out").files == 1
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["x.txt"]


# -- compressed tars ---------------------------------------------------------------------


def make(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def compress(folder: Path, path: Path) -> Path:
    kind = next(each for suffix, each in COMPRESSED.items() if path.name.endswith(suffix))
    if kind != "zst":
        with tarfile.open(path, f"w:{kind}") as file:  # type: ignore[call-overload]
            file.add(folder, ".")
        return path
    if not shutil.which("zstd"):
        pytest.skip("zstd is not there")
    plain = path.with_name("plain.tar")
    with tarfile.open(plain, "w") as file:
        file.add(folder, ".")
    subprocess.run(["zstd", "-q", plain, "-o", path], check=True)
    return path


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_tars_are_unpacked(suffix: str, tmp_path: Path) -> None:
    source = make(tmp_path / "src")
    path = compress(source, tmp_path / f"a{suffix}")
    done = unpack(path, tmp_path / "out")
    assert (done.samples, done.files) == (3, 4)
    assert files_of(tmp_path / "out") == FILES
    assert list(verify(path)) == []
    unpack(path, tmp_path / "one", ["b"])
    assert list(files_of(tmp_path / "one")) == ["b.bin"]


def test_a_compressed_tar_is_packed(tmp_path: Path) -> None:
    path = compress(make(tmp_path / "src"), tmp_path / "a.tar.gz")
    assert pack(path, tmp_path / "packed", Settings()).samples == 3
    assert list(verify(tmp_path / "packed")) == []
    unpack(tmp_path / "packed", tmp_path / "again")
    assert files_of(tmp_path / "again") == FILES


def test_a_compressed_tar_is_listed_but_not_indexed(stoker: Stoker, tmp_path: Path) -> None:
    compress(make(tmp_path / "src"), tmp_path / "a.tar.gz")
    done = stoker("ls", str(tmp_path / "a.tar.gz"))
    assert {"b  bin 10240", "c  - 0"} < set(done.stdout.splitlines())
    assert "3 samples" in done.stderr
    with pytest.raises(DataError, match="is compressed") as caught:
        index_archive(tmp_path / "a.tar.gz")
    assert caught.value.fix == f"stoker pack {tmp_path}/a.tar.gz OUT"


def test_large_files_wait_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MAX_HELD", 2000)
    monkeypatch.setattr(compressed, "MAX_SPOOL", 5000)
    path = compress(make(tmp_path / "src"), tmp_path / "a.tar.gz")
    kept = [file for sample in CompressedSource(path).samples() for file in sample.files]
    assert all(file.held is not None for file in kept)
    found = {
        file.extension: b"".join(file.held.content(file).chunks()) for file in kept if file.held
    }
    assert found == {"txt": FILES["a/1.txt"], "json": b"{}", "bin": FILES["b.bin"], "": b""}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"])
def test_a_damaged_compressed_tar_is_named(suffix: str, tmp_path: Path) -> None:
    path = compress(make(tmp_path / "src"), tmp_path / f"a{suffix}")
    whole = path.read_bytes()
    for size in range(0, len(whole), 11):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is damaged"):
            list(CompressedSource(path).samples())
    # gzip, bzip2, xz and zstd have a checksum at their end: read by whoever reads all.
    for at in range(20, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(DataError):
            found = {
                (sample.key, file.extension): b"".join(file.held.content(file).chunks())
                for sample in CompressedSource(path).samples()
                for file in sample.files
                if file.held
            }
            assert found[("a/1", "txt")] == FILES["a/1.txt"], at


def test_noise_is_no_compressed_tar(tmp_path: Path) -> None:
    for suffix in (".tgz", ".txz", ".tbz2", ".tar.zst"):
        (tmp_path / f"a{suffix}").write_bytes(os.urandom(500))
        with pytest.raises(DataError, match="is damaged"):
            list(CompressedSource(tmp_path / f"a{suffix}").samples())


# -- sparse, encrypted, compressed members -----------------------------------------------


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole.bin").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 20)
        file.write(b"end")
    for style in ("gnu", "posix"):
        run = ["tar", "cSf", "a.tar", f"--format={style}", "hole.bin"]
        subprocess.run(run, cwd=tmp_path, check=True)
        with pytest.raises(DataError) as caught:
            unpack(tmp_path / "a.tar", tmp_path / "out")
        assert "sparse" in caught.value.why
        subprocess.run(["gzip", "-f", "a.tar"], cwd=tmp_path, check=True)
        with pytest.raises(DataError) as caught:
            unpack(tmp_path / "a.tar.gz", tmp_path / "out")
        assert "sparse" in caught.value.why
        assert caught.value.fix == "make the archive anew, without --sparse"


def test_compressed_zip_members_are_unpacked_and_named_by_index(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in FILES.items():
            file.writestr(name, data)
    with pytest.raises(DataError, match="cannot be indexed") as caught:
        index_archive(tmp_path / "a.zip")
    assert "`a/1.txt` is compressed" in caught.value.why
    assert caught.value.fix == f"stoker pack {tmp_path}/a.zip OUT"
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert files_of(tmp_path / "out") == FILES
    pack(tmp_path / "a.zip", tmp_path / "packed", Settings())
    assert list(verify(tmp_path / "packed")) == []


@pytest.mark.skipif(not shutil.which("zip"), reason="needs zip")
def test_encrypted_members_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path / "src")
    run = ["zip", "-qrP", "secret", str(tmp_path / "a.zip"), "."]
    subprocess.run(run, cwd=tmp_path / "src", check=True)
    for call in (index_archive, lambda path: unpack(path, tmp_path / "out")):
        with pytest.raises(DataError) as caught:
            call(tmp_path / "a.zip")
        assert "is encrypted" in caught.value.why
        assert any(f"`{name}`" in caught.value.why for name in FILES)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path\n")
    with pytest.raises(StokerError):
        index_archive(tmp_path / "a.csv")
    with pytest.raises(FileError):
        find_packed(tmp_path)
    with pytest.raises(FileError, match="no packed data set"):
        list(verify(tmp_path))


def test_an_index_of_ours_is_not_overwritten_and_half_a_data_set_gets_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(make(tmp_path / "src"), out, Settings())
    whole = (out / "index.stoker").read_bytes()
    with pytest.raises(FileError, match="was made by stoker pack"):
        index_archive(out, force=True)
    assert (out / "index.stoker").read_bytes() == whole
    # A damaged one is of no use to anybody.
    (out / "index.stoker").write_bytes(whole[:100])
    assert index_archive(out, force=True) == 3
    (out / "index.stoker").unlink()
    (out / ".stoker-pack").mkdir()
    (out / ".stoker-pack/plan.json").write_text("{}")
    with pytest.raises(FileError, match="packed in part only"):
        index_archive(out)


def test_an_index_of_another_archive_is_not_called_whole(tmp_path: Path) -> None:
    """Also where it is as large, as one of the same files in another order is."""
    path, files = tmp_path / "a.tar", [(name, tarfile.REGTYPE) for name in ("0.txt", "1.txt")]
    make_tar(path, files)
    index_archive(path)
    os.utime(path, (1, 1))
    assert list(verify(path)) == []  # As a copy is.
    make_tar(path, files[::-1])
    assert [each.why for each in verify(path)] == ["it is not the one that was indexed"]
