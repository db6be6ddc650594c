"""Pictures are decoded where their batch lies, and the batch is what it would be otherwise."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import stoker
from made_data import pack
from stoker import Loader, RandomResizedCrop
from stoker.data.loading.slots import Slots
from stoker.errors import DataError

numpy = pytest.importorskip("numpy")
image = pytest.importorskip("PIL.Image")

COUNT = 10


def encoded(number: int, size: tuple[int, int] = (40, 24), kind: str = "JPEG") -> bytes:
    noise = numpy.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), "u1")
    data = io.BytesIO()
    image.fromarray(noise).save(data, kind)
    return data.getvalue()


def packed(folder: Path, odd: bytes | None = None) -> Path:
    samples = [(f"{each:04}", {"jpg": encoded(each)}, each) for each in range(COUNT)]
    if odd is not None:
        samples[4] = ("0004", {"jpg": odd}, 4)
    return pack(folder, samples, per_shard=4, labels=COUNT)


def batches(data: Any, **how: Any) -> list[Any]:
    return [tuple(map(numpy.asarray, each)) for each in Loader(data, 4, workers="threads", **how)]


@pytest.mark.usefixtures("each_decoder")
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_the_pictures_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, workers: int
) -> None:
    # Nothing is copied: what puts arrays together is not called.
    monkeypatch.setattr(numpy, "stack", None)
    data = stoker.open(packed(tmp_path), parts=("jpg", "cls"), decode=mode)
    found = batches(data, num_workers=workers)
    alone = [data[at] for at in range(COUNT)]
    assert [len(pictures) for pictures, _ in found] == [4, 4, 2]
    assert numpy.array_equal(numpy.concatenate([each for each, _ in found]), [p for p, _ in alone])
    assert numpy.concatenate([each for _, each in found]).tolist() == [label for _, label in alone]


@pytest.mark.usefixtures("each_decoder")
@pytest.mark.parametrize("workers", [0, 2])
def test_crops_are_the_same_whoever_makes_them(tmp_path: Path, workers: int) -> None:
    crop = RandomResizedCrop(16)
    data = stoker.open(packed(tmp_path), parts=("jpg", "cls"), crop=crop)
    found = batches(data, num_workers=workers, shuffle=True)
    # A transform that does nothing: each picture has memory of its own.
    copied = batches(data, num_workers=workers, shuffle=True, transform=lambda sample, _: sample)
    for (one, _), (other, _) in zip(found, copied, strict=True):
        assert numpy.array_equal(one, other)


@pytest.mark.usefixtures("each_decoder")
def test_a_picture_that_only_another_library_reads_is_in_its_place(tmp_path: Path) -> None:
    odd = encoded(4, kind="PNG")
    data = stoker.open(packed(tmp_path, odd), parts=("jpg", "cls"))
    found = numpy.concatenate([each for each, _ in batches(data, num_workers=2)])
    assert numpy.array_equal(found, [data[at][0] for at in range(COUNT)])


def test_pictures_of_different_shapes_are_no_batch(tmp_path: Path) -> None:
    data = stoker.open(packed(tmp_path, encoded(4, (30, 20))), parts=("jpg", "cls"))
    with pytest.raises(DataError, match="different shapes"):
        batches(data, num_workers=0)


@pytest.mark.usefixtures("each_decoder")
def test_a_batch_that_is_kept_is_not_written_over(tmp_path: Path) -> None:
    data = stoker.open(packed(tmp_path), parts="jpg")
    loader = Loader(data, 2, num_workers=2, workers="threads")
    kept = [each for _ in range(5) for each in loader]
    for at, batch in enumerate(kept):
        first = 2 * at % COUNT
        assert numpy.array_equal(numpy.asarray(batch), [data[first], data[first + 1]])


def test_only_arrays_in_their_slots_are_the_whole() -> None:
    slots = Slots(2, lambda size: memoryview(bytearray(size)))
    rooms = slots.rooms(0)
    one, two = rooms("jpg", 0)((3, 4)), rooms("jpg", 1)((3, 4))
    assert rooms("jpg", 1)((4, 3)) is None
    assert slots.whole([one, two]).shape == (2, 3, 4)
    others = ([two, one], [one, two.copy()], [one], [one, two[::-1]], [one, two.astype("i2")])
    for samples in others:
        assert slots.whole(samples) is None
