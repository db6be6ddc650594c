"""JPEGs decoded in C: the pixels of every other way, and nothing worse than an error."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import stoker
from compiled import compiled, jpegs_by
from made_data import pack
from stoker.data.pictures import decode, picture
from stoker.data.pictures.crop import Box, CenterCrop, RandomResizedCrop, Resize
from stoker.errors import DataError

numpy = pytest.importorskip("numpy")
image = pytest.importorskip("PIL.Image")
simplejpeg = pytest.importorskip("simplejpeg")

SAMPLINGS = ("444", "422", "420", "440", "411")
KINDS = (*SAMPLINGS, "grey", "progressive", "restarts")
CHANNELS = {"rgb": 3, "gray": 1}


@lru_cache(maxsize=64)
def encoded(kind: str, height: int, width: int) -> bytes:
    """A JPEG of colours that change from pixel to pixel."""
    draw = numpy.random.default_rng(height * 1000 + width)
    rough = draw.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), "u1")
    smooth = numpy.asarray(image.fromarray(rough).resize((width, height)))
    pixels = (smooth + draw.integers(-20, 20, (height, width, 3))).clip(0, 255).astype("u1")
    if kind in SAMPLINGS:
        made: bytes = simplejpeg.encode_jpeg(pixels, 85, colorsubsampling=kind)
        return made
    how: dict[str, Any] = {
        "progressive": {"progressive": True},
        "restarts": {"restart_marker_blocks": 3},
    }
    out = io.BytesIO()
    whole = image.fromarray(pixels)
    (whole.convert("L") if kind == "grey" else whole).save(out, "JPEG", **how.get(kind, {}))
    return out.getvalue()


def whole(data: bytes, mode: str = "rgb") -> Any:
    engine = compiled("_jpeg")
    place = numpy.empty((*engine.header(data), CHANNELS[mode]), "u1")
    engine.decode(data, place, CHANNELS[mode])
    return place


def piece(data: bytes, box: Box, mode: str = "rgb") -> Any:
    """A piece, the same on a processor that cannot do many products at once."""
    found = []
    for options in ((), ("-DWITHOUT_AVX2",)):
        place = numpy.empty((box.out_height, box.out_width, CHANNELS[mode]), "u1")
        compiled("_jpeg", *options).crop(data, place, CHANNELS[mode], box, box.factor)
        found.append(place)
    assert numpy.array_equal(*found)
    return found[0]


def cut(data: bytes, box: Box, mode: str = "rgb") -> Any:
    """The same piece of a picture that was decoded whole and resized by Pillow."""
    read = picture._simplejpeg(simplejpeg, mode)
    made = picture.cut(*read(memoryview(data), lambda _, __: box))
    return made.reshape(*made.shape[:2], CHANNELS[mode])


# -- the same pixels -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", CHANNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_picture_is_that_of_another_library(kind: str, mode: str) -> None:
    data = encoded(kind, 61, 83)
    found = whole(data, mode)
    assert numpy.array_equal(found, simplejpeg.decode_jpeg(data, mode.upper()))
    by_pillow = decode._pillow(image, mode)(memoryview(data))
    assert numpy.array_equal(found, by_pillow.reshape(found.shape))


sizes = st.integers(1, 120)


@given(
    st.sampled_from(KINDS), st.sampled_from(list(CHANNELS)), sizes, sizes,
    st.tuples(sizes, sizes), st.booleans(), st.integers(),
)  # fmt: skip
def test_a_piece_is_that_of_the_whole(
    kind: str, mode: str, height: int, width: int, out: tuple[int, int], flip: bool, seed: int
) -> None:
    data = encoded(kind, height, width)
    for crop in (
        RandomResizedCrop(out, flip=flip),
        RandomResizedCrop(out, scale=(0.01, 0.2)),
        CenterCrop(out, resize=50),
        Resize(out),
    ):
        box = crop.box(height, width, Random(seed))
        assert numpy.array_equal(piece(data, box, mode), cut(data, box, mode))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_left_out_on_every_side(kind: str) -> None:
    """Pixels at the edge of the piece are mixed with colours beyond it."""
    data, draw = encoded(kind, 250, 330), Random(kind)
    for size in (8, 20, 70):
        for _ in range(20):
            top, left = draw.randint(0, 250 - 70), draw.randint(0, 330 - 70)
            high, wide = draw.randint(1, 70), draw.randint(1, 70)
            box = Box(top, left, high, wide, size, size)
            assert numpy.array_equal(piece(data, box), cut(data, box)), box


def test_a_piece_as_large_as_wanted_is_copied() -> None:
    data = encoded("420", 100, 90)
    box = Box(13, 17, 40, 50, 40, 50)
    assert numpy.array_equal(piece(data, box), whole(data)[13:53, 17:67])
    flipped = piece(data, box._replace(is_flipped=True))
    assert numpy.array_equal(flipped, whole(data)[13:53, 17:67][:, ::-1])


@pytest.mark.parametrize("crop", [None, RandomResizedCrop((30, 40), flip=0.5), Resize(9)])
def test_without_the_compiled_part_batches_are_the_same(tmp_path: Path, crop: Any) -> None:
    pack(tmp_path, [(kind, {"jpg": encoded(kind, 100, 130)}, None) for kind in KINDS])
    found = []
    for module in (compiled("_jpeg"), None):
        with jpegs_by(module):
            data = stoker.open(tmp_path, parts="jpg", crop=crop)
            loader = stoker.Loader(data, len(KINDS), num_workers=0, seed=1)
            found.append(numpy.asarray(next(iter(loader))))
    assert numpy.array_equal(*found)


# -- what is wrong -------------------------------------------------------------------------


@given(st.sampled_from(KINDS), st.integers(0), st.sampled_from([(0, 8), (30, 18), (0, 48)]))
def test_a_picture_that_was_cut_off_is_refused(kind: str, size: int, rows: tuple[int, int]) -> None:
    """Also where the rows that are wanted are there."""
    data = encoded(kind, 48, 64)
    part = data[: size % (len(data) - 1)]
    with pytest.raises(ValueError, match=r"\w"):
        piece(part, Box(rows[0], 0, rows[1], 64, 8, 8))
    with pytest.raises(ValueError, match=r"\w"):
        whole(part)


@given(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1))
def test_bits_that_flipped_do_no_harm(kind: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(kind, 48, 64))
    for at, bit in flips:
        data[at % len(data)] ^= 1 << bit
    engine = compiled("_jpeg")
    with suppress(ValueError):
        height, width = engine.header(data)
        assume(height * width < 1 << 20)
        engine.decode(data, bytearray(height * width * 3), 3)
    with suppress(ValueError):
        engine.crop(data, bytearray(8 * 8 * 3), 3, Box(3, 5, 30, 40, 8, 8), 2)


def with_size(data: bytes, height: int, width: int) -> bytes:
    """The same bytes with another size in the header."""
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Empty input file"),
        (b"no picture", "Not a JPEG file"),
        (with_size(encoded("420", 48, 64), 60000, 60000), "too many pixels"),
        (with_size(encoded("420", 48, 64), 0, 64), "DNL"),
    ],
)
def test_what_is_no_usual_picture_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compiled("_jpeg").header(data)


def test_four_inks_are_left_to_others() -> None:
    out = io.BytesIO()
    image.new("CMYK", (20, 30)).save(out, "JPEG")
    with pytest.raises(ValueError, match="neither RGB nor grey"):
        compiled("_jpeg").header(out.getvalue())


@pytest.mark.parametrize(
    "box",
    [
        Box(-1, 0, 8, 8, 8, 8), Box(0, 0, 0, 8, 8, 8), Box(41, 0, 8, 8, 8, 8), Box(0, 60, 8, 8, 8, 8),
        Box(float("nan"), 0, 8, 8, 8, 8), Box(0, 0, float("inf"), 8, 8, 8), Box(0, 0, 8, 8, 7, 8),
        Box(0, 0, 8, 8, 0, 0), Box(0, 0, 8, 8, -8, -8), Box(48, 0, 1e-9, 8, 8, 8),
    ],
)  # fmt: skip
def test_a_box_that_is_not_inside_or_has_no_room_is_refused(box: Box) -> None:
    place = numpy.empty((8, 8, 3), "u1")
    with pytest.raises(ValueError, match=r"not inside|another shape|one pixel"):
        compiled("_jpeg").crop(encoded("420", 48, 64), place, 3, box, 1)


def test_memory_that_does_not_fit_is_refused() -> None:
    engine, data = compiled("_jpeg"), encoded("420", 48, 64)
    box = Box(0, 0, 48, 64, 8, 8)
    with pytest.raises(ValueError, match="another shape"):
        engine.decode(data, bytearray(48 * 64 * 3 - 1), 3)
    with pytest.raises(ValueError, match="another shape"):
        engine.decode(data, bytearray(48 * 64 * 2), 2)
    with pytest.raises(ValueError, match="at 1, 1/2, 1/4 or 1/8"):
        engine.crop(data, bytearray(8 * 8 * 3), 3, box, 3)
    with pytest.raises(TypeError):
        engine.decode(data, bytes(48 * 64 * 3), 3)


@pytest.mark.usefixtures("each_decoder")
@pytest.mark.parametrize("crop", [None, Resize(8)])
def test_a_sample_that_was_cut_off_is_named(tmp_path: Path, crop: Any) -> None:
    pack(tmp_path, [("a/b", {"jpg": encoded("420", 48, 64)[:-300]}, None)])
    with pytest.raises(DataError, match=r"cannot decode `a/b\.jpg`"):
        stoker.open(tmp_path, parts="jpg", crop=crop)[0]
