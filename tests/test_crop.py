"""Pictures decoded no larger than needed: which piece, how large, and what it costs in pixels."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from made_data import pack
from stoker import Loader
from stoker.data.pictures import picture
from stoker.data.pictures.crop import Box, CenterCrop, Crop, RandomResizedCrop, Resize
from stoker.data.pictures.decode import picture_decoder
from stoker.errors import DataError, UsageError

sizes = st.integers(1, 3000)


def is_inside(box: Box, height: int, width: int) -> bool:
    return (
        0 <= box.top <= box.top + box.height <= height + 1e-6
        and 0 <= box.left <= box.left + box.width <= width + 1e-6
        and box.height > 0
        and box.width > 0
    )


@given(sizes, sizes, st.integers(1, 400), st.integers(), st.floats(0, 1))
def test_a_random_box_is_inside_of_the_picture(
    height: int, width: int, size: int, seed: int, flip: float
) -> None:
    crop = RandomResizedCrop(size, flip=flip)
    box = crop.box(height, width, Random(seed))
    assert is_inside(box, height, width)
    assert (box.out_height, box.out_width) == (size, size)
    assert box == crop.box(height, width, Random(seed))


@given(sizes, sizes, st.integers(1, 400), st.none() | st.integers(1, 500))
def test_the_middle_and_the_whole_are_inside_of_the_picture(
    height: int, width: int, size: int, resize: int | None
) -> None:
    crops: list[Crop] = [
        CenterCrop(size, resize),
        CenterCrop((size, 7)),
        Resize(size),
        Resize((size, 3)),
    ]
    for crop in crops:
        box = crop.box(height, width, Random())
        assert is_inside(box, height, width)
        assert box.top == pytest.approx(height - box.top - box.height, abs=1e-6)
        assert box.factor in (1, 2, 4, 8)
        # What is left of the box has at least the size that is wanted, unless it never had.
        for inner, outer in ((box.height, box.out_height), (box.width, box.out_width)):
            assert inner / box.factor >= min(outer, inner) - 1e-6


def test_area_and_shape_are_within_what_was_asked_for() -> None:
    crop = RandomResizedCrop(10, scale=(0.2, 0.4), ratio=(0.5, 1.5), flip=0.5)
    boxes = [crop.box(1000, 1000, Random(each)) for each in range(200)]
    assert all(0.19 < each.height * each.width / 1e6 < 0.41 for each in boxes)
    assert all(0.49 < each.width / each.height < 1.51 for each in boxes)
    assert 60 < sum(each.is_flipped for each in boxes) < 140
    assert len({each.top for each in boxes}) > 100


@pytest.mark.parametrize(
    ("inner", "out", "factor"),
    [(100, 100, 1), (199, 100, 1), (200, 100, 2), (900, 100, 8), (50, 100, 1)],
)
def test_a_decoder_may_shrink_by_so_much(inner: int, out: int, factor: int) -> None:
    assert Box(0, 0, inner, 8 * inner, out, out).factor == factor


def test_the_shorter_side_is_resized() -> None:
    assert Resize(50).box(100, 300, Random()) == Box(0, 0, 100, 300, 50, 150)
    assert CenterCrop(224, resize=256).box(512, 1024, Random()) == Box(32, 288, 448, 448, 224, 224)
    assert CenterCrop(50).box(100, 100, Random()) == Box(25, 25, 50, 50, 50, 50)


# -- pixels ------------------------------------------------------------------------------


def drawn(height: int = 400, width: int = 600) -> Any:
    """A picture with slopes, edges and a little noise."""
    numpy = pytest.importorskip("numpy")
    down, across = numpy.mgrid[0:height, 0:width]
    noise = numpy.random.default_rng(1).normal(0, 4, (height, width))
    red = 128 + 100 * numpy.sin(across / 40) + noise
    green = 255 * ((down // 60 + across // 90) % 2) * 0.7 + 20 + noise
    blue = 255 * down / height + noise
    return numpy.stack([red, green, blue], 2).clip(0, 255).astype("uint8")


def encoded(values: Any, kind: str = "JPEG", **how: Any) -> bytes:
    images = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    images.fromarray(values).save(made, kind, **how)
    return made.getvalue()


LIBRARIES = {"simplejpeg": picture._simplejpeg, "PIL.Image": picture._pillow}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_a_picture_that_was_decoded_smaller_is_nearly_the_same(library: str, mode: str) -> None:
    module = pytest.importorskip(library)
    read = LIBRARIES[library](module, mode)
    data = memoryview(encoded(drawn(), quality=90))
    whole = picture_decoder(True, mode)(data)
    crops: list[Crop] = [
        RandomResizedCrop(60),
        CenterCrop(90, resize=100),
        Resize((45, 70)),
        Resize(100),
    ]
    for crop in crops:
        seed = 7
        small, inner = read(data, lambda high, wide: crop.box(high, wide, Random(seed)))  # noqa: B023
        box = crop.box(400, 600, Random(seed))
        assert small.shape[0] == -(-400 // box.factor)
        assert box.factor > 1
        one, other = picture.cut(small, inner), picture.cut(whole, box)
        assert one.shape == other.shape
        assert one.shape[:2] == (box.out_height, box.out_width)
        # As docs/data.md says: about 2 of 255 on average.
        assert abs(one.astype(float) - other).mean() < 4


def test_a_flip_exchanges_left_and_right() -> None:
    values = drawn(40, 60)
    box = Box(0, 0, 40, 60, 40, 60)
    assert (picture.cut(values, box) == values).all()
    assert (picture.cut(values, box._replace(is_flipped=True)) == values[:, ::-1]).all()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    samples = [
        (
            f"{each:02}",
            {"jpg": encoded(drawn(90 + each, 120)), "png": encoded(drawn(20, 30), "PNG")},
            each,
        )
        for each in range(8)
    ]
    return pack(tmp_path, samples, labels=8)


@pytest.mark.usefixtures("each_decoder")
def test_batches_of_cropped_pictures_are_the_same_whatever_the_threads_do(pictures: Path) -> None:
    numpy = pytest.importorskip("numpy")
    data = stoker.open(
        pictures, parts=("jpg", "png", "cls"), crop=RandomResizedCrop((24, 32), flip=0.5)
    )
    assert data.is_random

    def epochs(threads: int, kind: str) -> Any:
        loader = Loader(data, 4, True, seed=2, num_workers=threads, workers=kind)
        return [[numpy.concatenate([b[at] for b in loader]) for at in range(3)] for _ in range(2)]

    found = epochs(0, "threads")
    assert found[0][0].shape == (8, 24, 32, 3)
    assert found[0][0].dtype == numpy.uint8
    for other in (epochs(3, "threads"), epochs(2, "processes")):
        for one, two in zip(found, other, strict=True):
            assert all((a == b).all() for a, b in zip(one, two, strict=True))
    first = {label: image for image, label in zip(*found[0][::2], strict=True)}
    second = {label: image for image, label in zip(*found[1][::2], strict=True)}
    assert any((first[each] != second[each]).any() for each in first)


def test_without_a_loader_chance_is_that_of_the_program(pictures: Path) -> None:
    data = stoker.open(pictures, parts="jpg", crop=RandomResizedCrop(16))
    random.seed(4)
    first, second = data[0], data[0]
    assert (first != second).any()
    random.seed(4)
    assert (data[0] == first).all()


@pytest.mark.usefixtures("each_decoder")
def test_crops_without_chance_are_the_same_each_time(pictures: Path) -> None:
    data = stoker.open(pictures, parts=("jpg", "cls"), crop=CenterCrop(16, resize=20))
    assert not data.is_random
    assert (data[0][0] == data[0][0]).all()
    assert data[3][0].shape == (16, 16, 3)


@pytest.mark.usefixtures("each_decoder")
def test_grey_pictures_have_no_channels(pictures: Path) -> None:
    assert stoker.open(pictures, parts="png", decode="gray")[0].shape == (20, 30)
    assert stoker.open(pictures, parts="jpg", decode="gray")[0].shape == (90, 120)
    found = stoker.open(pictures, parts=("jpg", "png"), decode="gray", crop=Resize((8, 9)))[0]
    assert [each.shape for each in found] == [(8, 9), (8, 9)]
    assert stoker.open(pictures, parts="jpg", decode="rgb")[0].shape == (90, 120, 3)


@pytest.mark.usefixtures("each_decoder")
def test_pictures_that_only_pillow_reads_are_read(tmp_path: Path) -> None:
    """ImageNet has JPEGs with four inks, and a PNG that is called JPEG."""
    images = pytest.importorskip("PIL.Image")
    inks = io.BytesIO()
    images.fromarray(drawn()).convert("CMYK").save(inks, "JPEG")
    pictures = {"inks": inks.getvalue(), "png": encoded(drawn(), "PNG"), "jpg": encoded(drawn())}
    pack(tmp_path, [(name, {"jpg": data}, None) for name, data in pictures.items()])
    for found in stoker.open(tmp_path, parts="jpg"):
        assert found.shape == (400, 600, 3)
        assert abs(found.astype(float) - drawn()).mean() < 10
    cropped = stoker.open(tmp_path, parts="jpg", crop=RandomResizedCrop(50))
    chances = [Random(each) for each in (1, 1, 1)]
    inks_too, png, jpg = cropped.samples([0, 1, 2], chances)
    assert abs(png.astype(float) - jpg).mean() < 5
    assert abs(inks_too.astype(float) - jpg).mean() < 12


def test_a_decoder_of_ones_own_is_cropped_after_it(pictures: Path) -> None:
    numpy = pytest.importorskip("numpy")
    white = stoker.open(
        pictures,
        parts="jpg",
        decode={"jpg": lambda data: numpy.full((30, 40, 3), 255, "uint8")},
        crop=Resize((5, 6)),
    )[0]
    assert white.shape == (5, 6, 3)
    assert (white == 255).all()


@pytest.mark.usefixtures("each_decoder")
def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    pack(tmp_path, [("a/b", {"jpg": b"\xff\xd8 no"}, None)])
    for crop in (None, RandomResizedCrop(8)):
        with pytest.raises(DataError, match=r"cannot decode `a/b\.jpg`"):
            stoker.open(tmp_path, crop=crop)[0]


@pytest.mark.parametrize("how", [{"decode": "rbg"}, {"decode": False, "crop": Resize(3)}])
def test_what_cannot_be_is_refused(pictures: Path, how: Any) -> None:
    with pytest.raises(UsageError):
        stoker.open(pictures, **how)


# -- turbojpeg, by a stand-in --------------------------------------------------------------


class FakeTurbo:
    """Has the names of PyTurboJPEG, and Pillow inside."""

    TJPF_RGB, TJPF_GRAY = 0, 6

    class TurboJPEG:
        def decode_header(self, data: bytes) -> tuple[int, int, int, int]:
            images = pytest.importorskip("PIL.Image")
            return (*images.open(io.BytesIO(data)).size, 0, 0)

        def decode(self, data: bytes, pixel_format: int, scaling_factor: Any = (1, 1)) -> Any:
            numpy, images = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
            with images.open(io.BytesIO(data)) as image:
                small = image.convert("L" if pixel_format else "RGB").reduce(scaling_factor[1])
                return numpy.atleast_3d(numpy.array(small))


def test_turbojpeg_is_asked_for_a_small_picture() -> None:
    data = memoryview(encoded(drawn()))
    for mode, channels in (("rgb", (3,)), ("gray", ())):
        read = picture._turbojpeg(FakeTurbo, mode)
        small, box = read(data, lambda height, width: Box(0, 0, height, width, 50, 50))
        assert small.shape == (50, 75, *channels)
        assert (box.height, box.width) == (50, 75)


# -- on the GPU, by a stand-in ---------------------------------------------------------------


@pytest.mark.parametrize("has_torch", [False, True])
def test_without_a_gpu_or_torchvision_it_says_what_to_do(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, has_torch: bool
) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch if has_torch else None)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchvision.io", SimpleNamespace())
    with pytest.raises(DataError) as caught:
        stoker.open(pictures, decode="cuda")
    assert caught.value.what == 'cannot decode on the GPU (`decode="cuda"`)'
    assert caught.value.fix.endswith('or decode="rgb" for the processor')
