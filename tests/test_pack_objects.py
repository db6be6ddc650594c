"""`stoker.pack`: data sets that are Python objects."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from effort import KEEPS_FIXTURES, examples
from stoker.data.index import Index
from stoker.data.packing.objects import pack
from stoker.data.verify import verify
from stoker.errors import DataError, FileError, UsageError

numpy = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parent.parent


def rows(folder: Path, *parts: str) -> list[Any]:
    data = stoker.open(folder, parts=parts)
    return [data[at] for at in range(len(data))]


def jpeg(path: Path, shade: int) -> bytes:
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(path, "JPEG")
    return path.read_bytes()


class Pictures:
    """As torchvision has them: pictures from files, and the numbers of their classes."""

    classes = ("cat", "dog")

    def __init__(self, paths: list[Path], *, touched: bool = False) -> None:
        self.paths, self.touched = paths, touched

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        image = Image.open(self.paths[at])
        return image.convert("L") if self.touched else image, at % 2


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{each}.jpg" for each in range(4)]
    for number, path in enumerate(found):
        jpeg(path, 50 * number)
    return found


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pictures_keep_their_own_bytes(paths: list[Path], tmp_path: Path) -> None:
    packed = pack(Pictures(paths), tmp_path / "out")
    assert packed.samples == 4
    data = stoker.open(tmp_path / "out", parts=("jpg", "cls"), decode=False)
    assert [bytes(data[at][0]) for at in range(4)] == [path.read_bytes() for path in paths]
    assert [data.label(at) for at in range(4)] == [0, 1, 0, 1]
    assert data.label_names == ["cat", "dog"]
    assert list(verify(tmp_path / "out")) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pictures_that_were_touched_become_png(paths: list[Path], tmp_path: Path) -> None:
    pack(Pictures(paths, touched=True), tmp_path / "out", format="zip")
    data = stoker.open(tmp_path / "out", parts="png", decode=False)
    for at, path in enumerate(paths):
        with Image.open(path) as image, Image.open(io.BytesIO(bytes(data[at]))) as found:
            assert found.tobytes() == image.convert("L").tobytes()
    image = Image.new("CMYK", (2, 2))
    pack([image], tmp_path / "cmyk")
    assert stoker.open(tmp_path / "cmyk").metadata["extensions"] == ["tif"]


def test_arrays_of_one_shape_become_one_array(tmp_path: Path) -> None:
    items = [(numpy.full((2, 3), at, "float32"), at) for at in range(9)]
    pack(items, tmp_path / "out", shard_size=100)
    index = Index.open(tmp_path / "out/index.stoker")
    assert index.header["arrays"] == {"npy": {"dtype": "<f4", "shape": [2, 3]}}
    assert len(index.shards) == 3
    found = rows(tmp_path / "out", "npy", "cls")
    assert [(each[0].tolist(), each[1]) for each in found] == [(a.tolist(), b) for a, b in items]
    assert {each.name for each in (tmp_path / "out").iterdir()} == {
        "index.stoker", *(f"shard-0000{each}.tar" for each in range(3))
    }  # fmt: skip


def test_arrays_of_several_shapes_stay_apart(tmp_path: Path) -> None:
    items = [{"x": numpy.arange(3), "n": at} for at in range(5)]
    items.append({"x": numpy.arange(4), "n": 5})
    pack(iter(items[:-1] + items[-1:]), tmp_path / "out")
    found = rows(tmp_path / "out", "x.npy", "n.json")
    assert [each[0].tolist() for each in found] == [each["x"].tolist() for each in items]
    same = [{"x": numpy.arange(3)}] * 3 + [{"x": numpy.arange(4)}]
    pack(iter(same), tmp_path / "late")
    assert [each[0].tolist() for each in rows(tmp_path / "late", "x.npy")] == [
        each["x"].tolist() for each in same
    ]
    assert "arrays" not in Index.open(tmp_path / "late/index.stoker").header


def test_rows_of_hugging_face(paths: list[Path], tmp_path: Path) -> None:
    items = [
        {
            "image": {"bytes": path.read_bytes(), "path": None},
            "label": at,
            "caption": "ein Öl",
            "boxes": [[1, 2], [3, 4]],
            "nothing": None,
        }
        for at, path in enumerate(paths)
    ]
    pack(items, tmp_path / "out", label_names=["a", "b", "c", "d"])
    data = stoker.open(
        tmp_path / "out", parts=("image.jpg", "caption.txt", "boxes.json"), decode=False
    )
    assert bytes(data[2][0]) == paths[2].read_bytes()
    assert bytes(data[2][1]).decode() == "ein Öl"
    assert json.loads(bytes(data[2][2])) == [[1, 2], [3, 4]]
    assert (data.label(2), data.label_names[2]) == (2, "c")


def test_pictures_of_hugging_face_are_not_decoded(tmp_path: Path) -> None:
    class Feature:
        def __init__(self, decode: bool = True) -> None:
            self.decode = decode

    Feature.__name__ = "Image"

    class Names:
        names = ("no", "yes")

    class Table(list[Any]):
        def __init__(self) -> None:
            super().__init__([None])
            self.features = {"image": Feature(), "label": Names()}

        def cast_column(self, name: str, feature: Any) -> list[Any]:
            assert not feature.decode
            return [{name: {"bytes": b"\xff\xd8\xff!", "path": "a.jpeg"}, "label": 1}]

    pack(Table(), tmp_path / "out")
    data = stoker.open(tmp_path / "out", parts="image.jpeg", decode=False)
    assert (bytes(data[0]), data.label_names[1]) == (b"\xff\xd8\xff!", "yes")


def test_lists_and_dicts_with_arrays_are_taken_apart(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 2))
    target = {"boxes": numpy.ones((1, 4)), "id": 7, "label": 2, "what": [1, "b"], "none": None}
    pack([(image, target)], tmp_path / "tuple")
    assert set(stoker.open(tmp_path / "tuple")[0]) == {
        "png", "boxes.npy", "id.json", "what.json", "cls"
    }  # fmt: skip
    pack([{"a": {"views": [image, image], "label": 2}}], tmp_path / "dict")
    found = stoker.open(tmp_path / "dict")
    assert set(found[0]) == {"a.views.0.png", "a.views.1.png", "a.label.json"}
    assert found.label(0) is None


def test_numbers_of_numpy_and_times_are_json(tmp_path: Path) -> None:
    row = {
        "numbers": [numpy.float32(0.5), numpy.int64(3)],
        "when": datetime(2026, 1, 2, tzinfo=timezone.utc),
        "took": timedelta(minutes=1),
        "cost": Decimal("1.10"),
    }
    pack([row], tmp_path / "out")
    assert stoker.open(tmp_path / "out")[0] == {
        "numbers.json": [0.5, 3],
        "when.json": "2026-01-02T00:00:00+00:00",
        "took.json": 60.0,
        "cost.json": "1.10",
    }


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("jpg", b"anything", "jpg"),
        ("left.jpg", b"\xff\xd8\xff", "left.jpg"),
        ("JPEG", b"\xff\xd8\xff", "JPEG"),
        ("image", b"\xff\xd8\xff", "image.jpg"),
        ("image", b"RIFF....WEBP", "image.webp"),
        ("sound", b"RIFF....WAVE", "sound.wav"),
        ("sound", b"RIFF....AVI ", "sound"),
        ("", b"RIFF", "bin"),
    ],
)
def test_bytes_are_called_what_they_are(name: str, data: bytes, part: str, tmp_path: Path) -> None:
    pack([{name: data}], tmp_path / "out")
    assert stoker.open(tmp_path / "out").metadata["extensions"] == [part]


def test_own_keys_and_bytes(tmp_path: Path) -> None:
    items = [{"__key__": f"a/{at}", "jpg": b"x" * at, "cls": at} for at in range(3)]
    pack(items, tmp_path / "out")
    data = stoker.open(tmp_path / "out", parts="jpg", decode=False)
    assert [data.key(at) for at in range(3)] == ["a/0", "a/1", "a/2"]
    assert [data.label(at) for at in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="`a/0` is there twice"):
        pack([items[0], items[1], items[0]], tmp_path / "twice")
    assert not (tmp_path / "twice/index.stoker").exists()


def test_a_seed_shuffles_items_that_have_numbers(tmp_path: Path) -> None:
    for name, items in (
        ("arrays", [numpy.array([at]) for at in range(9)]),
        ("texts", list("abcdefghi")),
    ):
        pack(items, tmp_path / name, shuffle=3)
        data = stoker.open(tmp_path / name)
        numbers = [int(data.key(at)) for at in range(9)]
        assert sorted(numbers) == list(range(9)) != numbers
        part = "npy" if name == "arrays" else "txt"
        assert [data[at][part] for at in range(9)] == [items[at] for at in numbers]
    with pytest.raises(UsageError, match="cannot be shuffled"):
        pack(iter("abc"), tmp_path / "out", shuffle=1)


def test_an_interrupted_packing_begins_anew(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        pack(broken(), tmp_path / "out", shard_size=10)
    assert not (tmp_path / "out/index.stoker").exists()

    def whole() -> Iterator[str]:
        yield from ("x", "y")

    assert pack(whole(), tmp_path / "out", shard_size=10).samples == 2
    assert [each[0] for each in rows(tmp_path / "out", "txt")] == ["x", "y"]


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value, error, what in (
        ([object()], DataError, "item 0 has a value"),
        ([numpy.array([object()])], DataError, "item 0 has a value"),
        ([numpy.zeros(2, "i4,f4")], DataError, "item 0 has an array"),
        ([{"deep": [1, {"er": {1}}]}], DataError, "deep.1.er: it is a set"),
        ([endless], DataError, "item 0 has a value"),
        (7, UsageError, "a int is no data set"),
        ({"train": [1], "test": [2]}, UsageError, r"several by name: train, test\n.*data\[\"train"),
        ({}, UsageError, "it is empty"),
        ([], FileError, "has no samples"),
    ):
        with pytest.raises(error, match=what):
            pack(value, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_path_is_packed_as_the_command_does_it(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.txt").write_text("a")
    assert pack(tmp_path / "src", tmp_path / "out", shard_size="1M").samples == 1


VALUES = st.one_of(
    st.integers(), st.text(), st.binary(), st.booleans(), st.floats(allow_nan=False), st.none(),
    st.lists(st.integers()), st.dictionaries(st.text(), st.integers()),
)  # fmt: skip


@given(
    st.lists(
        st.one_of(VALUES, st.dictionaries(st.text(), VALUES), st.tuples(VALUES, VALUES)), min_size=1
    )
)
@settings(max_examples=examples(60), suppress_health_check=KEEPS_FIXTURES)
def test_anything_of_plain_values_is_packed_and_whole(tmp_path: Path, items: list[Any]) -> None:
    out = tmp_path / os.urandom(4).hex()
    assert pack(items, out).samples == len(items)
    assert list(verify(out)) == []


TORCH = """
import sys, torch
from stoker.data.packing.objects import pack
from torch.utils.data import TensorDataset
data = TensorDataset(torch.arange(12.0).reshape(4, 3), torch.tensor([3, 2, 1, 0]))
pack(data, sys.argv[1])
pack([(torch.ones(2, dtype=torch.float16), 1)], sys.argv[2])
try:
    pack([torch.ones(2, dtype=torch.bfloat16)], sys.argv[3])
except Exception as error:
    print(error)
"""


@pytest.mark.slow
def test_tensors_become_arrays(tmp_path: Path) -> None:
    python = ROOT / ".venv-torch/bin/python"
    if not python.exists():
        pytest.skip("no PyTorch: scripts/setup-frameworks")
    folders = [str(tmp_path / each) for each in "abc"]
    done = subprocess.run(
        [python, "-c", TORCH, *folders], env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "item 0 has a tensor" in done.stdout, done.stderr
    found = rows(tmp_path / "a", "npy", "cls")
    assert [(each[0].tolist(), each[1]) for each in found] == [
        ([3.0 * at, 3.0 * at + 1, 3.0 * at + 2], 3 - at) for at in range(4)
    ]
    assert rows(tmp_path / "b", "npy")[0][0].dtype == "float16"
    assert sys.byteorder == "little"
